"""Facts of quantized models: quantizers, integer operators, where parameters and notes stand."""

from __future__ import annotations

from dataclasses import dataclass, field

QUANTIZERS = frozenset({"QuantizeLinear", "VitisQuantizeLinear", "ExtendedQuantizeLinear"})
DEQUANTIZERS = frozenset({"DequantizeLinear", "VitisDequantizeLinear", "ExtendedDequantizeLinear"})
FIX_NEURONS = frozenset({"FixNeuron", "VitisFixNeuron"})
"""Operators that quantize and dequantize at once."""
BLOCK_ROUNDERS = frozenset(
    {"BFPFixNeuron", "BFPQuantizeDequantize", "MXFixNeuron", "MXQuantizeDequantize"}
)
"""Operators that round to a shared-exponent format, under both names that they have."""
ROUNDERS = FIX_NEURONS | BLOCK_ROUNDERS
"""Operators that round to a number format and give floats back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerOp:
    """An operator that computes with integers; inputs are given by their index."""

    op_type: str = field(kw_only=False)
    computes: str = field(kw_only=False)
    """The float operator whose work it does."""
    source_zero: int | None = None
    """The zero point of its first input."""
    weight: tuple[int, int | None, int] | None = None
    """Its second factor or addend, and that one's scale and zero point."""
    weight_axis: int | None = None
    """The axis of the weight that its scales belong to."""
    bias: int | None = None
    result: tuple[int, int] | None = None
    """The scale and zero point of its result; None: it gives floats, or sums to make them of."""


_ROWS = (
    IntegerOp(
        "QLinearConv", "Conv", source_zero=2, weight=(3, 4, 5), weight_axis=0, bias=8, result=(6, 7)
    ),
    IntegerOp(
        "QLinearMatMul", "MatMul", source_zero=2, weight=(3, 4, 5), weight_axis=-1, result=(6, 7)
    ),
    IntegerOp(
        "QGemm", "Gemm", source_zero=2, weight=(3, 4, 5), weight_axis=-1, bias=6, result=(7, 8)
    ),
    IntegerOp("QLinearAdd", "Add", weight=(3, 4, 5), result=(6, 7)),
    IntegerOp("QLinearMul", "Mul", weight=(3, 4, 5), result=(6, 7)),
    IntegerOp("QLinearSigmoid", "Sigmoid", result=(3, 4)),
    IntegerOp("QLinearLeakyRelu", "LeakyRelu", result=(3, 4)),
    IntegerOp("QLinearAveragePool", "AveragePool", result=(3, 4)),
    IntegerOp("QLinearGlobalAveragePool", "GlobalAveragePool", result=(3, 4)),
    IntegerOp("QLinearReduceMean", "ReduceMean", result=(3, 4)),
    IntegerOp("QLinearSoftmax", "Softmax", result=(3, 4)),
    IntegerOp("QLinearConcat", "Concat", result=(0, 1)),
    IntegerOp("QLinearWhere", "Where", result=(7, 8)),
    IntegerOp("ConvInteger", "Conv", source_zero=2, weight=(1, None, 3)),
    IntegerOp("MatMulInteger", "MatMul", source_zero=2, weight=(1, None, 3)),
    IntegerOp("MatMulIntegerToFloat", "MatMul", source_zero=4, weight=(1, 3, 5)),
    IntegerOp("DynamicQuantizeMatMul", "MatMul"),
    IntegerOp("DynamicQuantizeLSTM", "LSTM"),
    IntegerOp("MatMulNBits", "MatMul"),
    IntegerOp("MatMulBnb4", "MatMul"),
    IntegerOp("GatherBlockQuantized", "Gather"),
    IntegerOp("QAttention", "Attention"),
    IntegerOp("QEmbedLayerNormalization", "EmbedLayerNormalization"),
    IntegerOp("QMoE", "MoE"),
)

INTEGER_OPS = {row.op_type: row for row in _ROWS}


def is_integer_op(op_type: str) -> bool:
    """Return whether an operator computes with integers, also one that has no row."""
    return op_type in INTEGER_OPS or op_type.startswith(("QLinear", "DynamicQuantize"))
