"""`quantize_with_accuracy_control`, on `bitwright.tune`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from bitwright.compat.nncf.dataset import Dataset, first_inputs
from bitwright.compat.nncf.parameters import DropType, ModelType, QuantizationPreset, TargetDevice
from bitwright.compat.nncf.quantization.advanced_parameters import (
    AdvancedAccuracyRestorerParameters,
    AdvancedQuantizationParameters,
)
from bitwright.compat.nncf.quantization.translation import Options
from bitwright.compat.nncf.scopes import IgnoredScope, naming_the_scope
from bitwright.errors import DataError
from bitwright.support.wording import warn_user

_ITEM = "__item__"
_SEARCH_PARAMETERS = (
    "max_num_iterations ranking_subset_size num_ranking_workers restore_mode".split()
)


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
    advanced_quantization_parameters: AdvancedQuantizationParameters | None = None,
    advanced_accuracy_restorer_parameters: AdvancedAccuracyRestorerParameters | None = None,
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
    return _tune(dict(locals()))


def _tune(given: Mapping[str, Any]) -> onnx.ModelProto:
    """Search for a model, by the arguments of `quantize_with_accuracy_control`."""
    from bitwright import api

    options = Options.of(given, given["advanced_quantization_parameters"])
    restorer = given["advanced_accuracy_restorer_parameters"]
    restorer = restorer or AdvancedAccuracyRestorerParameters()
    for name in _SEARCH_PARAMETERS:
        if getattr(restorer, name) != getattr(AdvancedAccuracyRestorerParameters(), name):
            warn_user(
                f"{name} has no effect: error and cost of each unit are measured once, and a dozen "
                "mixtures are evaluated at most."
            )
    source = options.source(given["model"])
    data = list(first_inputs(given["calibration_dataset"], options.subset_size))
    validation = given["validation_dataset"]
    with naming_the_scope(options.ignored_scope, source):
        recipe = options.recipe(source)
        if restorer.intermediate_model_dir:
            output = Path(restorer.intermediate_model_dir) / "intermediate_model.onnx"
            output.parent.mkdir(parents=True, exist_ok=True)
            api.quantize(source, output, data=data, recipe=recipe, holdout=False, progress=False)
        result = api.tune(
            source,
            data=data,
            eval_data=_numbered(validation),
            evaluate=_Validation(given["validation_fn"], validation),
            evaluate_on="model",
            max_drop=given["max_drop"],
            relative=DropType(given["drop_type"]) is DropType.RELATIVE,
            recipe=recipe,
            keep_quantized=True,  # as the peer, whose users know where their models will run
        )
    if result.is_float:
        _warn_of_missed("every model with anything quantized")
    elif not result.met:
        measured = result.point.measured
        fell = "more than that" if measured is None else f"{measured.drop:.3g}"
        _warn_of_missed(f"the quantized model, whose metric falls by {fell},")
    return ir.to_proto(result.model)


def _warn_of_missed(model: str) -> None:
    warn_user(
        f"{model} misses max_drop: no mixture of types that was tried keeps the metric; this is "
        "the closest model."
    )


def _numbered(dataset: Dataset) -> list[dict[str, Any]]:
    """Return the model inputs of each item, with the number of the item."""
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
