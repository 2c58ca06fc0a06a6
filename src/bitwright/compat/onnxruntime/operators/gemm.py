"""The operator quantizers of `onnxruntime.quantization.operators.gemm`."""

from __future__ import annotations

from typing import Any

import onnx

from bitwright.compat.onnxruntime.operators.base_operator import operator_quantizer
from bitwright.compat.onnxruntime.operators.matmul import QOpMatMul
from bitwright.compat.onnxruntime.operators.qdq_base_operator import QDQOperatorBase

__all__ = ["QDQGemm", "QLinearGemm", "get_beta", "is_B_transposed", "set_default_beta"]

QLinearGemm = operator_quantizer("QLinearGemm", QOpMatMul)
QDQGemm = operator_quantizer("QDQGemm", QDQOperatorBase)


def is_B_transposed(gemm_node: onnx.NodeProto) -> bool:  # noqa: N802
    """Return whether a Gemm reads its second input transposed."""
    return bool(_attribute(gemm_node, "transB", 0))


def get_beta(gemm_node: onnx.NodeProto) -> float:
    """Return what a Gemm multiplies its bias with."""
    return float(_attribute(gemm_node, "beta", 1.0))


def set_default_beta(gemm_node: onnx.NodeProto) -> float:
    """Let a Gemm add its bias as it is, and return that factor.

    >>> node = onnx.helper.make_node("Gemm", ["a", "b", "c"], ["y"], beta=2.0)
    >>> get_beta(node), set_default_beta(node), get_beta(node)
    (2.0, 1.0, 1.0)
    """
    for attribute in gemm_node.attribute:
        if attribute.name == "beta":
            attribute.f = 1.0
    return 1.0


def _attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    found = (onnx.helper.get_attribute_value(a) for a in node.attribute if a.name == name)
    return next(found, default)
