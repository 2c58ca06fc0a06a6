"""Which nodes are computed in float16 or bfloat16, and why others stay float32."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import onnx_ir as ir

from bitwright.decide.half_limits import find_unfit
from bitwright.decide.layout.entries import plan_as_float, plan_node
from bitwright.decide.layout.selection import Selector
from bitwright.decide.ops import op_types
from bitwright.decide.ops.size_arithmetic import SIZE_ARITHMETIC, find_size_arithmetic
from bitwright.graph.constants import constant_tensor
from bitwright.graph.half_ops import (
    TYPE_ATTRIBUTES,
    find_half_parameters,
    is_float,
    takes_half_bodies,
)
from bitwright.graph.subgraphs import subgraphs_of
from bitwright.graph.tensors import inline_copy
from bitwright.numerics.halves import INFINITE, MAX_FLOAT16
from bitwright.plan import NodePlan
from bitwright.recipe import Recipe

_MAX_OBSERVED = MAX_FLOAT16 / 2
"""Other samples may reach further than those that were observed."""
_MIN_OBSERVED = 2.0**-22
"""Below, float16 has fewer than 3 of its 11 bits left."""
_SMALL = "and float16 ends at 6e-08"
_FOREIGN = "the graphs inside it stay float32"
_BY_ATTRIBUTE = "the type of its result is an attribute"
_TYPED = frozenset({*TYPE_ATTRIBUTES, "CastLike", "DequantizeLinear", "SequenceEmpty"})
"""The type of their results is an attribute, or that of a scale."""
_MOVES = frozenset({"Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
_PRODUCTS = op_types(lambda op: op.linear) | {"Div", "Mul"}
"""What a constant multiplies: as an addend a small one may be lost."""


def decide_casts(
    model: ir.Model,
    recipe: Recipe,
    peaks: Mapping[str, float] | None = None,
    *,
    random: bool = False,
) -> dict[str, NodePlan]:
    """Return for each node whether it is computed in the recipe's type; shapes must be inferred.

    `peaks` has the largest magnitude of tensors of the main graph, as far as they were observed.
    That nothing overflows is not known of `random` samples.
    """
    nodes = list(model.graph.all_nodes())
    selector = Selector(nodes, recipe.select, frozenset(node.op_type for node in nodes))
    kind = recipe.weight.name
    exact = dict.fromkeys(find_size_arithmetic(model), SIZE_ARITHMETIC)
    made = [value for node in model.graph for value in node.outputs]
    named = {value.name: value for value in (*model.graph.inputs, *made)}
    known = {named[name]: peak for name, peak in (peaks or {}).items()}
    unfit = find_unfit(model, kind, () if random else known)
    read = (v for node in nodes for v in node.inputs if v and kind == "float16")
    sizes = {v: size for v in dict.fromkeys(read) if (size := _largest(v)) is not None}
    lost = _find_lost(nodes, known, sizes)

    def why_float(node: ir.Node) -> str | None:
        reason = selector.kept_float(node) or exact.get(node.name or "")
        reason = reason or selector.not_chosen(node)
        if reason is None and recipe.casts_weights_only:
            return _why_not_stored(node)
        reason = reason or _why_not_cast(node, kind) or unfit.get(node)
        return reason or (
            _why_out_of_range(node, known, sizes, lost) if kind == "float16" else None
        )

    reasons = {node: why_float(node) for node in nodes}
    if not recipe.casts_weights_only:
        _settle_bodies(reasons)
        _settle_typed(reasons, kind)
    return {
        node.name or "": plan_node(node) if reason is None else plan_as_float(node, reason)
        for node, reason in reasons.items()
    }


def _why_not_cast(node: ir.Node, kind: str) -> str | None:
    inputs = [index for index, value in enumerate(node.inputs) if is_float(value)]
    outputs = [index for index, value in enumerate(node.outputs) if is_float(value)]
    if not inputs and not outputs:
        return "it has no float32 tensor"
    if list(subgraphs_of(node)):
        return None if takes_half_bodies(node) else _FOREIGN
    if kind == "float16" and _crashes_in_half(node):
        return "ONNX Runtime crashes on a product of a transposed input in float16"
    if node.domain not in ("", "ai.onnx", "com.microsoft"):
        return f"what {node.op_type} of the domain {node.domain} takes is not known"
    if outputs and (node.op_type in _TYPED or not inputs):
        return _BY_ATTRIBUTE
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
    tensors = (_constant(value) for value in node.inputs if is_float(value))
    if any(tensor is not None and tensor.size > 1 for tensor in tensors):
        return None
    return "it has no weight to store"


def _largest(value: ir.Value | None) -> float | None:
    """Return the largest finite number of a constant; None: it is none."""
    tensor = _constant(value) if is_float(value) else None
    if tensor is None:
        return None
    sizes = np.abs(inline_copy(tensor).numpy())  # a mapped file would stay in memory
    return float(sizes.max(initial=0.0, where=np.isfinite(sizes) & (sizes < INFINITE)))


def _find_lost(
    nodes: list[ir.Node], peaks: Mapping[ir.Value, float], sizes: Mapping[ir.Value, float]
) -> set[ir.Value]:
    """Return what float16 has no digits for, and no answer shows: added to what is larger by far.

    Such is the branch behind a layer scale that was never trained.
    """
    tiny: set[ir.Value | None] = {v for v, peak in peaks.items() if 0 < peak < _MIN_OBSERVED}
    tiny |= {value for value, size in sizes.items() if size < _MIN_OBSERVED}
    for node in nodes:
        factors = [sizes.get(v, 0.0) for v in node.inputs if v and node.op_type in _PRODUCTS]
        is_small = any(0 < factor < _MIN_OBSERVED for factor in factors)
        passes_on = node.op_type in _MOVES and node.inputs[0] in tiny
        if is_small or passes_on or (node.op_type == "Add" and tiny.issuperset(node.inputs)):
            tiny.update(node.outputs)
    lost: set[ir.Value] = set()
    for node in reversed(nodes):
        for value in node.outputs:
            uses = () if value.is_graph_output() or value not in tiny else value.uses()
            if uses and all(_loses(use.node, tiny, lost) for use in uses):
                lost.add(value)
    return lost


def _loses(node: ir.Node, tiny: Collection[ir.Value | None], lost: Collection[ir.Value]) -> bool:
    """Whether a node adds what is tiny to what is not, or hands it on to such."""
    if node.op_type in _MOVES:
        return node.outputs[0] in lost
    others = [value for value in node.inputs if value not in tiny]
    return node.op_type == "Add" and bool(others) and _constant(others[0]) is None


def _why_out_of_range(
    node: ir.Node,
    peaks: Mapping[ir.Value, float],
    sizes: Mapping[ir.Value, float],
    lost: Collection[ir.Value],
) -> str | None:
    for value in node.inputs:
        if value is None or value not in sizes:
            continue
        largest = sizes[value]
        if largest > MAX_FLOAT16:
            return f"its constant {value.name!r} holds {largest:.4g}, and float16 ends at 65504"
        is_lost = node.op_type not in _PRODUCTS or node.outputs[0] in lost
        if 0 < largest < _MIN_OBSERVED and not is_lost:
            return f"its constant {value.name!r} is at most {largest:.4g}, {_SMALL}"
    for value in (*node.inputs, *node.outputs):
        peak = 0.0 if value is None else peaks.get(value, 0.0)
        if value is not None and peak > _MAX_OBSERVED:
            return f"{value.name!r} reaches {peak:.4g} on the data, and float16 ends at 65504"
        if value is not None and 0 < peak < _MIN_OBSERVED and value not in lost:
            return f"{value.name!r} is at most {peak:.4g} on the data, {_SMALL}"
    return None


def _settle_bodies(reasons: dict[ir.Node, str | None]) -> None:
    """Let an If, Loop or Scan hand on half floats where its bodies compute any, and no others."""
    for node in reversed(reasons):
        inner = [one for _, body in subgraphs_of(node) for one in body.all_nodes()]
        if reasons[node] == _FOREIGN:
            reasons.update(dict.fromkeys(inner, _FOREIGN))
        if reasons[node] is None and inner and all(reasons[one] for one in inner):
            reasons[node] = "nothing inside it is converted"


def _settle_typed(reasons: dict[ir.Node, str | None], kind: str) -> None:
    """Let operators write half floats whose type is an attribute, where nothing else reads them."""
    for node, reason in reversed(reasons.items()):
        (made,) = node.outputs if len(node.outputs) == 1 else (None,)
        if made is None or reason != _BY_ATTRIBUTE or node.op_type not in TYPE_ATTRIBUTES:
            continue
        fits = made.uses() and not made.is_graph_output()
        if fits and all(
            reasons[use.node] is None and find_half_parameters(use.node, kind).takes(use.idx)
            for use in made.uses()
        ):
            reasons[node] = None
