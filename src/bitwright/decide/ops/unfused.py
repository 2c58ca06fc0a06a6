"""Nodes between Q/DQ pairs that ONNX Runtime does not fuse and so runs in float, with the reason.

The rules are those of its CPU provider (QDQ selectors), each seen by optimizing a model that
breaks just this one; `tests/decide/ops/test_unfused.py` does it again with the installed version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from bitwright.decide.ops import OPERATORS, OpRule, op_types
from bitwright.graph import INTEGER_OPS, Quantizer, Quantizers, is_integer_op, name_of
from bitwright.run.optimized import OptimizedModel

LINEAR_QUANTIZERS = frozenset({"QuantizeLinear", "DequantizeLinear"})
_PRODUCTS = op_types(lambda op: op.linear and op.integer_op)
_MOVING = op_types(lambda op: op.drops_pairs)
_INTEGER_RESULTS = {op.op_type for op in INTEGER_OPS.values() if op.result is not None}
_COMPUTED = op_types(lambda op: op.integer_op in _INTEGER_RESULTS)
_BYTES = frozenset({ir.DataType.INT8, ir.DataType.UINT8})
_LOWEST = {ir.DataType.INT8: -128, ir.DataType.UINT8: 0}


@dataclass(frozen=True, slots=True)
class Unfused:
    """One node that was meant to work on integers, and why it does not."""

    node: str
    op: str
    reason: str


def find_unfused(optimized: OptimizedModel) -> dict[ir.Node, Unfused]:
    """Return the nodes of the optimized graph that dequantize what they read, in its order.

    Counted are nodes with stored integers, and those with quantizers on all sides. A node with a
    float activation on one side was never meant to be quantized, and is not.
    """
    quantizers = Quantizers(optimized.model)
    origins = optimized.origins()
    found = {}
    for node in optimized.model.graph.all_nodes():
        if node.op_type in LINEAR_QUANTIZERS or is_integer_op(node.op_type):
            continue
        if _reads_stored(node) or (_reads_only_quantized(node) and _is_quantized_behind(node)):
            origin = origins.get(node, node)
            name = origin.name or origin.outputs[0].name or origin.op_type
            found[node] = Unfused(name, origin.op_type, _explain_float(node, quantizers))
    return found


def _dequantizers(node: ir.Node) -> list[ir.Node]:
    makers = (value.producer() for value in node.inputs if value is not None)
    return [maker for maker in makers if maker is not None and maker.op_type == "DequantizeLinear"]


def _reads_only_quantized(node: ir.Node) -> bool:
    dequantizers = _dequantizers(node)
    computed = [
        value.producer()
        for value in node.inputs
        if value is not None and not value.is_initializer()
    ]
    return bool(dequantizers) and all(maker in dequantizers for maker in computed)


def _reads_stored(node: ir.Node) -> bool:
    """Whether a weight is dequantized for it; an int32 bias alone may be added in float."""
    integers = (maker.inputs[0] for maker in _dequantizers(node))
    return any(
        value is not None and value.is_initializer() and value.dtype != ir.DataType.INT32
        for value in integers
    )


def _is_quantized_behind(node: ir.Node) -> bool:
    readers = [use.node for value in node.outputs for use in value.uses()]
    return any(reader.op_type == "QuantizeLinear" for reader in readers)


# The reasons ------------------------------------------------------------------------------------


class _NodeContext:
    """A node in an optimized graph, with the quantizers that still stand around it."""

    def __init__(self, node: ir.Node, quantizers: Quantizers) -> None:
        self.node = node
        self.op = node.op_type.removeprefix("Fused")
        rule = OPERATORS.get(self.op) or OpRule(self.op)
        self.places = rule.data_inputs(node)
        self.inputs = [quantizers.quantizer_before(node, place) for place in self.places]
        self.bias = quantizers.quantizer_before(node, 2) if self.op in ("Conv", "Gemm") else None
        self.has_float_bias = self.bias is None and (
            self.op in ("Conv", "Gemm") and len(node.inputs) > 2 and node.inputs[2] is not None
        )
        uses = [use for value in node.outputs for use in value.uses()]
        self.outputs = [
            quantizers.found[use.node]
            for use in uses
            if use.node.op_type == "QuantizeLinear" and use.idx == 0
        ]
        self.float_readers = [use.node for use in uses if use.node.op_type != "QuantizeLinear"]
        self.is_output = any(value.is_graph_output() for value in node.outputs)

    @property
    def activations(self) -> list[Quantizer]:
        """All quantizers but that of a stored weight."""
        first = self.inputs[:1] if self.op in ("Conv", "Gemm") else self.inputs
        return [quantizer for quantizer in first if quantizer is not None] + self.outputs


def _explain_float(node: ir.Node, quantizers: Quantizers) -> str:
    """Return why the runtime could not fuse the quantizers around a node of its graph."""
    c = _NodeContext(node, quantizers)
    for rule in _RULES:
        for reason in rule(c):
            return reason
    return "ONNX Runtime fuses no quantizers with it here"


def _has_no_kernel(c: _NodeContext) -> Iterator[str]:
    if c.op not in _COMPUTED | _MOVING:
        yield f"ONNX Runtime has no integer kernel for {c.op}"
    mode = c.node.attributes.get_string("mode", "nearest")
    if c.op == "Resize" and mode != "nearest":
        yield f"ONNX Runtime resizes integers by the nearest only, not {mode}"


def _has_other_integers(c: _NodeContext) -> Iterator[str]:
    for place, quantizer in zip(c.places, c.inputs, strict=True):
        value = c.node.inputs[place]
        if quantizer is None and value is not None:
            yield f"its input {value.name!r} is float: it has no Q/DQ pair"
    for quantizer in (*c.inputs, *c.outputs):
        scale = None if quantizer is None else quantizer.node.inputs[1]
        if scale is not None and scale.producer() is not None:
            yield f"the scale {scale.name!r} is computed at run time"
    for quantizer in (*c.inputs, *c.outputs):
        kind = None if quantizer is None else quantizer.stored_type
        if kind is None or kind in _BYTES:
            continue
        if c.op not in _MOVING or c.op in ("MaxPool", "Resize"):
            yield f"ONNX Runtime's {c.op} works on 8 bits only, and not on {kind.name.lower()}"
    for quantizer in c.activations:
        if quantizer.scale is not None and quantizer.scale.size > 1 and c.op != "MatMul":
            yield f"its activations have {quantizer.scale.size} scales, one for each channel"


def _keeps_activation(c: _NodeContext) -> Iterator[str]:
    fused = c.node.attributes.get("activation")
    if fused is None:
        return
    for quantizer in c.outputs:
        lowest = _LOWEST.get(quantizer.stored_type or ir.DataType.UINT8)
        zero_point = quantizer.zero_point
        if fused.value == "Relu" and zero_point is not None and lowest is not None:
            yield (
                f"the Relu behind it is no part of its quantizer, whose zero point is "
                f"{int(zero_point.reshape(-1)[0])} and not {lowest}"
            )
    yield f"{fused.value} stands between it and its quantizer, and has no pair of its own"


def _has_split_weight(c: _NodeContext) -> Iterator[str]:
    weight = c.inputs[1] if c.op in ("Gemm", "MatMul") and len(c.inputs) > 1 else None
    if weight is None or weight.scale is None or weight.scale.size < 2:
        return
    if block := weight.node.attributes.get_int("block_size", 0):
        yield f"its weight has a scale for each block of {block} values"
    axis = weight.node.attributes.get_int("axis", 1)
    if c.op == "Gemm" and axis % 2 == bool(c.node.attributes.get_int("transB", 0)):
        yield f"its weight has scales along axis {axis}, across which it is summed up"


def _writes_float(c: _NodeContext) -> Iterator[str]:
    if c.op in ("MatMul", "Gemm") and not c.outputs:
        if c.has_float_bias:
            yield "its bias is float and its output has no Q/DQ pair: only an int32 bias will do"
        return
    name = c.node.outputs[0].name
    if not c.outputs:
        yield f"its output {name!r} has no Q/DQ pair"
    elif c.is_output:
        yield f"its output {name!r} is also an output of the model, in float"
    elif c.float_readers:
        reader = name_of(c.float_readers[0])
        yield f"its output {name!r} is also read in float, by {reader!r}"


def _has_wrong_bias(c: _NodeContext) -> Iterator[str]:
    if c.bias is None:
        return
    if c.bias.stored_type != ir.DataType.INT32:
        kind = "float" if c.bias.stored_type is None else c.bias.stored_type.name.lower()
        yield f"its bias is {kind}, and only int32 can be added to integers"
    scales = [quantizer.scale for quantizer in (*c.inputs, c.bias) if quantizer is not None]
    source, weight, given = (None if scale is None else scale.astype(float) for scale in scales)
    if source is None or weight is None or given is None:
        return
    if given.size not in (1, weight.size) or not np.allclose(given, source * weight, rtol=1e-3):
        yield "its bias has another scale than input scale x weight scale"


def _has_factors(c: _NodeContext) -> Iterator[str]:
    for name in ("alpha", "beta"):
        factor = c.node.attributes.get_float(name, 1.0)
        if c.op == "Gemm" and factor != 1.0:
            yield f"its {name} is {factor:g}, and ONNX Runtime's integer Gemm has none"


def _mixes_types(c: _NodeContext) -> Iterator[str]:
    kinds = {quantizer.stored_type for quantizer in c.activations} - {None}
    if len(kinds) > 1:
        names = " and ".join(sorted(kind.name.lower() for kind in kinds if kind is not None))
        yield f"it reads and writes {names}, and its kernel wants one type"
    if c.op in _PRODUCTS and len(c.inputs) > 1:
        source, weight = (None if q is None else q.stored_type for q in c.inputs[:2])
        if source == ir.DataType.INT8 and weight == ir.DataType.UINT8:
            yield "its activations are int8 and its weight is uint8, which no kernel takes"


def _changes_scale(c: _NodeContext) -> Iterator[str]:
    if c.op not in _MOVING:
        return
    before = c.inputs[0]
    for after in c.outputs:
        if before is None or before.scale is None or after.scale is None:
            continue
        pair = float(before.scale.reshape(-1)[0]), float(after.scale.reshape(-1)[0])
        if not np.array_equal(before.scale, after.scale):
            yield (
                f"the pairs before and behind it have the scales {pair[0]:g} and {pair[1]:g}, so "
                "that it cannot pass the integers on"
            )
        elif not np.array_equal(before.zero_point, after.zero_point):  # type: ignore[arg-type]
            yield "the pairs before and behind it have different zero points"


_RULES: tuple[Callable[[_NodeContext], Iterator[str]], ...] = (
    _has_no_kernel,
    _keeps_activation,
    _has_other_integers,
    _has_split_weight,
    _writes_float,
    _mixes_types,
    _has_wrong_bias,
    _has_factors,
    _changes_scale,
)
