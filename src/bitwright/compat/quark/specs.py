"""How tensors of a layer are quantized, by the names of Quark's configurations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, make_dataclass
from enum import Enum
from typing import Any

from bitwright.compat.options import find_name
from bitwright.errors import RecipeError, did_you_mean
from bitwright.numerics.types import INT8, QType, qtype


class CalibMethod(Enum):
    """How a range is chosen."""

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
    """How one kind of tensor is quantized; each number type has a class of its own."""

    symmetric: bool = True
    scale_type: ScaleType = ScaleType.Float32
    calibration_method: CalibMethod = CalibMethod.Percentile
    quant_granularity: QuantGranularity = QuantGranularity.Tensor
    data_type: QType = INT8

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Spec:
        """Return the spec of plain names: of its class under `spec`, of enumerations, of a type."""
        settings = dict(given)
        kind: type[Spec] = find_name(settings.pop("spec", "Spec"), _CLASSES, "spec")
        for key, enum in _ENUMS.items():
            if isinstance(settings.get(key), str):
                name = settings[key].removeprefix(f"{enum.__name__}.")
                settings[key] = find_name(name, enum.__members__, key)
        if "data_type" in settings:
            settings["data_type"] = qtype(settings["data_type"])
        return kind(**settings)


QTensorConfig = Spec

_ENUMS: dict[str, type[Enum]] = {
    "scale_type": ScaleType,
    "calibration_method": CalibMethod,
    "quant_granularity": QuantGranularity,
}


def _spec(name: str, data_type: str, doc: str, **defaults: Any) -> type[Spec]:
    """Return the class of a number type: a `Spec` with other defaults."""
    kinds = {field.name: field.type for field in fields(Spec)}
    defaults["data_type"] = qtype(data_type)
    return make_dataclass(
        name,
        [(key, kinds[key], value) for key, value in defaults.items()],
        bases=(Spec,),
        namespace={"__doc__": doc, "__module__": __name__},
        frozen=True,
        slots=True,
    )


_ASYMMETRIC = {"symmetric": False}
_IN_POWERS = {"scale_type": ScaleType.PowerOf2, "calibration_method": CalibMethod.MinMSE}
_FLOAT = {"calibration_method": CalibMethod.MinMax}

Int8Spec = _spec("Int8Spec", "int8", "int8, symmetric.")
UInt8Spec = _spec("UInt8Spec", "uint8", "uint8, asymmetric.", **_ASYMMETRIC)
XInt8Spec = _spec(
    "XInt8Spec", "int8", "int8 with a power-of-two scale, for CNNs on the NPU.", **_IN_POWERS
)
Int16Spec = _spec("Int16Spec", "int16", "int16, symmetric.")
UInt16Spec = _spec("UInt16Spec", "uint16", "uint16, asymmetric.", **_ASYMMETRIC)
Int32Spec = _spec("Int32Spec", "int32", "int32, symmetric.")
UInt32Spec = _spec("UInt32Spec", "uint32", "uint32, asymmetric.", **_ASYMMETRIC)
Float16Spec = _spec("Float16Spec", "float16", "float16.", **_FLOAT)
BFloat16Spec = _spec("BFloat16Spec", "bfloat16", "bfloat16.", **_FLOAT)
BFP16Spec = _spec("BFP16Spec", "bfp16", "Blocks of 8 values with one exponent.", **_FLOAT)
MXInt8Spec = _spec("MXInt8Spec", "mxint8", "MX blocks of int8.", **_FLOAT)
MXFP8E5M2Spec = _spec("MXFP8E5M2Spec", "mxfp8e5m2", "MX blocks of float8 E5M2.", **_FLOAT)
MXFP8E4M3Spec = _spec("MXFP8E4M3Spec", "mxfp8e4m3", "MX blocks of float8 E4M3.", **_FLOAT)
MXFP6E3M2Spec = _spec("MXFP6E3M2Spec", "mxfp6e3m2", "MX blocks of float6 E3M2.", **_FLOAT)
MXFP6E2M3Spec = _spec("MXFP6E2M3Spec", "mxfp6e2m3", "MX blocks of float6 E2M3.", **_FLOAT)
MXFP4E2M1Spec = _spec("MXFP4E2M1Spec", "mxfp4e2m1", "MX blocks of float4.", **_FLOAT)
MX4Spec = _spec("MX4Spec", "mx4", "Microexponents in 4 bits.", **_FLOAT)
MX6Spec = _spec("MX6Spec", "mx6", "Microexponents in 6 bits.", **_FLOAT)
MX9Spec = _spec("MX9Spec", "mx9", "Microexponents in 9 bits.", **_FLOAT)

_CLASSES: dict[str, type[Spec]] = {
    name: value for name, value in globals().items() if name.endswith("Spec")
}


@dataclass(frozen=True, slots=True)
class QLayerConfig:
    """The specs of a layer: what it reads, its weight, its bias, and what it writes.

    A tensor has one spec: that of the last layer with one that reads or writes it. `activation` is
    the old name of `input_tensors`.

    >>> QLayerConfig(input_tensors=UInt8Spec(), weight=Int8Spec()).weight.data_type
    INT8
    """

    input_tensors: Spec | None = None
    activation: Spec | None = None
    weight: Spec | None = None
    bias: Spec | None = None
    output_tensors: Spec | None = None

    def __post_init__(self) -> None:
        if self.activation is not None and self.input_tensors is not None:
            raise RecipeError("activation and input_tensors are the same; give input_tensors.")

    @property
    def reads(self) -> Spec | None:
        """The spec of the inputs, by either name."""
        return self.input_tensors or self.activation

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> QLayerConfig:
        """Return the layer of plain dicts; `input_tensors` counts before its old name."""
        layer = {key: Spec.from_dict(spec) for key, spec in given.items() if spec is not None}
        if "input_tensors" in layer:
            layer.pop("activation", None)
        unknown = layer.keys() - {field.name for field in fields(cls)}
        for name in sorted(unknown):
            raise RecipeError(
                f"a layer has no {name!r}.{did_you_mean(name, [f.name for f in fields(cls)])}"
            )
        return cls(**layer)
