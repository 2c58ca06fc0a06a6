"""Which nodes are computed in float16 or bfloat16, and why others stay float32."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from bitwright.decide.layout.entries import plan_as_float, plan_node
from bitwright.decide.layout.selection import Selector
from bitwright.decide.ops.size_arithmetic import SIZE_ARITHMETIC, find_size_arithmetic
from bitwright.graph.constants import constant_tensor
from bitwright.graph.half_ops import find_half_parameters
from bitwright.graph.subgraphs import subgraphs_of
from bitwright.graph.tensors import inline_copy
from bitwright.numerics.halves import INFINITE, MAX_FLOAT16
from bitwright.plan import NodePlan
from bitwright.recipe import Recipe

_MAX_OBSERVED = MAX_FLOAT16 / 2
"""Other samples may reach further than those that were observed."""
# The type of their results is an attribute, or that of a scale.
_TYPED = frozenset(
    "Bernoulli Cast CastLike ConstantOfShape DequantizeLinear EyeLike Multinomial RandomNormal "
    "RandomNormalLike RandomUniform RandomUniformLike SequenceEmpty".split()
)


def decide_casts(
    model: ir.Model, recipe: Recipe, peaks: Mapping[str, float] | None = None
) -> dict[str, NodePlan]:
    """Return for each node whether it is computed in the recipe's type; shapes must be inferred.

    `peaks` has the largest magnitude of tensors, as far as they were observed.
    """
    nodes = list(model.graph)
    selector = Selector(nodes, recipe.select, frozenset(node.op_type for node in nodes))
    kind, found = recipe.weight.name, {}
    exact = dict.fromkeys(find_size_arithmetic(model), SIZE_ARITHMETIC)
    for node in nodes:
        reason = (
            selector.kept_float(node)
            or exact.get(node.name or "")
            or selector.not_chosen(node)
            or (_why_not_stored(node) if recipe.casts_weights_only else _why_not_cast(node, kind))
            or (_why_out_of_range(node, peaks or {}) if kind == "float16" else None)
        )
        found[node.name or ""] = plan_node(node) if reason is None else plan_as_float(node, reason)
    return found


def _is_float(value: ir.Value | None) -> bool:
    return value is not None and value.dtype == ir.DataType.FLOAT


def _why_not_cast(node: ir.Node, kind: str) -> str | None:
    inputs = [index for index, value in enumerate(node.inputs) if _is_float(value)]
    outputs = [index for index, value in enumerate(node.outputs) if _is_float(value)]
    if not inputs and not outputs:
        return "it has no float32 tensor"
    if list(subgraphs_of(node)):
        return "the graphs inside it stay float32"
    if kind == "float16" and _crashes_in_half(node):
        return "ONNX Runtime crashes on a product of a transposed input in float16"
    if node.domain not in ("", "ai.onnx", "com.microsoft"):
        return f"what {node.op_type} of the domain {node.domain} takes is not known"
    if outputs and (node.op_type in _TYPED or not inputs):
        return "the type of its result is an attribute"
    half = find_half_parameters(node, kind)
    if not all(map(half.gives, outputs)) or not any(map(half.takes, inputs)):
        return f"{node.op_type} is not defined for {kind}"
    return None


def _crashes_in_half(node: ir.Node) -> bool:
    """Whether it is a transposition before a product, or that, which end the process in float16.

    From 1.23 on ONNX Runtime does so when it opens such a model, on CPUs.
    """
    first = node.inputs[0] if node.inputs else None
    maker = node if node.op_type == "Transpose" else first and first.producer()
    perm = maker.attributes.get_ints("perm", ()) if maker else ()
    readers = maker.outputs[0].consumers() if maker is node else [node]
    weights = [_constant(one.inputs[1]) for one in readers if one.op_type == "MatMul"]
    return tuple(perm or ()) in ((1, 0, 2), (1, 2, 0)) and any(w is not None for w in weights)


def _constant(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Return the tensor of a floating-point constant, else None."""
    tensor = constant_tensor(value)
    return tensor if tensor is not None and tensor.dtype.is_floating_point() else None


def _why_not_stored(node: ir.Node) -> str | None:
    tensors = (_constant(value) for value in node.inputs if _is_float(value))
    if any(tensor is not None and tensor.size > 1 for tensor in tensors):
        return None
    return "it has no weight to store"


def _why_out_of_range(node: ir.Node, peaks: Mapping[str, float]) -> str | None:
    for value in node.inputs:
        tensor = _constant(value) if _is_float(value) else None
        if value is None or tensor is None:
            continue
        sizes = np.abs(inline_copy(tensor).numpy())  # a mapped file would stay in memory
        largest = float(sizes.max(initial=0.0, where=np.isfinite(sizes) & (sizes < INFINITE)))
        if largest > MAX_FLOAT16:
            return f"its constant {value.name!r} holds {largest:.4g}, and float16 ends at 65504"
    for value in (*node.inputs, *node.outputs):
        peak = 0.0 if value is None else peaks.get(value.name or "", 0.0)
        if value is not None and peak > _MAX_OBSERVED:
            return f"{value.name!r} reaches {peak:.4g} on the data, and float16 ends at 65504"
    return None
