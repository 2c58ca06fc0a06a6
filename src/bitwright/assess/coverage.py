"""Integer coverage: products that ONNX Runtime really computes in integers, in multiply-adds.

Read from the graph that the runtime makes of a model at its default level: a Conv between Q/DQ
pairs is an integer product only where it became a QLinearConv there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import onnx_ir as ir

from bitwright.decide.ops.product_sizes import is_product, multiply_adds, sum_known
from bitwright.errors import ModelError
from bitwright.graph import INTEGER_OPS, clone_model, infer_shapes, set_input_shapes
from bitwright.run.optimized import OptimizedModel, optimize_model
from bitwright.support.array_types import Array

_INTEGER_LEVEL = 4
"""The accuracy level at which MatMulNBits rounds activations to int8; below, it is float."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of a model the runtime computes in integers."""

    products: int
    """Convolutions, matrix products, attention and recurrent layers."""
    integer_products: int
    multiply_adds: int | None
    """Of all products for one sample; None where a shape is not known."""
    integer_multiply_adds: int | None

    @property
    def share(self) -> float | None:
        """The share of multiply-adds in integers; None where they could not be counted."""
        if not self.multiply_adds or self.integer_multiply_adds is None:
            return None
        return self.integer_multiply_adds / self.multiply_adds

    def describe(self) -> str:
        """Return the coverage in words."""
        if not self.products:
            return "no products"
        text = f"{self.integer_products} of {self.products} products in integers"
        return text if self.share is None else f"{text} ({100 * self.share:.0f} % of multiply-adds)"

    def to_dict(self) -> dict[str, Any]:
        """Return the coverage as plain data."""
        return asdict(self) | {"share": self.share}


def measure_coverage(
    model: ir.Model,
    sample: Mapping[str, Array] | None = None,
    *,
    providers: Sequence[str] | None = None,
) -> Coverage:
    """Let the runtime optimize a model, and count what it computes in integers.

    The sample gives the sizes that the model leaves open.
    """
    given = clone_model(model)
    if sample is not None:
        sizes = {
            size.value: found
            for value in given.graph.inputs
            if value.shape is not None and value.name is not None and value.name in sample
            for size, found in zip(value.shape, sample[value.name].shape, strict=False)
            if isinstance(size, ir.SymbolicDim) and size.value is not None
        }
        set_input_shapes(given, {name: array.shape for name, array in sample.items()}, sizes)
    infer_shapes(given)
    return _count_products(optimize_model(given, level="all", providers=providers))


def find_coverage(
    model: ir.Model,
    sample: Mapping[str, Array] | None = None,
    *,
    providers: Sequence[str] | None = None,
) -> Coverage | None:
    """Return the coverage of a model, or None where this runtime does not open it."""
    try:
        return measure_coverage(model, sample, providers=providers)
    except ModelError:
        return None


def _count_products(optimized: OptimizedModel) -> Coverage:
    """Count the products of a graph that the runtime optimized."""
    origins = optimized.origins()
    counts: list[tuple[bool, int | None]] = []
    for node in optimized.model.graph.all_nodes():
        if not is_product(node):
            continue
        # In layouts of its own the runtime knows no shapes, and fills channels up to whole blocks.
        origin = origins.get(node, node)
        counted = origin if is_product(origin) else node
        counts.append((_is_integer(node), multiply_adds(counted)))
    integers = [count for is_integer, count in counts if is_integer]
    return Coverage(
        len(counts), len(integers), sum_known([count for _, count in counts]), sum_known(integers)
    )


def _is_integer(node: ir.Node) -> bool:
    if node.op_type == "MatMulNBits":
        return node.attributes.get_int("accuracy_level", 0) == _INTEGER_LEVEL
    return node.op_type in INTEGER_OPS and node.op_type != "MatMulBnb4"
