"""Weight scales large enough that an int32 bias at (input scale x weight scale) fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from bitwright.decide.layout.entries import Layout
from bitwright.decide.matmul_bias import bias_sum_behind
from bitwright.decide.ops import LINEAR_OPS, RULES
from bitwright.decide.scales.parameters import widened_for_bias
from bitwright.graph.constants import constant_of
from bitwright.numerics.types import INT32
from bitwright.plan import QuantPlan

__all__ = ["prevent_bias_overflow"]


@dataclass(frozen=True, slots=True)
class _Bias:
    """Numbers that are added to a product, and the entries of its two factors."""

    array: npt.NDArray[Any]
    source: str
    weight: str
    tile: int


def prevent_bias_overflow(model: ir.Model, layout: Layout, plan: QuantPlan) -> None:
    """Enlarge weight scales where an int32 bias would overflow at (input x weight) scale.

    A weight that small beside its bias has no say in the result.
    """
    for bias in (*_stored_biases(layout), *_float_biases(model, layout, plan)):
        weight = plan.tensors[bias.weight]
        if weight.scale is None or layout.entries[bias.weight].override:
            continue
        source = plan.parameters(bias.source).scale
        scale = np.asarray(weight.scale, np.float64)
        if np.ndim(source):
            continue
        wider = widened_for_bias(scale, source, bias.array, bias.tile, plan.recipe.scales)
        if wider is not None:
            plan.tensors[bias.weight] = msgspec.structs.replace(
                weight, scale=wider.tolist(), method=f"{weight.method}, widened for the bias"
            )


def _stored_biases(layout: Layout) -> Iterator[_Bias]:
    for entry in layout.entries.values():
        array = constant_of(entry.value)
        if entry.bias_of is not None and entry.qtype == INT32 and array is not None:
            yield _Bias(array, *entry.bias_of, entry.tile)


def _float_biases(model: ir.Model, layout: Layout, plan: QuantPlan) -> Iterator[_Bias]:
    """Yield biases that stay float in the file, of products on quantized tensors.

    ONNX Runtime stores them in int32 when it opens the model, whether they fit or not.
    """
    if not plan.recipe.output_format.pairs:
        return
    for node in model.graph.all_nodes():
        planned = plan.nodes.get(node.name or "")
        if node.op_type not in LINEAR_OPS or planned is None or not planned.quantized:
            continue
        rule = RULES[node.op_type]
        array = _float_bias(node, rule.bias, plan)
        source, weight = planned.inputs[0], planned.inputs[1]
        if array is None or source is None or weight is None:
            continue
        entry = layout.entries[weight]
        integers = entry.qtype.is_integer and plan.tensors[source].qtype.is_integer
        if entry.role != "weight" or entry.block_size or not integers:
            continue
        tile = 1 if rule.tile is None else rule.tile(node)
        scale = np.asarray(plan.tensors[weight].scale)
        if not scale.ndim or array.size == tile * scale.size:
            yield _Bias(array, source, weight, tile)


def _float_bias(node: ir.Node, index: int | None, plan: QuantPlan) -> npt.NDArray[Any] | None:
    """Return the vector that is added to a product in float, in the node itself or behind it."""
    if index is not None:
        given = len(node.inputs) > index and plan.nodes[node.name or ""].inputs[index] is None
        array = constant_of(node.inputs[index]) if given else None
    else:
        found, refuse = bias_sum_behind(node), RULES["Add"].refuse
        if found is None or not found.may_become_gemm:
            return None
        if refuse is not None and refuse(found.node) is not None:
            return None  # a mask
        adding = plan.nodes.get(found.node.name or "")
        stored = adding is not None and adding.inputs[found.index] is not None
        array = None if stored else constant_of(found.bias)
    is_vector = array is not None and array.ndim == 1 and bool(np.all(np.isfinite(array)))
    return array if is_vector else None
