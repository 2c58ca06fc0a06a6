"""Models within the tolerable loss: found by `tune`, or the first of several."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from bitwright.compat.model_wrapper import ONNXModel
from bitwright.compat.neural_compressor.config import AccuracyCriterion
from bitwright.compat.neural_compressor.inputs import source_of
from bitwright.support.wording import warn_user

if TYPE_CHECKING:
    from bitwright.jobs.tuning.result import TuneResult

TUNED_FOR_CPU = "models are tuned for ONNX Runtime's CPU kernels"
"""Why options about devices, backends and other ways to search or run are ignored."""

_MIN_SAMPLES = 16


def tune_within(
    model: Any,
    samples: Sequence[Any],
    evaluate: Callable[[Any], float],
    criterion: AccuracyCriterion,
    **options: Any,
) -> TuneResult:
    """Run `tune` with a function of a model that has evaluation samples of its own."""
    from bitwright.api import tune

    # Those of `tune` only stand in for them.
    stand_ins = [samples[index % len(samples)] for index in range(max(_MIN_SAMPLES, len(samples)))]
    return tune(
        source_of(model),
        data=list(samples),
        eval_data=stand_ins,
        evaluate=Once(evaluate),
        evaluate_on="model",
        max_drop=criterion.tolerable_loss,
        relative=criterion.criterion == "relative",
        lower_is_better=not criterion.higher_is_better,
        keep_quantized=options.get("purpose", "speed") == "speed",  # how fast it is was not asked
        **options,
    )


class Once:
    """A function of a model, which is called once for each model."""

    def __init__(self, function: Callable[[Any], float]) -> None:
        self._function = function
        self._known: dict[bytes, float] = {}
        self.__name__ = getattr(function, "__name__", type(function).__name__)

    def __call__(self, model: Any, samples: Any = None) -> float:
        """Return the metric of a model; its samples are the function's."""
        key = hashlib.sha256(model.SerializeToString(deterministic=True)).digest()
        if key not in self._known:
            self._known[key] = float(self._function(model))
        return self._known[key]


def closest(result: TuneResult) -> ONNXModel | None:
    """Return the model that was found, or warn that there is none."""
    if result.met:
        return ONNXModel(result.model, result.plan)
    if result.is_float:
        _warn_of_missed("a model with anything quantized")
        return None
    measured = result.point.measured
    _warn_of_missed(_closest(None if measured is None else measured.drop))
    return None


def first_within(
    models: Iterable[ONNXModel],
    evaluate: Callable[[Any], float],
    reference: Any,
    criterion: AccuracyCriterion,
) -> ONNXModel | None:
    """Return the first model whose metric falls no further than it may, or warn that none does."""
    score = float(evaluate(ONNXModel(source_of(reference)).model))
    allowed = criterion.tolerable_loss
    if criterion.criterion == "relative":
        allowed *= abs(score)
    least: float | None = None
    for made in models:
        found = float(evaluate(made.model))
        drop = score - found if criterion.higher_is_better else found - score
        if drop <= allowed:
            return made
        least = drop if least is None else min(least, drop)
    _warn_of_missed(_closest(least))
    return None


def _closest(drop: float | None) -> str:
    fell = "more than that" if drop is None else f"{drop:.3g}"
    return f"the closest model, whose metric falls by {fell},"


def _warn_of_missed(model: str) -> None:
    warn_user(
        f"{model} is not returned: it is not within the tolerable loss; bitwright.tune gives it "
        "all the same."
    )
