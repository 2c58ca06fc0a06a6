"""`QDQQuantizer` and `ONNXQuantizer`: the classes behind the functions, from given ranges.

They are built as there and `quantize_model` gives the quantized model; what happens in between is
Bitwright's plan, which stays in `plan`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from bitwright.compat.onnxruntime.dynamic import dynamic_recipe
from bitwright.compat.onnxruntime.enums import QuantFormat, QuantizationMode, as_member
from bitwright.compat.onnxruntime.errors import raises_builtins
from bitwright.compat.onnxruntime.onnx_model import ONNXModel
from bitwright.compat.onnxruntime.options import translate_options
from bitwright.compat.onnxruntime.static import static_recipe
from bitwright.compat.onnxruntime.storage import store_parameters
from bitwright.compat.onnxruntime.tensors_data import TensorData
from bitwright.compat.options import RecipeParts
from bitwright.errors import DataError, NothingQuantizedError, RecipeError
from bitwright.jobs.calibration import Calibration
from bitwright.jobs.compute import ON_CPU
from bitwright.jobs.modes import mode_of
from bitwright.observe import TensorSketch
from bitwright.plan import QuantPlan
from bitwright.recipe import Recipe
from bitwright.support.notices import warn_user

__all__ = ["ONNXQuantizer", "QDQQuantizer"]

Names = Sequence[str] | None


class _Quantizer:
    """A model, what is asked for, and the ranges of its activations."""

    def __init__(
        self, model: str | Path | onnx.ModelProto, recipe: Recipe, tensors_range: Any
    ) -> None:
        proto = model if isinstance(model, onnx.ModelProto) else onnx.load(model)
        self.model = ONNXModel(proto)
        self.recipe = recipe
        self.tensors_range = tensors_range
        self.plan: QuantPlan | None = None

    @raises_builtins()
    def quantize_model(self) -> onnx.ModelProto:
        """Return the quantized model, which is in `model` from then on; `plan` says why."""
        ranges = Calibration(sketches=_as_sketches(self.tensors_range))
        run = mode_of(self.recipe).quantize
        try:
            result = run(self.model.model, self.recipe, ranges, None, ON_CPU)
        except NothingQuantizedError as error:
            warn_user(f"the model stays as it is: {error}")
            return self.model.model
        store_parameters(result.model, result.plan)
        self.plan, self.model = result.plan, ONNXModel(result.to_proto())
        return self.model.model


class QDQQuantizer(_Quantizer):
    """Q/DQ pairs around the ops of a model, from ranges such as a calibrator gives.

    >>> import bitwright
    >>> from bitwright.compat.onnxruntime import QuantType, create_calibrator
    >>> demo = bitwright.load_demo()
    >>> calibrator = create_calibrator(demo.model_path)
    >>> calibrator.collect_data(demo.calibration[:8])
    >>> types = QuantType.QInt8, QuantType.QUInt8
    >>> quantizer = QDQQuantizer(demo.model_path, True, False, *types, calibrator.compute_data())
    >>> bitwright.inspect(quantizer.quantize_model()).is_quantized
    True
    """

    def __init__(
        self,
        model: str | Path | onnx.ModelProto,
        per_channel: bool,
        reduce_range: bool,
        weight_qType: Any,  # noqa: N803
        activation_qType: Any,  # noqa: N803
        tensors_range: Any,
        nodes_to_quantize: Names = None,
        nodes_to_exclude: Names = None,
        op_types_to_quantize: Names = None,
        extra_options: Mapping[str, Any] | None = None,
    ) -> None:
        parts = _parts(extra_options, per_channel, reduce_range)
        parts.choose_nodes(op_types_to_quantize, nodes_to_quantize, nodes_to_exclude)
        types = activation_qType, weight_qType
        super().__init__(model, static_recipe(parts, QuantFormat.QDQ, *types), tensors_range)


class ONNXQuantizer(_Quantizer):
    """Integer ops: with `static` from given ranges (QLinearOps), else measured at every run.

    >>> import bitwright
    >>> from bitwright.compat.onnxruntime import QuantizationMode, QuantType
    >>> types = QuantType.QInt8, QuantType.QUInt8
    >>> model = bitwright.load_demo().model_path
    >>> quantizer = ONNXQuantizer(
    ...     model, False, False, QuantizationMode.IntegerOps, False, *types, None)
    >>> bitwright.inspect(quantizer.quantize_model()).is_quantized
    True
    """

    def __init__(
        self,
        model: str | Path | onnx.ModelProto,
        per_channel: bool,
        reduce_range: bool,
        mode: Any,
        static: bool,
        weight_qType: Any,  # noqa: N803
        activation_qType: Any,  # noqa: N803
        tensors_range: Any,
        nodes_to_quantize: Names = None,
        nodes_to_exclude: Names = None,
        op_types_to_quantize: Names = None,
        extra_options: Mapping[str, Any] | None = None,
    ) -> None:
        wanted = QuantizationMode.QLinearOps if static else QuantizationMode.IntegerOps
        if as_member(QuantizationMode, mode, "quantization mode") is not wanted:
            raise RecipeError(f"static={static} goes with the mode {wanted}, not with {mode}.")
        parts = _parts(extra_options, per_channel, reduce_range)
        parts.choose_nodes(op_types_to_quantize, nodes_to_quantize, nodes_to_exclude)
        types = activation_qType, weight_qType
        if static:
            recipe = static_recipe(parts, QuantFormat.QOperator, *types)
        else:
            recipe = dynamic_recipe(parts, types[1])
        super().__init__(model, recipe, tensors_range)


def _parts(
    extra_options: Mapping[str, Any] | None, per_channel: bool, reduce_range: bool
) -> RecipeParts:
    parts = translate_options(extra_options)
    for section in ("calibration", "smooth"):
        for name in [*getattr(parts, section)]:
            parts.drop(f"{section}.{name}", "ranges are given here")
    parts.recipe.update(per_channel=per_channel, reduce_range=reduce_range)
    return parts


def _as_sketches(tensors_range: Any) -> dict[str, TensorSketch]:
    """Return ranges as what calibration would have seen: their two ends."""
    sketches = {}
    for name, data in (tensors_range or {}).items():
        if not isinstance(data, TensorData) and not hasattr(data, "range_value"):
            raise DataError(f"tensors_range[{name!r}] is a TensorData, not {data!r}.")
        ends = [np.asarray(end, np.float32).reshape(-1) for end in data.range_value]
        sketches[name] = TensorSketch.of(np.concatenate(ends), histogram=False)
    return sketches
