"""Rules for activations and for element-wise arithmetic."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from bitwright.decide.ops.rule import OpRule, Skip
from bitwright.graph.constants import constant_of, input_at

__all__ = ["ELEMENTWISE_RULES"]

# An additive constant this large is a mask or a sentinel: in one range with the values beside
# it, one quantization step would be wider than all of them.
_HUGE = 1e4


def _clip_bounds(node: ir.Node) -> tuple[float, float] | Skip:
    bounds = []
    for index, name, missing in ((1, "min", -math.inf), (2, "max", math.inf)):
        value = input_at(node, index)
        if value is not None:
            array = constant_of(value)
            if array is None:
                return Skip(f"its {name} is computed at run time")
            bounds.append(float(array.reshape(-1)[0]))
        else:
            found = node.attributes.get(name)
            bounds.append(missing if found is None else float(found.value))
    return bounds[0], bounds[1]


def _refuse_sentinels(node: ir.Node) -> Skip | None:
    for value in node.inputs:
        array = constant_of(value)
        if array is None or array.dtype.kind != "f" or array.size == 0:
            continue
        largest = float(np.max(np.abs(array.astype(np.float64))))
        if not largest < _HUGE:
            name = value.name if value is not None else ""
            return Skip(
                f"its constant {name!r} reaches {largest:.3g}, like an attention mask, and would "
                "swallow the range of the values beside it"
            )
    return None


def _generic(op_type: str, *, by_default: bool = True) -> OpRule:
    return OpRule(op_type=op_type, needs_all_inputs_quantized=True, by_default=by_default)


ELEMENTWISE_RULES = (
    OpRule(
        op_type="Relu", data=(0,), bounds=lambda node: (0.0, math.inf), needs_quantized_input=True
    ),
    OpRule(op_type="Clip", data=(0,), bounds=_clip_bounds, needs_quantized_input=True),
    OpRule(op_type="Add", needs_all_inputs_quantized=True, refuse=_refuse_sentinels),
    OpRule(
        op_type="Sub", needs_all_inputs_quantized=True, refuse=_refuse_sentinels, by_default=False
    ),
    OpRule(
        op_type="Min", needs_all_inputs_quantized=True, refuse=_refuse_sentinels, by_default=False
    ),
    OpRule(
        op_type="Max", needs_all_inputs_quantized=True, refuse=_refuse_sentinels, by_default=False
    ),
    OpRule(op_type="Concat", needs_all_inputs_quantized=True, refuse=_refuse_sentinels),
    OpRule(op_type="Where", data=(1, 2), needs_quantized_input=True, refuse=_refuse_sentinels),
    OpRule(op_type="Softmax", needs_all_inputs_quantized=True, output_range=(0.0, 1.0)),
    OpRule(op_type="ArgMax", data=(0,), outputs=()),
    OpRule(op_type="CumSum", data=(0,)),
    OpRule(op_type="ReduceMean", data=(0,), by_default=False),
    OpRule(op_type="PRelu", by_default=False),
    _generic("Mul"),
    _generic("Div", by_default=False),
    _generic("Sigmoid"),
    _generic("HardSigmoid", by_default=False),
    _generic("LeakyRelu"),
    _generic("GlobalAveragePool"),
    _generic("EmbedLayerNormalization"),
    _generic("Tanh", by_default=False),
    _generic("Gelu", by_default=False),
    _generic("Erf", by_default=False),
    _generic("LpNormalization", by_default=False),
)
