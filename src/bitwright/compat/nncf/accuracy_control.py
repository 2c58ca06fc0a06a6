"""`quantize_with_accuracy_control`, on `bitwright.tune`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bitwright.compat.nncf.dataset import Dataset
from bitwright.compat.nncf.differences import DEVICE, MISSED
from bitwright.compat.nncf.parameters import (
    DropType,
    IgnoredScope,
    ModelType,
    QuantizationPreset,
    TargetDevice,
    ValidationError,
    selection_of,
)
from bitwright.errors import DataError, RecipeError
from bitwright.recipe import MeanExtremes, Recipe, SmoothQuant

if TYPE_CHECKING:
    import onnx

__all__ = ["quantize_with_accuracy_control"]

_ITEM = "__item__"
_DEFAULT = (TargetDevice.ANY, TargetDevice.CPU, TargetDevice.CPU_SPR)


def quantize_with_accuracy_control(
    model: Any,
    calibration_dataset: Dataset,
    validation_dataset: Dataset,
    validation_fn: Callable[[Any, Iterable[Any]], Any],
    *,
    max_drop: float = 0.01,
    drop_type: DropType = DropType.ABSOLUTE,
    preset: QuantizationPreset | None = None,
    target_device: TargetDevice = TargetDevice.ANY,
    subset_size: int = 300,
    fast_bias_correction: bool = True,
    model_type: ModelType | None = None,
    ignored_scope: IgnoredScope | None = None,
    advanced_quantization_parameters: Any = None,
    advanced_accuracy_restorer_parameters: Any = None,
) -> onnx.ModelProto:
    """Quantize a model as far as its metric allows, and return it.

    `validation_fn(model, items)` returns the metric of an `onnx.ModelProto`, higher for a better
    model, or a pair of it and one number for each item.

    >>> import bitwright, onnx, onnxruntime
    >>> from bitwright.compat import nncf
    >>> demo = bitwright.load_demo()
    >>> def accuracy(model, items):
    ...     session = onnxruntime.InferenceSession(model.SerializeToString())
    ...     scores = [session.run(None, {"image": i[None]})[0].argmax() == y for i, y in items]
    ...     return sum(scores) / len(scores), scores
    >>> small = nncf.quantize_with_accuracy_control(
    ...     onnx.load(demo.model_path),
    ...     nncf.Dataset(demo.calibration[:32], lambda image: {"image": image[None]}),
    ...     nncf.Dataset(list(zip(demo.images, demo.labels))[:60],
    ...                  lambda item: {"image": item[0][None]}),
    ...     accuracy, max_drop=0.05)
    >>> sum(node.op_type == "QuantizeLinear" for node in small.graph.node) > 0
    True
    """
    from bitwright.api import tune

    for name, given in (
        ("advanced_quantization_parameters", advanced_quantization_parameters),
        ("advanced_accuracy_restorer_parameters", advanced_accuracy_restorer_parameters),
    ):
        if given is not None:
            raise RecipeError(f"{name} has no form here; give bitwright.tune a recipe instead.")
    if TargetDevice(target_device) not in _DEFAULT:
        DEVICE.warn(f"target_device {str(target_device)!r}")
    recipe = _recipe(preset, model_type, fast_bias_correction).replace(
        select=selection_of(ignored_scope)
    )
    try:
        result = tune(
            model,
            data=list(
                calibration_dataset.get_inference_data(_first(calibration_dataset, subset_size))
            ),
            eval_data=_numbered(validation_dataset),
            evaluate=_Validation(validation_fn, validation_dataset),
            evaluate_on="model",
            max_drop=max_drop,
            relative=DropType(drop_type) is DropType.RELATIVE,
            recipe=recipe,
            keep_quantized=True,  # as the peer, whose users know where their models will run
        )
    except RecipeError as error:
        if ignored_scope is not None and str(error).startswith(("exclude", "unknown op type")):
            raise ValidationError(f"ignored_scope: {error}") from error
        raise
    if result.is_float:
        MISSED.warn("every model with anything quantized")
    elif not result.met:
        MISSED.warn(f"the quantized model, whose metric falls by {_shown(result.point.measured)},")
    import onnx_ir as ir

    return ir.to_proto(result.model)


def _shown(measured: Any) -> str:
    return "more than that" if measured is None else f"{measured.drop:.3g}"


def _recipe(preset: QuantizationPreset | None, model_type: ModelType | None, fast: bool) -> Recipe:
    """Return the recipe that the options stand for."""
    is_transformer = model_type is not None and ModelType(model_type) is ModelType.TRANSFORMER
    chosen = QuantizationPreset(preset or ("mixed" if is_transformer else "performance"))
    return Recipe(
        name="nncf",
        per_channel=True,
        ranges=MeanExtremes(),
        activation_symmetric=chosen is QuantizationPreset.PERFORMANCE,
        unsigned_relu=True,
        smooth=SmoothQuant(alpha=0.95) if is_transformer else None,
        bias_correction="fast" if fast else "sequential",
    )


def _first(dataset: Dataset, count: int) -> Sequence[int] | None:
    """Return the numbers of the items to calibrate with; None: all of them."""
    length = dataset.get_length()
    return range(count) if length is None or length > count else None


def _numbered(dataset: Dataset) -> list[dict[str, Any]]:
    """Return what a model reads of each item, with the item's number."""
    found = []
    for number, inputs in enumerate(dataset.get_inference_data()):
        if not isinstance(inputs, Mapping):
            raise DataError(
                f"item {number} of the validation set gives a {type(inputs).__name__}, and ONNX "
                "models read arrays by name; give the Dataset a transform_func that returns a dict."
            )
        found.append({**inputs, _ITEM: number})
    return found


class _Validation:
    """The user's function, as `tune` calls it: with a model and some of the samples."""

    def __init__(self, function: Callable[[Any, Iterable[Any]], Any], dataset: Dataset) -> None:
        self._function, self._dataset = function, dataset
        self.__name__ = getattr(function, "__name__", type(function).__name__)

    def __call__(self, model: Any, samples: Sequence[Mapping[str, Any]]) -> Any:
        numbers = sorted(int(sample[_ITEM]) for sample in samples)
        found = self._function(model, self._dataset.get_data(numbers))
        metric, values = found if isinstance(found, tuple) else (found, None)
        if values is None or not all(np.ndim(value) == 0 for value in values):
            return metric
        # Numbers of items make differences less a matter of chance, if the metric is their mean.
        each = [float(value) for value in values]
        is_mean = len(each) == len(numbers) and math.isclose(np.mean(each), metric, rel_tol=1e-6)
        return each if is_mean else metric
