"""Quantizes the tensors of a model one by one, from given ranges: weights, activations, biases.

They write initializers into `model`, a copy of the given one. Scales, zero points and integers are
Bitwright's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from bitwright.compat.onnxruntime.enums import QuantizationMode, QuantizedValueType, as_member
from bitwright.compat.options import RecipeParts
from bitwright.compat.quark.given_ranges import (
    QuantizationParams,
    QuantizerError,
    parameters_of_ranges,
)
from bitwright.compat.vai_q_onnx.enums import read_method, read_type
from bitwright.compat.vai_q_onnx.translate import choose_ranges, to_recipe
from bitwright.decide.ranges.methods import weight_range
from bitwright.numerics.quantize import quantize
from bitwright.numerics.scales import affine_parameters
from bitwright.numerics.types import INT32, QTYPES, QType
from bitwright.recipe import Recipe
from bitwright.support.array_types import Array

Quantized = tuple[list[str], list[str], list[str], list[onnx.NodeProto]]


@dataclass(frozen=True, slots=True)
class QuantizedValue:
    """Where the quantized form of a tensor is, and its parameters."""

    original_name: str
    q_name: str
    scale_name: str
    zp_name: str
    value_type: QuantizedValueType = QuantizedValueType.Initializer
    axis: int | None = None

    @property
    def names(self) -> tuple[str, str, str]:
        """The names of the integers, the zero point and the scale."""
        return self.q_name, self.zp_name, self.scale_name

    @classmethod
    def of(cls, name: str, parameters_of: str | None = None, **fields: Any) -> QuantizedValue:
        """Return the value of a tensor; its parameters are called after it, or after another."""
        owner = parameters_of or name
        return cls(name, f"{name}_quantized", f"{owner}_scale", f"{owner}_zero_point", **fields)


class TensorQuantizer:
    """Quantizes tensors of a model one by one, and remembers where each of them is."""

    def __init__(
        self,
        model: onnx.ModelProto,
        mode: Any,
        static: bool,
        tensors_range: Any,
        asked: RecipeParts,
    ) -> None:
        wanted = QuantizationMode.QLinearOps
        if as_member(QuantizationMode, mode, "quantization mode") is not wanted:
            raise QuantizerError("mode is QuantizationMode.QLinearOps; see quantize_dynamic.")
        if not static:
            raise QuantizerError("static is True; see quantize_dynamic for the other kind.")
        self.model = onnx.ModelProto()
        self.model.CopyFrom(model)
        self.calibrate_method: Enum = read_method(asked.asked["method"])
        self.recipe: Recipe = to_recipe(asked, "quark")
        self.tensors_range = tensors_range
        self.parent: TensorQuantizer | None = None
        """The quantizer of the outer graph, for a body of If, Loop or Scan."""
        self.quantized_value_map: dict[str, QuantizedValue] = {}
        self.used_scale_zp_map: dict[str, tuple[Any, Any]] = {}
        self.quantization_params = self.calculate_quantization_params()

    # What is known --------------------------------------------------------------------------

    def find_quant_scale_zp(self, input_name: str) -> tuple[Any, Any]:
        """Return the scale and zero point in use for a tensor, also of an outer graph."""
        if input_name in self.used_scale_zp_map:
            return self.used_scale_zp_map[input_name]
        return (None, None) if self.parent is None else self.parent.find_quant_scale_zp(input_name)

    def find_quantized_value(self, input_name: str) -> QuantizedValue | None:
        """Return where the quantized form of a tensor is, also of an outer graph."""
        if input_name in self.quantized_value_map:
            return self.quantized_value_map[input_name]
        return None if self.parent is None else self.parent.find_quantized_value(input_name)

    def calculate_quantization_params(self) -> dict[str, QuantizationParams] | None:
        """Return the parameters of each tensor that has a range; None without ranges."""
        if self.tensors_range is None:
            return None
        return parameters_of_ranges(self.model.graph, self.tensors_range, self.recipe)

    # Weights --------------------------------------------------------------------------------

    def quantize_initializer(
        self,
        weight: onnx.TensorProto,
        qType: Any,  # noqa: N803
        method: Any = None,
        reduce_range: bool = False,
        keep_float_weight: bool = False,
    ) -> tuple[str, str, str]:
        """Quantize a constant with one scale; return the names of integers, zero point, scale."""
        rounding = {"method": method, "reduced": reduce_range, "keep_float": keep_float_weight}
        return self._quantize_constant(weight, as_type(qType, "weight type"), None, **rounding)

    def quantize_weight_per_channel(
        self,
        weight_name: str,
        weight_qType: Any,  # noqa: N803
        channel_axis: int,
        method: Any = None,
        reduce_range: bool = True,
        keep_float_weight: bool = False,
    ) -> tuple[str, str, str]:
        """Quantize a constant with one scale a channel; return names as the above does."""
        weight = self._initializer(weight_name)
        if weight is None:
            raise QuantizerError(
                f"{weight_name!r} is not an initializer, and only constants have channels."
            )
        axis = channel_axis + len(weight.dims) if channel_axis < 0 else channel_axis
        if not 0 <= axis < len(weight.dims):
            raise QuantizerError(
                f"{weight_name!r} of shape {list(weight.dims)} has no axis {axis}."
            )
        rounding = {"method": method, "reduced": reduce_range, "keep_float": keep_float_weight}
        qtype = as_type(weight_qType, "weight type")
        return self._quantize_constant(weight, qtype, axis, **rounding)

    def _quantize_constant(
        self,
        weight: onnx.TensorProto,
        qtype: QType,
        axis: int | None,
        *,
        method: Any,
        reduced: bool,
        keep_float: bool,
    ) -> tuple[str, str, str]:
        known = self.find_quantized_value(weight.name)
        if known is not None:
            return known.names
        array = numpy_helper.to_array(weight)
        scale, zero_point = self._weight_params(array, qtype, method, axis, reduced)
        found = QuantizedValue.of(weight.name, axis=axis)
        stored = zero_point.astype(qtype.dtype)
        self._store(found, scale.astype(array.dtype), stored)
        if not keep_float:
            self._add(found.q_name, quantize(array, scale, zero_point, qtype, axis=axis))
        self.used_scale_zp_map[weight.name] = scale, stored
        return found.names

    def _weight_params(
        self, array: Array, qtype: QType, method: Any, axis: int | None, reduced: bool
    ) -> tuple[Array, Array]:
        if not qtype.needs_range:
            return np.asarray(1.0), np.asarray(0)
        chosen = self.calibrate_method if method is None else read_method(method)
        fields = choose_ranges(chosen, RecipeParts())
        symmetric = self.recipe.weight_symmetric
        if symmetric is None or (axis is not None and qtype.signed):
            symmetric = qtype.signed
        low, high = weight_range(
            array, fields["weight_ranges"], qtype, symmetric, axis=axis, reduced=reduced
        )
        kind = fields.get("scales", "float")
        if self.recipe.scales == "int16":
            kind = "int16"
        return affine_parameters(low, high, qtype, symmetric=symmetric, reduced=reduced, kind=kind)

    def quantize_weight(
        self,
        node: onnx.NodeProto,
        indices: Iterable[int],
        reduce_range: bool = False,
        op_level_per_channel: bool = False,
        axis: int = -1,
        from_subgraph: bool = False,
    ) -> Quantized:
        """Quantize these inputs of a node: constants as weights, all else by a QuantizeLinear.

        Returns the names of the quantized tensors, of the zero points and of the scales, and the
        nodes to add before this one.
        """
        names: list[tuple[str, str, str]] = []
        nodes: list[onnx.NodeProto] = []
        qtype = self.recipe.weight
        for name in (node.input[index] for index in indices):
            weight, known = self._initializer(name), self.find_quantized_value(name)
            if known is not None:
                names.append(known.names)
            elif weight is None:
                found, quantizer = self._quantize_activation(node, name)
                names.append(found.names)
                nodes.append(quantizer)
            elif self.recipe.per_channel and op_level_per_channel:
                names.append(
                    self.quantize_weight_per_channel(name, qtype, axis, reduce_range=reduce_range)
                )
            else:
                names.append(self.quantize_initializer(weight, qtype, reduce_range=reduce_range))
        if from_subgraph:
            # The body reads what stands before its node in the outer graph.
            self.model.graph.node.extend(nodes)
        quantized, zero_points, scales = (list(column) for column in zip(*names, strict=True))
        return quantized, zero_points, scales, nodes

    def _quantize_activation(
        self, node: onnx.NodeProto, name: str
    ) -> tuple[QuantizedValue, onnx.NodeProto]:
        params = self.known_params(name, f"input {name!r} of node {node.name!r}")
        found = QuantizedValue.of(name, value_type=QuantizedValueType.Input)
        self._store(found, params.scale, params.zero_point)
        inputs = [name, found.scale_name, found.zp_name]
        return found, helper.make_node(
            "QuantizeLinear", inputs, [found.q_name], name=f"{name}_QuantizeLinear"
        )

    def known_params(self, name: str, what: str) -> QuantizationParams:
        """Return the parameters of an activation that has a range."""
        known = self.quantization_params or {}
        if name not in known:
            raise QuantizerError(f"there is no range of {what} in tensors_range.")
        return known[name]

    # Biases ---------------------------------------------------------------------------------

    def quantize_bias_static(
        self, bias_name: str, input_name: str, weight_name: str, beta: float = 1.0
    ) -> str:
        """Quantize a bias to int32 at input scale x weight scale x beta; return its name."""
        weight = self.find_quantized_value(weight_name)
        if weight is None:
            raise QuantizerError(f"weight {weight_name!r} is not quantized yet; begin with it.")
        zero_point = self._initializer(weight.zp_name)
        if zero_point is not None and not _by_number(zero_point.data_type).is_integer:
            raise QuantizerError(
                f"the bias {bias_name!r} needs a weight in integers, and {weight_name!r} is not."
            )
        bias = self._initializer(bias_name)
        if bias is None:
            raise QuantizerError(f"the bias {bias_name!r} is not an initializer.")
        used, _ = self.find_quant_scale_zp(input_name)
        if used is None:
            used = self.known_params(input_name, f"input {input_name!r}").scale
        of_weight, _ = self.find_quant_scale_zp(weight_name)
        scale = np.asarray(np.asarray(used, np.float64) * np.asarray(of_weight, np.float64) * beta)
        axis = 0 if scale.ndim else None
        found = QuantizedValue.of(bias_name, f"{bias_name}_quantized", axis=axis)
        array = numpy_helper.to_array(bias)
        stored = scale.astype(array.dtype)
        self._add(found.q_name, quantize(array, stored, 0, INT32, axis=found.axis))
        self._store(found, stored, np.zeros(scale.shape, np.int32))
        return found.q_name

    # The model ------------------------------------------------------------------------------

    def _store(self, found: QuantizedValue, scale: Any, zero_point: Any) -> None:
        self._add(found.scale_name, scale)
        self._add(found.zp_name, zero_point)
        self.quantized_value_map[found.original_name] = found
        self.used_scale_zp_map[found.original_name] = scale, zero_point

    def _initializer(self, name: str) -> onnx.TensorProto | None:
        return next((t for t in self.model.graph.initializer if t.name == name), None)

    def _add(self, name: str, array: Any) -> None:
        if self._initializer(name) is None:
            tensor = ir.tensor(np.asarray(array), name=name)
            self.model.graph.initializer.append(ir.to_proto(tensor))


def as_type(value: Any, what: str) -> QType:
    """Return a number type from an enumeration, a name, or a number of `onnx.TensorProto`."""
    return _by_number(value) if isinstance(value, int) else read_type(value, what)


def _by_number(number: int) -> QType:
    found = next(
        (t for t in QTYPES.values() if t.onnx_type == number and not t.shares_exponent), None
    )
    if found is None:
        raise QuantizerError(f"element type {number} of onnx.TensorProto is no quantized type.")
    return found
