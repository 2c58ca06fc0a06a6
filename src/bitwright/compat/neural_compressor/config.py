"""`neural_compressor.config`: the options of `fit`.

What they stand for in a recipe is in `op_settings.py` and `recipe_switches.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bitwright.errors import RecipeError, did_you_mean

_CRITERIA = ("relative", "absolute")
_OBJECTIVES = {"performance": "speed", "modelsize": "size", "footprint": "size"}
_APPROACHES = ("static", "dynamic", "auto", "weight_only")
_FORMATS = {"default": "qdq", "QDQ": "qdq", "QOperator": "qoperator"}


@dataclass
class AccuracyCriterion:
    """How far the metric may fall."""

    higher_is_better: bool = True
    criterion: str = "relative"
    tolerable_loss: float = 0.01

    def __post_init__(self) -> None:
        if self.criterion not in _CRITERIA:
            raise RecipeError(f"criterion is one of {_CRITERIA}, not {self.criterion!r}.")


@dataclass
class TuningCriterion:
    """How long to search, and for what."""

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
    """The options of `fit`."""

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

    @property
    def mode(self) -> str:
        """The approach by its short name: static, dynamic or weight_only."""
        found = next((name for name in _APPROACHES if name in self.approach), None)
        if found is None:
            hint = did_you_mean(self.approach, _APPROACHES)
            raise RecipeError(
                f"approach is one of {', '.join(_APPROACHES)}, not {self.approach!r}.{hint}"
            )
        return "static" if found == "auto" else found

    @property
    def format(self) -> str:
        """The output format of static models."""
        if self.quant_format not in _FORMATS:
            raise RecipeError(
                f"quant_format is one of {', '.join(_FORMATS)}, not {self.quant_format!r}."
            )
        return _FORMATS[self.quant_format]

    @property
    def samples(self) -> int:
        """How many samples calibrate."""
        size = self.calibration_sampling_size
        return size if isinstance(size, int) else max(size)


@dataclass(kw_only=True)
class MixedPrecisionConfig(PostTrainingQuantConfig):
    """The options of `mix_precision.fit`."""

    precisions: str | Sequence[str] = "bf16"
    model_name: str = ""


@dataclass(kw_only=True)
class BenchmarkConfig(PostTrainingQuantConfig):
    """The options of `benchmark.fit`."""

    warmup: int = 5
    iteration: int = -1
    model_name: str = ""
    cores_per_instance: int | None = None
    num_of_instance: int = 1
    inter_num_of_threads: int | None = None
    intra_num_of_threads: int | None = None
