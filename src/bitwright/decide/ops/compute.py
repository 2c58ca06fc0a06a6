"""Operators that multiply weights: convolutions, matrix products, normalizations, recurrences."""

from __future__ import annotations

from typing import Literal

import onnx_ir as ir

from bitwright.decide.ops.rule import OpRule, Skip
from bitwright.graph.constants import is_constant


def _gemm_axis(node: ir.Node, index: int) -> int:
    if index == 0:
        return 1 if node.attributes.get_int("transA", 0) else 0
    return 0 if node.attributes.get_int("transB", 0) else 1


def _matmul_axis(node: ir.Node, index: int) -> int | None:
    """Columns of a matrix B; the kernel takes one scale for A, and one for a batch of matrices."""
    weight = node.inputs[index]
    rank = 0 if weight is None or weight.shape is None else len(weight.shape)
    return 1 if index == 1 and rank == 2 else None


def _refuse_scaled_gemm(node: ir.Node) -> Skip | None:
    # Integer kernels know neither factor, and constant operands had theirs folded in `prepare`.
    if node.attributes.get_float("alpha", 1.0) != 1.0:
        return Skip("its alpha is not 1 and neither operand is constant")
    has_addend = len(node.inputs) > 2 and node.inputs[2] is not None
    if has_addend and node.attributes.get_float("beta", 1.0) != 1.0:
        return Skip("its beta is not 1 and C is computed at run time")
    return None


def _refuse_unknown_weight(node: ir.Node) -> Skip | None:
    """A convolution whose weight is computed at run time cannot fold its quantization."""
    if not is_constant(node.inputs[1]):
        return Skip("its weight is computed at run time")
    return None


def _normalization(op_type: str, normalizes: Literal["channels", "last axes"]) -> OpRule:
    # The scale vector has one element for each channel: one scale for all of them, as no kernel of
    # the runtime takes more.
    return OpRule(
        op_type,
        normalizes=normalizes,
        data=(0,),
        weights=(1,),
        bias=2,
        outputs=(0,),
        float_only=True,
    )


COMPUTE_RULES = (
    OpRule(
        "Conv",
        linear="convolution",
        data=(0,),
        weights=(1,),
        bias=2,
        channel_axis=lambda node, index: 0,
        fixed_axis=True,
        refuse=_refuse_unknown_weight,
        integer_op="QLinearConv",
        dynamic_op="ConvInteger",
        float32_scales="fused",
    ),
    OpRule(
        "ConvTranspose",
        linear="convolution",
        data=(0,),
        weights=(1,),
        bias=2,
        channel_axis=lambda node, index: 1,
        tile=lambda node: node.attributes.get_int("group", 1),
        refuse=_refuse_unknown_weight,
    ),
    OpRule(
        "Gemm",
        linear="matrix",
        data=(),
        weights=(0, 1),
        bias=2,
        channel_axis=_gemm_axis,
        fixed_axis=True,
        refuse=_refuse_scaled_gemm,
        integer_op="QGemm",
        needs_constant_factor=True,
        writes_float=True,
        dynamic_op="MatMulInteger",
        block_op="MatMulNBits",
        float32_scales="fused",
    ),
    OpRule(
        "MatMul",
        linear="matrix",
        data=(),
        weights=(0, 1),
        channel_axis=_matmul_axis,
        fixed_axis=True,
        integer_op="QLinearMatMul",
        needs_constant_factor=True,
        writes_float=True,
        dynamic_op="MatMulInteger",
        block_op="MatMulNBits",
    ),
    _normalization("InstanceNormalization", "channels"),
    _normalization("LayerNormalization", "last axes"),
    _normalization("BatchNormalization", "channels"),
    OpRule("RMSNormalization", normalizes="last axes", data=(0,), weights=(1,), quantizable=False),
    OpRule(
        "SimplifiedLayerNormalization",
        normalizes="last axes",
        data=(0,),
        weights=(1,),
        quantizable=False,
    ),
    OpRule(
        "EmbedLayerNormalization",
        domain="com.microsoft",
        needs_all_inputs_quantized=True,
        integer_op="QEmbedLayerNormalization",
        dynamic_op="QEmbedLayerNormalization",
        float32_scales="written",
    ),
    OpRule(
        "Attention",
        domain="com.microsoft",
        data=(0,),
        weights=(1,),
        quantizable=False,
        dynamic_op="QAttention",
    ),
    OpRule("MoE", domain="com.microsoft", data=(0,), quantizable=False, block_op="QMoE"),
    OpRule("LSTM", data=(0,), weights=(1, 2), quantizable=False, dynamic_op="DynamicQuantizeLSTM"),
    OpRule("GRU", data=(0,), weights=(1, 2), quantizable=False),
    OpRule("RNN", data=(0,), weights=(1, 2), quantizable=False),
)
