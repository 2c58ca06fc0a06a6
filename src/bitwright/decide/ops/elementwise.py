"""Operators that compute new values without weights: activations, arithmetic, pools, reductions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from bitwright.decide.ops.rule import OpRule, Skip
from bitwright.graph.constants import constant_of, input_at

# An additive constant this large is a mask or a sentinel: in one range with the values beside
# it, one quantization step would be wider than all of them.
_MIN_SENTINEL = 1e4


def _clip_bounds(node: ir.Node) -> tuple[float, float] | None:
    bounds = []
    for index, name, missing in ((1, "min", -math.inf), (2, "max", math.inf)):
        value = input_at(node, index)
        array = constant_of(value)
        if value is not None and array is None:
            return None
        given = node.attributes.get_float(name, missing)
        bounds.append(given if array is None else float(array.reshape(-1)[0]))
    return bounds[0], bounds[1]


def _hard_sigmoid_ends(node: ir.Node) -> tuple[float, float]:
    alpha, beta = (node.attributes.get_float(*one) for one in (("alpha", 0.2), ("beta", 0.5)))
    return (-beta / alpha, (1 - beta) / alpha) if alpha > 0 else (-math.inf, math.inf)


def refuse_sentinels(node: ir.Node) -> Skip | None:
    """Refuse a node one of whose constants is a mask."""
    for value in node.inputs:
        array = constant_of(value)
        if array is None or array.dtype.kind != "f" or array.size == 0:
            continue
        largest = float(np.max(np.abs(array.astype(np.float64))))
        if not largest < _MIN_SENTINEL:
            name = value.name if value is not None else ""
            return Skip(
                f"its constant {name!r} reaches {largest:.3g}, like an attention mask, and would "
                "swallow the range of the values beside it"
            )
    return None


def _refuse_counted_edges(node: ir.Node) -> Skip | None:
    """Refuse a pool whose windows reach over the edge and count pads: the kernels disagree."""
    attributes = node.attributes
    if attributes.get_int("ceil_mode", 0) and attributes.get_int("count_include_pad", 0):
        return Skip(
            "it rounds up and counts pads, and ONNX Runtime's integer kernel counts the places "
            "behind them, too"
        )
    return None


def _activation(op_type: str, **facts: Any) -> OpRule:
    facts = {"elementwise": "unary", "needs_all_inputs_quantized": True, **facts}
    return OpRule(op_type, activation="whole", **facts)


def _arithmetic(op_type: str, **facts: Any) -> OpRule:
    facts = {"activation": "part", "needs_all_inputs_quantized": True, **facts}
    return OpRule(op_type, elementwise="broadcast", **facts)


def _function(op_type: str, **facts: Any) -> OpRule:
    """A function of one input for which there is no quantization rule."""
    return OpRule(op_type, **{"elementwise": "unary", "quantizable": False, **facts})


ELEMENTWISE_RULES = (
    # Activation functions
    _activation(
        "Relu",
        homogeneous=True,
        data=(0,),
        needs_all_inputs_quantized=False,
        needs_quantized_input=True,
        bounds=lambda node: (0.0, math.inf),
        integer_op="Clip",
    ),
    _activation(
        "Clip",
        data=(0,),
        needs_all_inputs_quantized=False,
        needs_quantized_input=True,
        bounds=_clip_bounds,
        integer_op="Clip",
    ),
    _activation(
        "LeakyRelu", homogeneous=True, integer_op="QLinearLeakyRelu", float32_scales="fused"
    ),
    # Its slope may differ from element to element.
    _activation(
        "PRelu",
        elementwise="broadcast",
        homogeneous=True,
        by_default=False,
        needs_all_inputs_quantized=False,
    ),
    # Beyond 8, a sigmoid is within a twelfth of a level of 8 bits of 0 or 1.
    _activation(
        "Sigmoid",
        saturates=lambda node: (-8.0, 8.0),
        is_gate=True,
        output_range=(0.0, 1.0),
        integer_op="QLinearSigmoid",
        float32_scales="written",
    ),
    # The integer kernel takes longer than the float one with a quantizer behind it, and rounded
    # scores cost accuracy. QLinearSoftmax cuts 1 / scale down to a whole number: of 1/256 nothing
    # is lost, and of float32's 1/255 a 255th.
    _activation(
        "Softmax",
        elementwise=None,
        output_range=(0.0, 1.0),
        integer_op="QLinearSoftmax",
        integer_range=(0.0, 255 / 256),
        float_only=True,
        float32_scales="written",
    ),
    _activation(
        "HardSigmoid",
        saturates=_hard_sigmoid_ends,
        is_gate=True,
        output_range=(0.0, 1.0),
        by_default=False,
        has_form=True,
    ),
    _activation(
        "Tanh", saturates=lambda node: (-4.5, 4.5), output_range=(-1.0, 1.0), by_default=False
    ),
    _activation("Gelu", saturates=lambda node: (-4.5, math.inf), by_default=False),
    _activation("LogSoftmax", elementwise=None, quantizable=False),
    _activation("Elu", quantizable=False),
    _activation(
        "HardSwish", saturates=lambda node: (-3.0, math.inf), quantizable=False, has_form=True
    ),
    _activation("Mish", quantizable=False),
    _activation("Softplus", quantizable=False),
    # Arithmetic of tensors that are broadcast against each other
    _arithmetic(
        "Add",
        affine=True,
        neutral=(0, (0, 1)),
        refuse=refuse_sentinels,
        integer_op="QLinearAdd",
        float32_scales="fused",
    ),
    _arithmetic("Sub", affine=True, neutral=(0, (1,)), refuse=refuse_sentinels, by_default=False),
    _arithmetic(
        "Mul", affine=True, neutral=(1, (0, 1)), integer_op="QLinearMul", float32_scales="fused"
    ),
    _arithmetic("Div", affine=True, neutral=(1, (1,)), by_default=False),
    _arithmetic("Min", refuse=refuse_sentinels, by_default=False),
    _arithmetic("Max", refuse=refuse_sentinels, by_default=False),
    _arithmetic("Pow", neutral=(1, (1,)), quantizable=False),
    _arithmetic("Mean", activation=None, quantizable=False),
    _arithmetic("Sum", activation=None, quantizable=False),
    _arithmetic(
        "Where",
        activation=None,
        data=(1, 2),
        needs_all_inputs_quantized=False,
        needs_quantized_input=True,
        refuse=refuse_sentinels,
        integer_op="QLinearWhere",
        float32_scales="fused",
    ),
    # Functions of one tensor
    _function(
        "Erf",
        activation="part",
        quantizable=True,
        by_default=False,
        needs_all_inputs_quantized=True,
    ),
    _function("Abs", activation="part", homogeneous=True),
    *(_function(op_type, activation="part") for op_type in ("Exp", "Neg", "Sqrt")),
    *map(_function, "Cast Ceil Dropout Floor Log Reciprocal Round".split()),
    *map(_function, "Selu Sign Softsign ThresholdedRelu".split()),
    # Pools and reductions
    OpRule(
        # An average lies inside its inputs' range but seldom fills it: a scale of its own is finer.
        "AveragePool",
        pool=True,
        data=(0,),
        outputs=(0,),
        needs_quantized_input=True,
        refuse=_refuse_counted_edges,
        integer_op="QLinearAveragePool",
        float32_scales="fused",
    ),
    OpRule(
        "GlobalAveragePool",
        pool=True,
        needs_all_inputs_quantized=True,
        integer_op="QLinearGlobalAveragePool",
        float32_scales="fused",
    ),
    OpRule("GlobalMaxPool", pool=True, quantizable=False),
    OpRule("ArgMax", data=(0,), outputs=(), needs_quantized_input=True, integer_op="ArgMax"),
    OpRule("CumSum", data=(0,)),
    OpRule("ReduceMean", data=(0,), by_default=False, has_form=True),
    OpRule("LpNormalization", needs_all_inputs_quantized=True, by_default=False),
)
