"""How tensors of a layer are quantized, by the names of Quark's configurations."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from bitwright.errors import RecipeError
from bitwright.numerics.types import (
    BFLOAT16,
    BFP16,
    FLOAT16,
    INT8,
    INT16,
    INT32,
    MX4,
    MX6,
    MX9,
    MXFP4E2M1,
    MXFP6E2M3,
    MXFP6E3M2,
    MXFP8E4M3,
    MXFP8E5M2,
    MXINT8,
    UINT8,
    UINT16,
    UINT32,
    QType,
)

__all__ = [
    "BFP16Spec",
    "BFloat16Spec",
    "CalibMethod",
    "Float16Spec",
    "Int8Spec",
    "Int16Spec",
    "Int32Spec",
    "MX4Spec",
    "MX6Spec",
    "MX9Spec",
    "MXFP4E2M1Spec",
    "MXFP6E2M3Spec",
    "MXFP6E3M2Spec",
    "MXFP8E4M3Spec",
    "MXFP8E5M2Spec",
    "MXInt8Spec",
    "QLayerConfig",
    "QuantGranularity",
    "ScaleType",
    "Spec",
    "UInt8Spec",
    "UInt16Spec",
    "UInt32Spec",
    "XInt8Spec",
]


class CalibMethod(Enum):
    """How a range is chosen.

    >>> CalibMethod.MinMSE.value
    1
    """

    MinMax = 0
    MinMSE = 1
    Percentile = 2
    Entropy = 3
    LayerwisePercentile = 4
    Distribution = 5


class ScaleType(Enum):
    """Which numbers a scale can be."""

    Float32 = 0
    PowerOf2 = 1
    Int16 = 2


class QuantGranularity(Enum):
    """How many values share a scale."""

    Tensor = 0
    Channel = 1
    Group = 2


@dataclass(frozen=True, slots=True)
class Spec:
    """How one kind of tensor is quantized; each number type has a class of its own.

    >>> UInt8Spec().symmetric, XInt8Spec().scale_type
    (False, <ScaleType.PowerOf2: 1>)
    """

    symmetric: bool = True
    scale_type: ScaleType = ScaleType.Float32
    calibration_method: CalibMethod = CalibMethod.Percentile
    quant_granularity: QuantGranularity = QuantGranularity.Tensor
    data_type: QType = INT8


@dataclass(frozen=True, slots=True)
class Int8Spec(Spec):
    """int8, symmetric."""


@dataclass(frozen=True, slots=True)
class UInt8Spec(Spec):
    """uint8, asymmetric."""

    symmetric: bool = False
    data_type: QType = UINT8


@dataclass(frozen=True, slots=True)
class XInt8Spec(Spec):
    """int8 with a power-of-two scale, for CNNs on the NPU."""

    scale_type: ScaleType = ScaleType.PowerOf2
    calibration_method: CalibMethod = CalibMethod.MinMSE


@dataclass(frozen=True, slots=True)
class Int16Spec(Spec):
    """int16, symmetric."""

    data_type: QType = INT16


@dataclass(frozen=True, slots=True)
class UInt16Spec(Spec):
    """uint16, asymmetric."""

    symmetric: bool = False
    data_type: QType = UINT16


@dataclass(frozen=True, slots=True)
class Int32Spec(Spec):
    """int32, symmetric."""

    data_type: QType = INT32


@dataclass(frozen=True, slots=True)
class UInt32Spec(Spec):
    """uint32, asymmetric."""

    symmetric: bool = False
    data_type: QType = UINT32


@dataclass(frozen=True, slots=True)
class Float16Spec(Spec):
    """float16."""

    calibration_method: CalibMethod = CalibMethod.MinMax
    data_type: QType = FLOAT16


@dataclass(frozen=True, slots=True)
class BFloat16Spec(Float16Spec):
    """bfloat16."""

    data_type: QType = BFLOAT16


@dataclass(frozen=True, slots=True)
class BFP16Spec(Float16Spec):
    """Blocks of 8 values with one exponent."""

    data_type: QType = BFP16


@dataclass(frozen=True, slots=True)
class MXInt8Spec(Float16Spec):
    """MX blocks of int8."""

    data_type: QType = MXINT8


@dataclass(frozen=True, slots=True)
class MXFP8E5M2Spec(Float16Spec):
    """MX blocks of float8 with 5 bits of exponent."""

    data_type: QType = MXFP8E5M2


@dataclass(frozen=True, slots=True)
class MXFP8E4M3Spec(Float16Spec):
    """MX blocks of float8 with 4 bits of exponent."""

    data_type: QType = MXFP8E4M3


@dataclass(frozen=True, slots=True)
class MXFP6E3M2Spec(Float16Spec):
    """MX blocks of float6 with 3 bits of exponent."""

    data_type: QType = MXFP6E3M2


@dataclass(frozen=True, slots=True)
class MXFP6E2M3Spec(Float16Spec):
    """MX blocks of float6 with 2 bits of exponent."""

    data_type: QType = MXFP6E2M3


@dataclass(frozen=True, slots=True)
class MXFP4E2M1Spec(Float16Spec):
    """MX blocks of float4."""

    data_type: QType = MXFP4E2M1


@dataclass(frozen=True, slots=True)
class MX4Spec(Float16Spec):
    """Microexponents in 4 bits."""

    data_type: QType = MX4


@dataclass(frozen=True, slots=True)
class MX6Spec(Float16Spec):
    """Microexponents in 6 bits."""

    data_type: QType = MX6


@dataclass(frozen=True, slots=True)
class MX9Spec(Float16Spec):
    """Microexponents in 9 bits."""

    data_type: QType = MX9


@dataclass(frozen=True, slots=True, kw_only=True)
class QLayerConfig:
    """The specs of a layer: what it reads, its weight and its bias.

    `activation` is the old name of `input_tensors`.

    >>> QLayerConfig(input_tensors=UInt8Spec(), weight=Int8Spec()).weight.data_type
    INT8
    """

    input_tensors: Spec | None = None
    weight: Spec | None = None
    bias: Spec | None = None
    output_tensors: Spec | None = None
    activation: Spec | None = None

    def __post_init__(self) -> None:
        if self.activation is not None and self.input_tensors is not None:
            raise RecipeError("activation and input_tensors are the same; give input_tensors.")
        if self.output_tensors not in (None, self.reads):
            raise RecipeError(
                "output_tensors must be like input_tensors: a tensor has one type for the layer "
                "that writes it and the one that reads it."
            )

    @property
    def reads(self) -> Spec | None:
        """What the layer reads, by either name."""
        return self.input_tensors or self.activation
