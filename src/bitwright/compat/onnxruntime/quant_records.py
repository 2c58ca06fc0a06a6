"""What ONNX Runtime's quantizers note of tensors: parameters, names and readers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

import numpy as np
from onnx import TensorProto

from bitwright.compat.onnxruntime.enums import QuantizedValueType
from bitwright.compat.onnxruntime.errors import InvalidSettingError
from bitwright.errors import ArgumentError

__all__ = [
    "BiasToQuantize",
    "QDQBiasQuantInfo",
    "QDQQuantParamProvider",
    "QDQQuantTensorType",
    "QDQScaleZpInitializers",
    "QDQTensorQuantInfo",
    "QDQTensorQuantParams",
    "QDQTensorQuantizedValue",
    "QDQTensorScaleZpInitializers",
    "QuantizationParams",
    "QuantizedInitializer",
    "QuantizedValue",
]


class QuantizationParams:
    """Scale, zero point and type of a tensor, by name.

    >>> params = QuantizationParams(scale=np.float32([0.5]), axis=None)
    >>> float(params["scale"][0]), params.get("zero_point"), len(params)
    (0.5, None, 2)
    """

    def __init__(self, **data: Any) -> None:
        for name, value in data.items():
            kinds = (int, type(None)) if name == "axis" else (int, float, str, np.ndarray)
            if not isinstance(value, kinds):
                raise ArgumentError(
                    f"{name!r} of quantization parameters is a number, a word or an array, not "
                    f"{value!r}."
                )
        scale = data.get("scale")
        if scale is not None and getattr(scale, "dtype", None) not in (np.float32, np.float16):
            raise InvalidSettingError(f"a scale is a float32 or float16 array, not {scale!r}.")
        self.data = data

    def get(self, key: str, default_value: Any = None) -> Any:
        """Return a value, or the default."""
        return self.data.get(key, default_value)

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def __getitem__(self, key: str) -> Any:
        return self.data[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.data[key] = value

    def __len__(self) -> int:
        return len(self.data)


@dataclass(eq=False)
class QuantizedInitializer:
    """A weight, and its integers."""

    name: str
    initializer: Any
    rmins: Any
    rmaxs: Any
    zero_points: Any
    scales: Any
    data: Sequence[Any] = ()
    quantized_data: Sequence[Any] = ()
    axis: int | None = None


class QuantizedValue:
    """The names that a quantized tensor and its parameters have in a model.

    >>> names = "x", "x_quantized", "x_scale", "x_zero_point"
    >>> QuantizedValue(*names, QuantizedValueType.Input).q_name
    'x_quantized'
    """

    def __init__(
        self,
        name: str,
        new_quantized_name: str,
        scale_name: str,
        zero_point_name: str,
        quantized_value_type: QuantizedValueType,
        axis: int | None = None,
        node_type: str | None = None,
        node_qtype: int | None = None,
        scale_type: int | None = None,
    ) -> None:
        self.original_name = name
        self.q_name = new_quantized_name
        self.scale_name = scale_name
        self.zp_name = zero_point_name
        self.value_type = quantized_value_type
        self.axis = axis
        self.node_type = node_type
        self.node_qtype = node_qtype
        self.scale_type = scale_type


@dataclass(eq=False)
class BiasToQuantize:
    """A bias, and the tensors whose scales give its own."""

    bias_name: str
    input_name: str
    weight_name: str


class QDQQuantTensorType(Enum):
    """What a tensor with a pair is."""

    ACTIVATION = 0
    WEIGHT = 1
    BIAS = 2


@dataclass
class QDQQuantParamProvider:
    """The input of a node that an output has its parameters from."""

    input_name: str
    node_name: str


class QDQTensorQuantInfo:
    """How a tensor is to be quantized."""

    def __init__(
        self,
        tensor_type: QDQQuantTensorType = QDQQuantTensorType.ACTIVATION,
        quant_para_provider: QDQQuantParamProvider | None = None,
        axis: int | None = None,
        data_type: int | None = None,
    ) -> None:
        if data_type is None:
            raise ArgumentError("QDQTensorQuantInfo needs the data_type of the tensor.")
        self.tensor_type = tensor_type
        self.quant_para_provider = quant_para_provider
        self.axis = axis
        self.is_shared = quant_para_provider is not None
        self.data_type = data_type


@dataclass
class QDQBiasQuantInfo:
    """A bias of a node, and the tensors whose scales give its own."""

    node_name: str
    input_name: str
    weight_name: str
    beta: float


_Held = TypeVar("_Held")


@dataclass
class _PerReader(Generic[_Held]):
    """Something of a tensor, and the same after a conversion of its type that some nodes read."""

    original: _Held
    converted: _Held | None
    converted_recv_nodes: set[str] | None

    def get_for_consumer(self, consumer_node_name: str) -> _Held:
        """Return what holds for a node that reads the tensor."""
        nodes = self.converted_recv_nodes
        if self.converted is None or (nodes is not None and consumer_node_name not in nodes):
            return self.original
        return self.converted


class QDQTensorQuantParams(_PerReader[QuantizationParams]):
    """The parameters of a tensor for each of its readers.

    >>> first, second = QuantizationParams(bits=8), QuantizationParams(bits=16)
    >>> params = QDQTensorQuantParams(first, second, {"add"})
    >>> params.get_for_consumer("add")["bits"], params.get_for_consumer("mul")["bits"]
    (16, 8)
    """


@dataclass
class QDQScaleZpInitializers:
    """The initializers that hold a scale and a zero point."""

    scale: TensorProto
    zero_point: TensorProto


@dataclass
class QDQTensorScaleZpInitializers:
    """The initializers of a tensor's parameters, and those after a conversion of its type."""

    original: QDQScaleZpInitializers
    converted: QDQScaleZpInitializers | None
    converted_recv_nodes: set[str] | None


class QDQTensorQuantizedValue(_PerReader[QuantizedValue]):
    """The names of a quantized tensor for each of its readers."""
