"""The weights of a plan in their model: how each is stored, and what it is multiplied with."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from bitwright.decide.layout.weight_only import weight_source
from bitwright.errors import ModelError
from bitwright.graph import inline_copy, iter_values, lazy_tensor, row_reader, weights_of
from bitwright.numerics import NUMPY, Arrays, as_matrix, as_stack, load_rows
from bitwright.numerics.blocks import BlockFormat, QuantizedBlocks, values_of_blocks
from bitwright.plan import QuantPlan, WeightPlan
from bitwright.support.array_types import Array


@dataclass(frozen=True, slots=True)
class PlannedWeight:
    """One weight of the plan in its model, and the tensor that it is multiplied with."""

    name: str
    """The plan's name for it."""
    value: ir.Value
    plan: WeightPlan
    transposed: bool
    """Whether it is stored as [N, K], or as a stack of such matrices."""
    source: str | None
    """The tensor of the main graph that it is multiplied with, None where none can be seen."""
    run_name: str
    """What it is called in the model that is run."""

    @property
    def shape(self) -> tuple[int, int]:
        """K and N, that of all matrices of a stack together."""
        assert self.value.shape is not None
        sizes = [int(size) for size in self.value.shape]  # type: ignore[arg-type]
        inputs = sizes.pop(-1 if self.transposed else -2)
        return inputs, math.prod(sizes)

    def read(self) -> Array:
        """Return the weight as [K, N]."""
        tensor = self.value.const_value
        assert tensor is not None
        # A copy: a file that stays mapped counts as memory, and there is one for each weight.
        array = inline_copy(tensor).numpy()
        if array.size and not (np.isfinite(array.min()) and np.isfinite(array.max())):
            raise self.not_finite()
        return as_matrix(array, transposed=self.transposed)

    def read_on(self, xp: Arrays) -> Any:
        """Return the weight as [K, N] in float32 where `xp` computes, read by several threads."""
        tensor = self.value.const_value
        assert tensor is not None
        if len(tensor.shape) != 2:
            return xp.array(self.read())
        rows, columns = tensor.shape.numpy()
        array = load_rows(row_reader(tensor), (rows, columns), xp)
        if not bool(xp.isfinite(array).all()):
            raise self.not_finite()
        return xp.transposed(array) if self.transposed else array

    def not_finite(self) -> ModelError:
        """Return the error of a weight that holds no numbers."""
        return ModelError(
            f"weight {self.name!r} holds NaN or infinite values; repair the model or exclude "
            f"the nodes that read it ({', '.join(map(repr, self.plan.nodes[:3]))})."
        )

    def format(self) -> BlockFormat:
        """Return the form of its blocks; scales have the weight's own type."""
        assert self.value.dtype is not None
        kinds = {ir.DataType.FLOAT16: "float16", ir.DataType.BFLOAT16: "bfloat16"}
        return BlockFormat(
            bits=self.plan.bits,
            block_size=self.plan.block_size,
            symmetric=self.plan.symmetric,
            negative_scales=not self.plan.positive_scales,
            scale_type=kinds.get(self.value.dtype, "float32"),  # type: ignore[arg-type]
        )

    def restore(self, blocks: QuantizedBlocks) -> Array:
        """Return rounded values in the form that the model stores the weight in."""
        assert self.value.dtype is not None
        stored: Array = self.stored(blocks.dequantize(np.float32))
        return stored.astype(self.value.dtype.numpy())

    def stored(self, matrix: Any) -> Any:
        """Return values [K, N] (numpy or torch) in the shape that the model stores."""
        assert self.value.shape is not None
        leading = [int(size) for size in self.value.shape[:-2]]  # type: ignore[arg-type]
        return as_stack(matrix, leading, transposed=self.transposed)

    def restored(self, read: Callable[[str], QuantizedBlocks], xp: Arrays = NUMPY) -> ir.LazyTensor:
        """Return what `read` gives for it, as the model stores it; read when the model runs.

        A matrix is restored on `xp`, and is a tensor of torch where that is torch's.
        """
        assert self.value.dtype is not None and self.value.shape is not None
        alone = xp is not NUMPY and len(self.value.shape) == 2

        def make() -> ir.TensorProtocol:
            blocks = read(self.name)
            if not alone:
                return ir.tensor(np.ascontiguousarray(self.restore(blocks)))
            matrix = values_of_blocks(blocks, xp)
            stored = xp.transposed(matrix) if self.transposed else matrix
            kind = self.format().scale_type  # scales have the weight's own type
            return ir.tensor_adapters.TorchTensor(xp.array(stored, kind), name=self.value.name)

        return lazy_tensor(make, self.value.dtype, self.value.shape, self.value.name)


def planned_weights(
    model: ir.Model, plan: QuantPlan, run: ir.Model | None = None
) -> list[PlannedWeight]:
    """Return the plan's weights, in the order in which the model reads them.

    What they are multiplied with is looked up in `run`, a copy whose nodes have the same names.
    """
    values = dict(iter_values(model))
    nodes = {node.name or "": node for node in model.graph.all_nodes()}
    order = {name: index for index, name in enumerate(nodes)}
    running = {node.name or "": node for node in (run or model).graph}
    found = []
    for name, planned in plan.weights.items():
        readers = sorted(planned.nodes, key=order.__getitem__)
        weight = next(w for w in weights_of(nodes[readers[0]]) if w.value is values[name])
        source, run_name = None, weight.value.name or ""
        for reader in (running[reader] for reader in readers if reader in running):
            # What is to this copy of the node as the weight is to the other.
            places = [one.value for one in weights_of(nodes[reader.name or ""])]
            its = weights_of(reader)[places.index(weight.value)].value
            run_name = its.name or ""
            tensor = weight_source(reader, its)
            if tensor is not None:
                source = tensor.name
                break
        found.append(
            PlannedWeight(name, weight.value, planned, weight.transposed, source, run_name)
        )
    return sorted(found, key=lambda weight: min(order[node] for node in weight.plan.nodes))
