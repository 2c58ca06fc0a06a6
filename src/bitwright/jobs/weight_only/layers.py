"""The weights of a plan in their model: where each is, which way round, and what it multiplies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from bitwright.decide.layout.weight_only import product_source
from bitwright.errors import ModelError
from bitwright.graph import iter_values, weight_of
from bitwright.graph.tensors import inline_copy
from bitwright.numerics.blocks import BlockFormat, QuantizedBlocks
from bitwright.plan import QuantPlan, WeightPlan

__all__ = ["Site", "weight_sites"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Site:
    """One weight of the plan in its model: where it is, which way round, and what it reads."""

    name: str
    """The plan's name for it."""
    value: ir.Value
    plan: WeightPlan
    transposed: bool
    """Whether it is stored as [N, K]."""
    source: str | None
    """The tensor of the main graph that it is multiplied with, None where none can be seen."""

    @property
    def shape(self) -> tuple[int, int]:
        """K and N."""
        assert self.value.shape is not None
        first, second = (int(size) for size in self.value.shape)  # type: ignore[arg-type]
        return (second, first) if self.transposed else (first, second)

    def read(self) -> Array:
        """Return the weight as [K, N]."""
        tensor = self.value.const_value
        assert tensor is not None
        # A copy: a file that stays mapped counts as memory, and there is one for each weight.
        array = inline_copy(tensor).numpy()
        if array.size and not (np.isfinite(array.min()) and np.isfinite(array.max())):
            raise ModelError(
                f"weight {self.name!r} holds NaN or infinite values; mend the model or exclude "
                f"the nodes that read it ({', '.join(map(repr, self.plan.nodes[:3]))})."
            )
        return array.T if self.transposed else array

    def format(self) -> BlockFormat:
        """Return the form of its blocks; scales have the weight's own type."""
        assert self.value.dtype is not None
        kinds = {ir.DataType.FLOAT16: "float16", ir.DataType.BFLOAT16: "bfloat16"}
        return BlockFormat(
            bits=self.plan.bits,
            block_size=self.plan.block_size,
            symmetric=self.plan.symmetric,
            scale_type=kinds.get(self.value.dtype, "float32"),  # type: ignore[arg-type]
        )

    def restore(self, blocks: QuantizedBlocks) -> Array:
        """Return rounded values in the form that the model stores the weight in."""
        assert self.value.dtype is not None
        array = blocks.dequantize(np.float32)
        return (array.T if self.transposed else array).astype(self.value.dtype.numpy())


def weight_sites(model: ir.Model, plan: QuantPlan) -> list[Site]:
    """Return the plan's weights, in the order in which the model reads them."""
    values = dict(iter_values(model))
    nodes = {node.name or "": node for node in model.graph.all_nodes()}
    places = {name: index for index, name in enumerate(nodes)}
    found = []
    for name, planned in plan.weights.items():
        readers = [nodes[reader] for reader in sorted(planned.nodes, key=places.__getitem__)]
        weight = weight_of(readers[0])
        assert weight is not None and weight.value is values[name]
        sources = [product_source(node) for node in readers if node.graph is model.graph]
        source = next((s for s in sources if s is not None), None)
        told = None if source is None else source.name
        found.append(Site(name, weight.value, planned, weight.transposed, told))
    order = {
        name: places[min(plan.weights[name].nodes, key=places.__getitem__)] for name in plan.weights
    }
    return sorted(found, key=lambda site: order[site.name])
