"""Scales and zero points of activations, from ranges that were measured elsewhere."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from bitwright.compat.onnxruntime.peer import peer
from bitwright.compat.vai_q_onnx.enums import read_type
from bitwright.errors import RecipeError
from bitwright.numerics.scales import affine_parameters, without_last_level
from bitwright.numerics.types import QTYPES, QType
from bitwright.recipe import Override, Recipe


class QuantizerError(RecipeError, ValueError):
    """A method was asked for what the model or its ranges do not have."""


class QuantizationParams(peer("base_quantizer").QuantizationParams):  # type: ignore[misc]
    """The scale and the zero point of an activation, as attributes too."""

    def __getattr__(self, name: str) -> Any:
        if name not in ("scale", "zero_point", "quant_type"):
            raise AttributeError(f"parameters have no {name!r}")
        return self.data[name]


def as_type(value: Any, what: str) -> QType:
    """Return a number type from an enumeration, a name, or a number of `onnx.TensorProto`."""
    if not isinstance(value, int):
        return read_type(value, what)
    known = (t for t in QTYPES.values() if t.onnx_type == value and not t.shares_exponent)
    found = next(known, None)
    if found is None:
        raise QuantizerError(f"element type {value} of onnx.TensorProto is no quantized type.")
    return found


def parameters_of_ranges(
    graph: onnx.GraphProto, given: Any, recipe: Recipe
) -> dict[str, QuantizationParams]:
    """Return the parameters of each tensor that has a range.

    What a Relu or Clip alone reads has the range of its output, and a Softmax gives [0, 1].
    """
    ranges = _read_ranges(given)
    readers = Counter(name for node in graph.node for name in node.input)
    fixed = set()
    for node in graph.node:
        if not _is_chosen(node, recipe) or not node.input or node.output[0] not in ranges:
            continue
        source, result = node.input[0], node.output[0]
        if node.op_type in ("Relu", "Clip") and readers[source] == 1 and source in ranges:
            ranges[source] = ranges[result]
        elif node.op_type == "Softmax":
            ranges[result] = (0.0, 1.0)
            fixed.add(result)
    return {
        name: _choose(name, *ends, graph, recipe, is_fixed=name in fixed)
        for name, ends in ranges.items()
    }


def _read_ranges(given: Any) -> dict[str, tuple[Any, Any]]:
    """Return name -> (lowest, highest) from a dict of pairs or from a calibrator's result."""
    ranges = {}
    for name, value in given.items():
        ends = getattr(value, "range_value", value)
        try:
            low, high = ends
        except (TypeError, ValueError) as error:
            raise QuantizerError(
                f"tensors_range maps {name!r} to (lowest, highest), not {value!r}."
            ) from error
        # Calibrators give arrays of one number.
        ranges[name] = (np.asarray(low).squeeze(), np.asarray(high).squeeze())
    return ranges


def _is_chosen(node: onnx.NodeProto, recipe: Recipe) -> bool:
    select = recipe.select
    named = select.nodes is None or node.name in select.nodes
    typed = select.op_types is None or node.op_type in select.op_types
    return named and typed and node.name not in select.exclude


def _choose(
    name: str, low: Any, high: Any, graph: onnx.GraphProto, recipe: Recipe, *, is_fixed: bool
) -> QuantizationParams:
    given = recipe.overrides.get(name) or Override()
    qtype = given.qtype or recipe.activation
    if given.scale is not None:
        return _params(given.scale, given.zero_point, qtype)
    if given.rmin is not None:
        low, high, is_fixed = given.rmin, given.rmax, False
    if not qtype.needs_range:
        return _params(1.0, 0, qtype)
    symmetric = recipe.activation_symmetric
    if given.symmetric is not None:
        symmetric = given.symmetric
    elif recipe.emulate.unsigned_relu and _is_never_negative(name, graph):
        symmetric = False
    if is_fixed and recipe.scales == "power-of-two":
        low, high = without_last_level(low, high, qtype, symmetric=symmetric)
    scale, zero_point = affine_parameters(low, high, qtype, symmetric=symmetric, kind=recipe.scales)
    return _params(scale, zero_point, qtype)


def _is_never_negative(name: str, graph: onnx.GraphProto) -> bool:
    node = next((n for n in graph.node if name in n.output), None)
    if node is None or node.op_type != "Clip":
        return node is not None and node.op_type == "Relu"
    if len(node.input) < 2:
        return False
    low = next((each for each in graph.initializer if each.name == node.input[1]), None)
    return low is not None and not np.any(numpy_helper.to_array(low))


def _params(scale: Any, zero_point: Any, qtype: QType) -> QuantizationParams:
    return QuantizationParams(
        scale=np.asarray(scale, np.float32),
        zero_point=np.asarray(zero_point).astype(qtype.dtype),
        quant_type=qtype.onnx_type,
    )
