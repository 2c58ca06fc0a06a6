"""`onnx_neural_compressor.quantization.tuning`: the first of several models within the loss."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from bitwright.compat.model_wrapper import ONNXModel
from bitwright.compat.neural_compressor.config import AccuracyCriterion
from bitwright.compat.neural_compressor.inputs import prepare_inputs, source_of
from bitwright.compat.neural_compressor.quantization.post_training import (
    DynamicQuantConfig,
    SmoothQuantConfig,
    StaticQuantConfig,
)
from bitwright.compat.neural_compressor.quantization.weight_only_configs import (
    AWQConfig,
    BaseConfig,
    GPTQConfig,
    RTNConfig,
)
from bitwright.compat.neural_compressor.quantization.within_loss import (
    TUNED_FOR_CPU,
    closest,
    first_within,
    tune_within,
)
from bitwright.errors import DataError
from bitwright.support.wording import warn_user

_CPU = ["CPUExecutionProvider"]


@dataclass
class TuningConfig:
    """What to try in turn, and how far the metric may fall, as a share of float's."""

    config_set: Any = None
    """A configuration, a recipe or its name, or several of these; None: int8."""
    sampler: Any = None
    tolerable_loss: float = 0.01
    max_trials: int = 100


def get_all_config_set() -> list[BaseConfig]:
    """Return what may be tried of all algorithms."""
    both = [True, False]
    weights: dict[str, Any] = {"weight_bits": [4, 8], "weight_sym": both}
    layers = {"per_channel": both, "quant_last_matmul": both}
    alphas = [step / 100 for step in range(30, 70, 5)]
    return [
        RTNConfig(**weights),
        GPTQConfig(**weights, actorder=both, mse=both, perchannel=both),
        AWQConfig(**weights, enable_auto_scale=both, enable_mse_search=both),
        StaticQuantConfig(**layers),
        SmoothQuantConfig(alpha=alphas),
        DynamicQuantConfig(**layers),
    ]


def autotune(
    model_input: Any,
    tune_config: TuningConfig,
    eval_fn: Callable[..., float],
    eval_args: Sequence[Any] | None = None,
    calibration_data_reader: Any = None,
    optimization_level: Any = None,
) -> onnx.ModelProto | None:
    """Return the first model that is within the tolerable loss; None, with a warning: none is.

    `eval_fn` is given the path of a model, and `eval_args` behind it. A configuration is one
    model; a recipe is searched along, as `bitwright.tune` does it.

    >>> import bitwright, onnxruntime
    >>> from bitwright.compat.neural_compressor.quantization import config, tuning
    >>> demo = bitwright.load_demo()
    >>> def accuracy(path):
    ...     logits = onnxruntime.InferenceSession(path).run(None, {"image": demo.images[:100]})[0]
    ...     return (logits.argmax(axis=1) == demo.labels[:100]).mean()
    >>> small = tuning.autotune(
    ...     demo.model_path, tuning.TuningConfig([config.RTNConfig(weight_bits=8)]), accuracy)
    >>> [node.op_type for node in small.graph.node][-1]
    'MatMulNBits'
    """
    if tune_config.sampler is not None:
        warn_user(f"sampler is ignored: {TUNED_FOR_CPU}.")
    if getattr(optimization_level, "name", None) not in (None, "ORT_ENABLE_BASIC"):
        warn_user(f"optimization_level {optimization_level.name} is ignored: {TUNED_FOR_CPU}.")
    criterion = AccuracyCriterion(tolerable_loss=tune_config.tolerable_loss)
    evaluate = _ByPath(eval_fn, tuple(eval_args or ()), model_input)
    trials = _expanded(tune_config.config_set)[: tune_config.max_trials]
    configs = [trial for trial in trials if isinstance(trial, BaseConfig)]
    recipes = [trial for trial in trials if not isinstance(trial, BaseConfig)]
    found: ONNXModel | None = None
    if configs:
        models = _quantized(model_input, configs, calibration_data_reader)
        found = first_within(models, evaluate, model_input, criterion)
    if found is None and recipes:
        found = _tuned(model_input, recipes, calibration_data_reader, evaluate, criterion)
    return None if found is None else found.model


def _expanded(given: Any) -> list[Any]:
    trials = ["int8"] if given is None else given if isinstance(given, list | tuple) else [given]
    return [
        one
        for trial in trials
        for one in (trial.expand() if isinstance(trial, BaseConfig) else [trial])
    ]


def _quantized(model: Any, configs: Sequence[BaseConfig], reader: Any) -> Iterator[ONNXModel]:
    samples = None
    if reader is not None:
        samples, _ = prepare_inputs(model, -1, reader, _CPU)
    for config in configs:
        yield config.quantize(model, samples)


def _tuned(
    model: Any,
    recipes: Sequence[Any],
    reader: Any,
    evaluate: Callable[[Any], float],
    criterion: AccuracyCriterion,
) -> ONNXModel | None:
    if reader is None:
        raise DataError("autotune calibrates by recipes; give calibration_data_reader.")
    samples, _ = prepare_inputs(model, -1, reader, _CPU)
    for recipe in recipes:
        result = tune_within(model, samples, evaluate, criterion, recipe=recipe)
        if result.met:
            break
    return closest(result)


@dataclass
class _ByPath:
    """The user's function, which reads a model from a file, as a function of models."""

    function: Callable[..., float]
    arguments: tuple[Any, ...]
    origin: Any

    @property
    def __name__(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)

    def __call__(self, model: Any) -> float:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            ONNXModel(source_of(model)).save(path)
            # Language models are evaluated with it.
            config = isinstance(self.origin, str | Path) and Path(self.origin).with_name(
                "config.json"
            )
            if config and config.is_file():
                shutil.copy(config, folder)
            return float(self.function(str(path), *self.arguments))
