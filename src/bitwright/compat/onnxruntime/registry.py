"""The operators that ONNX Runtime's tool quantizes, by format, as its registries list them.

>>> "Conv" in QDQRegistry, sorted(IntegerOpsRegistry)[:3]
(True, ['Attention', 'Conv', 'EmbedLayerNormalization'])
"""

from __future__ import annotations

from typing import Any, NoReturn

from onnx import NodeProto

from bitwright.compat.onnxruntime.enums import QuantizationMode
from bitwright.compat.onnxruntime.errors import NoOperatorQuantizersError
from bitwright.compat.onnxruntime.operators.activation import (
    QDQRemovableActivation,
    QLinearActivation,
)
from bitwright.compat.onnxruntime.operators.argmax import QArgMax
from bitwright.compat.onnxruntime.operators.attention import AttentionQuant
from bitwright.compat.onnxruntime.operators.base_operator import (
    QuantOperatorBase,
    refuse_operator_quantizer,
)
from bitwright.compat.onnxruntime.operators.binary_op import QLinearBinaryOp
from bitwright.compat.onnxruntime.operators.concat import QLinearConcat
from bitwright.compat.onnxruntime.operators.conv import ConvInteger, QDQConv, QLinearConv
from bitwright.compat.onnxruntime.operators.direct_q8 import Direct8BitOp, QDQDirect8BitOp
from bitwright.compat.onnxruntime.operators.embed_layernorm import EmbedLayerNormalizationQuant
from bitwright.compat.onnxruntime.operators.gather import GatherQuant, QDQGather
from bitwright.compat.onnxruntime.operators.gavgpool import QGlobalAveragePool
from bitwright.compat.onnxruntime.operators.gemm import QDQGemm, QLinearGemm
from bitwright.compat.onnxruntime.operators.lstm import LSTMQuant
from bitwright.compat.onnxruntime.operators.matmul import MatMulInteger, QDQMatMul, QLinearMatMul
from bitwright.compat.onnxruntime.operators.maxpool import QDQMaxPool, QMaxPool
from bitwright.compat.onnxruntime.operators.norm import QDQNormalization
from bitwright.compat.onnxruntime.operators.pad import QDQPad, QPad
from bitwright.compat.onnxruntime.operators.pooling import QLinearPool
from bitwright.compat.onnxruntime.operators.qdq_base_operator import QDQOperatorBase
from bitwright.compat.onnxruntime.operators.resize import QDQResize, QResize
from bitwright.compat.onnxruntime.operators.softmax import QLinearSoftmax
from bitwright.compat.onnxruntime.operators.split import QDQSplit, QSplit
from bitwright.compat.onnxruntime.operators.where import QDQWhere, QLinearWhere

__all__ = [
    "CommonOpsRegistry",
    "CreateDefaultOpQuantizer",
    "CreateOpQuantizer",
    "CreateQDQQuantizer",
    "IntegerOpsRegistry",
    "QDQRegistry",
    "QLinearOpsRegistry",
    "QuantizationMode",
]


class Registry(dict[str, Any]):
    """Op types and their quantizer classes, to look at; an entry of the caller's is an error.

    >>> QDQRegistry["Erf"] = QDQOperatorBase  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    bitwright.compat.onnxruntime.errors.NoOperatorQuantizersError: a registry cannot be changed...
    """

    def _refuse(self, *arguments: Any, **options: Any) -> NoReturn:
        raise NoOperatorQuantizersError(
            "a registry cannot be changed, as Bitwright plans a model as a whole; name op types in "
            "op_types_to_quantize: in QDQ format any type can be given."
        )

    __setitem__ = __delitem__ = update = setdefault = _refuse
    pop = popitem = clear = _refuse


CommonOpsRegistry = Registry(
    Gather=GatherQuant,
    Transpose=Direct8BitOp,
    EmbedLayerNormalization=EmbedLayerNormalizationQuant,
)

IntegerOpsRegistry = Registry(
    Conv=ConvInteger,
    MatMul=MatMulInteger,
    Attention=AttentionQuant,
    LSTM=LSTMQuant,
    **CommonOpsRegistry,
)

QLinearOpsRegistry = Registry(
    ArgMax=QArgMax,
    Conv=QLinearConv,
    Gemm=QLinearGemm,
    MatMul=QLinearMatMul,
    Add=QLinearBinaryOp,
    Mul=QLinearBinaryOp,
    Relu=QLinearActivation,
    Clip=QLinearActivation,
    LeakyRelu=QLinearActivation,
    Sigmoid=QLinearActivation,
    MaxPool=QMaxPool,
    GlobalAveragePool=QGlobalAveragePool,
    Split=QSplit,
    Pad=QPad,
    Reshape=Direct8BitOp,
    Squeeze=Direct8BitOp,
    Unsqueeze=Direct8BitOp,
    Flatten=Direct8BitOp,
    Resize=QResize,
    AveragePool=QLinearPool,
    Concat=QLinearConcat,
    Softmax=QLinearSoftmax,
    Where=QLinearWhere,
    **CommonOpsRegistry,
)

QDQRegistry = Registry(
    Conv=QDQConv,
    ConvTranspose=QDQConv,
    Gemm=QDQGemm,
    Clip=QDQRemovableActivation,
    Relu=QDQRemovableActivation,
    Reshape=QDQDirect8BitOp,
    Transpose=QDQDirect8BitOp,
    Squeeze=QDQDirect8BitOp,
    Unsqueeze=QDQDirect8BitOp,
    Flatten=QDQDirect8BitOp,
    Resize=QDQResize,
    MaxPool=QDQMaxPool,
    AveragePool=QDQDirect8BitOp,
    Slice=QDQDirect8BitOp,
    Pad=QDQPad,
    MatMul=QDQMatMul,
    Split=QDQSplit,
    Gather=QDQGather,
    GatherElements=QDQGather,
    Where=QDQWhere,
    InstanceNormalization=QDQNormalization,
    LayerNormalization=QDQNormalization,
    BatchNormalization=QDQNormalization,
    TopK=QDQDirect8BitOp,
    CumSum=QDQOperatorBase,
)


def CreateDefaultOpQuantizer(onnx_quantizer: Any, node: NodeProto) -> QuantOperatorBase:  # noqa: N802
    """Return a quantizer of one node: an error that says what to use instead."""
    refuse_operator_quantizer("CreateDefaultOpQuantizer")


def CreateOpQuantizer(onnx_quantizer: Any, node: NodeProto) -> QuantOperatorBase:  # noqa: N802
    """Return a quantizer of one node: an error that says what to use instead."""
    refuse_operator_quantizer("CreateOpQuantizer")


def CreateQDQQuantizer(onnx_quantizer: Any, node: NodeProto) -> QDQOperatorBase:  # noqa: N802
    """Return a quantizer of one node: an error that says what to use instead."""
    refuse_operator_quantizer("CreateQDQQuantizer")
