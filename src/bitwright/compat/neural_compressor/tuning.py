"""Neural Compressor's tuning for ONNX models: `fit` of 2.x and `autotune` of 3.x, on `tune`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bitwright.compat.model_wrapper import ONNXModel
from bitwright.compat.neural_compressor.differences import IGNORED, MISSED
from bitwright.compat.neural_compressor.inputs import prepare_inputs, source_of
from bitwright.errors import DataError, RecipeError
from bitwright.recipe import Recipe, load_recipe

if TYPE_CHECKING:
    from bitwright.jobs.tuning.result import TuneResult

__all__ = [
    "AccuracyCriterion",
    "PostTrainingQuantConfig",
    "TuningConfig",
    "TuningCriterion",
    "autotune",
    "fit",
]

_MIN_SAMPLES = 16
_CRITERIA = ("relative", "absolute")
_OBJECTIVES = {"performance": "speed", "modelsize": "size", "footprint": "size"}


@dataclass
class AccuracyCriterion:
    """How far the metric may fall.

    >>> AccuracyCriterion(tolerable_loss=0.005).criterion
    'relative'
    """

    higher_is_better: bool = True
    criterion: str = "relative"
    tolerable_loss: float = 0.01

    def __post_init__(self) -> None:
        if self.criterion not in _CRITERIA:
            raise RecipeError(f"criterion is one of {_CRITERIA}, not {self.criterion!r}.")


@dataclass
class TuningCriterion:
    """How long to search, and for what.

    >>> TuningCriterion().objective
    'performance'
    """

    strategy: str = "basic"
    strategy_kwargs: Mapping[str, Any] | None = None
    timeout: float = 0
    """Seconds; 0: until a model is found."""
    max_trials: int = 100
    objective: str | Sequence[str] = "performance"

    @property
    def purpose(self) -> str:
        """What `tune` is asked for."""
        first = self.objective if isinstance(self.objective, str) else next(iter(self.objective))
        if first not in _OBJECTIVES:
            raise RecipeError(f"objective is one of {', '.join(_OBJECTIVES)}, not {first!r}.")
        return _OBJECTIVES[first]


@dataclass
class PostTrainingQuantConfig:
    """The options of `fit`; those without a form here may only be as they are by default.

    >>> PostTrainingQuantConfig(quant_format="QDQ").approach
    'static'
    """

    device: str = "cpu"
    backend: str = "default"
    domain: str = "auto"
    recipes: Mapping[str, Any] = field(default_factory=dict)
    quant_format: str = "default"
    inputs: Sequence[str] = ()
    outputs: Sequence[str] = ()
    approach: str = "static"
    calibration_sampling_size: int | Sequence[int] = (100,)
    op_type_dict: Mapping[str, Any] | None = None
    op_name_dict: Mapping[str, Any] | None = None
    reduce_range: bool | None = None
    example_inputs: Any = None
    excluded_precisions: Sequence[str] = ()
    quant_level: str | int = "auto"
    accuracy_criterion: AccuracyCriterion = field(default_factory=AccuracyCriterion)
    tuning_criterion: TuningCriterion = field(default_factory=TuningCriterion)
    diagnosis: bool = False
    ni_workload_name: str = "quantization"

    def recipe(self) -> Recipe:
        """Return the recipe to begin with."""
        if self.approach not in ("static", "auto"):
            raise RecipeError(f"tuning calibrates, and approach {self.approach!r} does not.")
        for name in ("recipes", "op_type_dict", "op_name_dict", "inputs", "outputs"):
            if getattr(self, name):
                raise RecipeError(f"{name} has no form here; give bitwright.tune a recipe instead.")
        if self.quant_format not in ("default", "QDQ"):
            raise RecipeError(f"models are tuned in the format QDQ, not {self.quant_format!r}.")
        for name in ("backend", "device"):
            if getattr(self, name) not in ("default", "cpu"):
                IGNORED.warn(f"{name} {getattr(self, name)!r}")
        return load_recipe("int8").replace(reduce_range=bool(self.reduce_range), name="fit")

    @property
    def samples(self) -> int:
        """How many samples calibrate."""
        size = self.calibration_sampling_size
        return size if isinstance(size, int) else max(size)


def fit(
    model: Any,
    conf: PostTrainingQuantConfig,
    calib_dataloader: Any = None,
    calib_func: Callable[..., Any] | None = None,
    eval_func: Callable[[Any], float] | None = None,
    eval_dataloader: Any = None,
    eval_metric: Any = None,
    **kwargs: Any,
) -> ONNXModel | None:
    """Quantize a model as far as `eval_func(onnx.ModelProto) -> float` allows.

    Without `eval_func` it is quantized, and nothing is evaluated. None comes back, with a warning,
    where no model is within the tolerable loss.

    >>> import bitwright
    >>> demo = bitwright.load_demo()
    >>> loader = [(image[None], 0) for image in demo.calibration[:16]]
    >>> small = fit(demo.model_path, PostTrainingQuantConfig(), calib_dataloader=loader)
    >>> any(node.op_type == "QuantizeLinear" for node in small.nodes())
    True
    """
    for name, given in (
        ("calib_func", calib_func),
        ("eval_dataloader", eval_dataloader),
        ("eval_metric", eval_metric),
    ):
        if given is not None:
            raise RecipeError(f"{name} has no form here; give calib_dataloader and eval_func.")
    for name in kwargs:
        IGNORED.warn(f"option {name!r}")
    if calib_dataloader is None:
        raise DataError("fit calibrates; give calib_dataloader.")
    samples, _ = prepare_inputs(model, conf.samples, calib_dataloader, ["CPUExecutionProvider"])
    if eval_func is None:
        from bitwright.api import quantize

        made = quantize(source_of(model), data=samples, recipe=conf.recipe(), progress=False)
        return ONNXModel(made.model, made.plan)
    accuracy, tuning = conf.accuracy_criterion, conf.tuning_criterion
    result = _tune(
        model,
        samples,
        eval_func,
        max_drop=accuracy.tolerable_loss,
        relative=accuracy.criterion == "relative",
        lower_is_better=not accuracy.higher_is_better,
        purpose=tuning.purpose,
        time=tuning.timeout or None,
        recipe=conf.recipe(),
    )
    return _within_loss(result)


@dataclass
class TuningConfig:
    """Recipes to try in turn, and how far the metric may fall, as a share of float's.

    >>> TuningConfig(tolerable_loss=0.02).config_set
    """

    config_set: Any = None
    """A recipe, its name, or several; None: int8."""
    sampler: Any = None
    tolerable_loss: float = 0.01
    max_trials: int = 100


def autotune(
    model_input: Any,
    tune_config: TuningConfig,
    eval_fn: Callable[..., float],
    eval_args: Sequence[Any] | None = None,
    calibration_data_reader: Any = None,
) -> ONNXModel | None:
    """Return the first model of the recipes that is within the tolerable loss, else None."""
    if calibration_data_reader is None:
        raise DataError("autotune calibrates; give calibration_data_reader.")
    if tune_config.sampler is not None:
        IGNORED.warn("sampler")
    given = tune_config.config_set
    recipes = ["int8"] if given is None else given if isinstance(given, list | tuple) else [given]
    samples, _ = prepare_inputs(model_input, -1, calibration_data_reader, ["CPUExecutionProvider"])
    result: TuneResult | None = None
    for recipe in recipes[: tune_config.max_trials]:
        result = _tune(
            model_input,
            samples,
            lambda model: eval_fn(model, *(eval_args or ())),
            max_drop=tune_config.tolerable_loss,
            relative=True,
            recipe=recipe,
        )
        if result.met:
            break
    return None if result is None else _within_loss(result)


def _tune(
    model: Any, samples: Sequence[Any], evaluate: Callable[[Any], float], **options: Any
) -> TuneResult:
    from bitwright.api import tune

    # The function has samples of its own: those of `tune` only stand in for them.
    stand_ins = [samples[index % len(samples)] for index in range(max(_MIN_SAMPLES, len(samples)))]
    return tune(
        source_of(model),
        data=list(samples),
        eval_data=stand_ins,
        evaluate=_Once(evaluate),
        evaluate_on="model",
        keep_quantized=options.get("purpose", "speed") == "speed",  # how fast it is was not asked
        **options,
    )


class _Once:
    """A function of a model, which is called once for each model."""

    def __init__(self, function: Callable[[Any], float]) -> None:
        self._function = function
        self._known: dict[bytes, float] = {}
        self.__name__ = getattr(function, "__name__", type(function).__name__)

    def __call__(self, model: Any, samples: Any) -> float:
        key = hashlib.sha256(model.SerializeToString(deterministic=True)).digest()
        if key not in self._known:
            self._known[key] = float(self._function(model))
        return self._known[key]


def _within_loss(result: TuneResult) -> ONNXModel | None:
    """Return the model that was found, or warn that there is none."""
    if result.met:
        return ONNXModel(result.model, result.plan)
    if result.is_float:
        MISSED.warn("a model with anything quantized")
        return None
    measured = result.point.measured
    fell = "more than that" if measured is None else f"{measured.drop:.3g}"
    MISSED.warn(f"the closest model, whose metric falls by {fell},")
    return None
