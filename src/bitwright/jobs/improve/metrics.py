"""Metrics that a model is tuned to: the user's own function, or one by its name."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import inspect
import math
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from bitwright.assess import Judge, choose_kind, class_axis
from bitwright.data.labelled import LABEL
from bitwright.errors import DataError, RecipeError, did_you_mean

Array = npt.NDArray[Any]
Outputs = Mapping[str, Array]

Scope = Literal["sample", "set", "model"]
"""What a function scores: the outputs for one sample, those for all samples, or a model."""
SCOPES: tuple[str, ...] = get_args(Scope)

_LABEL_NAMES = (LABEL, "labels", "target", "targets", "y", "class")


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric; higher is better, once `sign` is applied."""

    name: str
    function: Callable[..., Any]
    scope: Scope = "sample"
    sign: float = 1.0
    against_float: bool = False
    """Whether it compares with what the float model gave."""
    guesses: int = 0
    """How many classes a sample may name, where it has a label; 0: it needs none."""
    most: float | None = None
    """The most that a sample can score; None: not known."""

    @property
    def identity(self) -> str:
        """What tells metrics apart whose scores cannot be compared."""
        try:
            source = inspect.getsource(self.function)
        except (OSError, TypeError):
            source = getattr(self.function, "__qualname__", type(self.function).__name__)
        parts = (self.name, self.scope, str(self.sign), source)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def score(self, outputs: Outputs, sample: Mapping[str, Any], expected: Outputs | None) -> float:
        """Return the score of one sample; `expected` is what float gave for it."""
        given = (outputs, sample, expected) if self.against_float else (outputs, sample)
        return self._number(self.function(*given))

    def score_set(self, outputs: Sequence[Outputs], samples: Sequence[Mapping[str, Any]]) -> float:
        """Return the score of a whole set."""
        return self._number(self.function(outputs, samples))

    def score_model(self, model: Any, samples: Sequence[Mapping[str, Any]]) -> list[float]:
        """Return the scores of a model: one, or one for each sample."""
        found = self.function(model, samples)
        values = np.asarray(found, np.float64).reshape(-1)
        return [self._number(value) for value in values]

    def _number(self, value: Any) -> float:
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise DataError(
                f"the metric {self.name!r} gave a {type(value).__name__}; it must return a number."
            ) from None
        if not math.isfinite(number):
            raise DataError(f"the metric {self.name!r} gave {number}; it must return a number.")
        return self.sign * number


def open_metric(
    evaluate: Callable[..., Any] | str | None,
    *,
    scope: Scope = "sample",
    lower_is_better: bool = False,
    labelled: bool = False,
) -> Metric:
    """Return a metric: a function, the name of one here, or `file.py:function`.

    None takes top-1 accuracy where there are labels, else agreement with float.
    """
    sign = -1.0 if lower_is_better else 1.0
    if evaluate is None:
        evaluate = "top1" if labelled else "agreement"
    if callable(evaluate):
        name = getattr(evaluate, "__name__", type(evaluate).__name__)
        return Metric(name, evaluate, scope, sign)
    if ":" in evaluate:
        return Metric(evaluate, _load_function(evaluate), scope, sign)
    if evaluate not in METRICS:
        raise RecipeError(
            f"there is no metric {evaluate!r}; give one of {', '.join(METRICS)}, or your own as "
            f"score.py:function.{did_you_mean(evaluate, METRICS)}"
        )
    if scope != "sample" or lower_is_better:
        raise RecipeError(
            f"the metric {evaluate!r} scores samples, and higher is better; what a function "
            "scores, and that lower is better, is said of your own."
        )
    return METRICS[evaluate]


def _load_function(place: str) -> Callable[..., Any]:
    """Load a function of the user's from a file."""
    file, _, name = place.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise RecipeError(f"there is no file {file!r} to take the metric {name!r} from.")
    spec = importlib.util.spec_from_file_location(f"bitwright_metric_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise RecipeError(f"{file!r} is no Python file; give the metric as score.py:function.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # so that classes in it can be found by their names
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise RecipeError(
            f"{file!r}, which has the metric, fails: {type(error).__name__}: {error}."
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        known = [each for each, value in vars(module).items() if callable(value)]
        raise RecipeError(f"{file!r} has no function {name!r}.{did_you_mean(name, known)}")
    return _telling(place, function)


def _telling(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of a file that says in one sentence where it fails, and what it was given.

    Functions that are handed over in Python fail with their own errors.
    """

    @functools.wraps(function)
    def score(*given: Any) -> Any:
        try:
            return function(*given)
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            raise DataError(
                f"the metric {name!r} fails at line {place.lineno} of {place.filename!r}: "
                f"{type(error).__name__}: {error}. It is given {_names(given)}."
            ) from error

    return score


def _names(given: Sequence[Any]) -> str:
    """Return what a function is given, by the names that it may ask for."""
    firsts = [one[0] if isinstance(one, Sequence) and one else one for one in given]
    kinds = zip(("outputs", "a sample"), firsts, strict=False)
    shown = [
        f"{kind} with {', '.join(map(repr, one))}"
        for kind, one in kinds
        if isinstance(one, Mapping)
    ]
    return " and ".join(shown) or "a model and samples"


# Metrics by name -------------------------------------------------------------------------------


def _class_scores(outputs: Outputs, sample: Mapping[str, Any]) -> tuple[Array, int]:
    """Return the first output with scores of classes, and the axis of these."""
    inputs = [np.asarray(value) for value in sample.values() if hasattr(value, "dtype")]
    for name, array in outputs.items():
        if array.dtype.kind == "f" and (axis := class_axis(name, array.shape, inputs)) is not None:
            return array, axis
    raise DataError(
        "no output of this model holds scores of classes, as [batch, classes]; give a metric of "
        "your own as a function of its outputs."
    )


def count_classes(outputs: Outputs, sample: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many rows of class scores a sample has, and of how many classes."""
    scores, axis = _class_scores(outputs, sample)
    classes = scores.shape[axis]
    return scores.size // max(classes, 1), classes


def margin_of(outputs: Outputs, sample: Mapping[str, Any]) -> float | None:
    """Return how far the best class is ahead of the next, in the row where that is least.

    None where no output has scores of classes.
    """
    try:
        scores, axis = _class_scores(outputs, sample)
    except DataError:
        return None
    rows = np.moveaxis(scores, axis, -1).reshape(-1, scores.shape[axis])
    if rows.shape[1] < 2:
        return None
    next_best, best = np.partition(rows, -2, axis=1)[:, -2:].T
    return round(float(np.min(best - next_best)), 6)


def _label_of(sample: Mapping[str, Any]) -> Array:
    known = [name for name in _LABEL_NAMES if name in sample]
    if not known:
        raise DataError(
            "the samples have no label, which this metric needs; give labels, or samples with a "
            f"{LABEL!r} beside the model's inputs."
        )
    return np.asarray(sample[known[0]]).reshape(-1)


def _top(outputs: Outputs, sample: Mapping[str, Any], count: int) -> float:
    scores, axis = _class_scores(outputs, sample)
    rows = np.moveaxis(scores, axis, -1).reshape(-1, scores.shape[axis])
    labels = _label_of(sample)
    if labels.size not in (1, len(rows)):
        raise DataError(
            f"a sample has {labels.size} labels, and the model gives {len(rows)} rows of scores; "
            "give one label for each row."
        )
    best = np.argsort(-rows, axis=1, kind="stable")[:, :count]
    return float(np.mean(np.any(best == labels[:, None], axis=1)))


def _top1(outputs: Outputs, sample: Mapping[str, Any]) -> float:
    return _top(outputs, sample, 1)


def _top5(outputs: Outputs, sample: Mapping[str, Any]) -> float:
    return _top(outputs, sample, 5)


def _agreement(outputs: Outputs, sample: Mapping[str, Any], expected: Outputs) -> float:
    """Return the share of rows with float's best class; without classes, the closeness."""
    shares = []
    inputs = [np.asarray(value) for value in sample.values() if hasattr(value, "dtype")]
    for name, wanted in expected.items():
        if wanted.dtype.kind != "f" or not wanted.size:
            continue
        choice = choose_kind(name, wanted, inputs)
        if choice.top1 and choice.axis is not None:
            found = outputs[name]
            same = found.shape == wanted.shape
            axis = choice.axis
            shares.append(
                float(np.mean(found.argmax(axis) == wanted.argmax(axis))) if same else 0.0
            )
    return float(np.mean(shares)) if shares else _closeness(outputs, sample, expected)


def _closeness(outputs: Outputs, sample: Mapping[str, Any], expected: Outputs) -> float:
    """Return 1 less the loss that the judge of results sees."""
    judge = Judge()
    judge.add({}, dict(expected), dict(outputs))
    return 1 - judge.finish().loss


def _cosine(outputs: Outputs, sample: Mapping[str, Any], expected: Outputs) -> float:
    """Return the cosine between each float output and float's, of the worst of them."""
    found = []
    for name, wanted in expected.items():
        if wanted.dtype.kind != "f" or not wanted.size:
            continue
        one = wanted.astype(np.float64).reshape(-1)
        other = outputs[name].astype(np.float64).reshape(-1)
        if one.size != other.size:
            return 0.0
        size = np.linalg.norm(one) * np.linalg.norm(other)
        found.append(float(one @ other / size) if size else float(np.array_equal(one, other)))
    return min(found, default=1.0)


def _likelihood(outputs: Outputs, sample: Mapping[str, Any]) -> float:
    """Return the mean log-probability that a language model gives each next token."""
    tokens = sample.get("input_ids")
    logits = next((a for a in outputs.values() if a.ndim == 3 and a.dtype.kind == "f"), None)
    if tokens is None or logits is None or logits.shape[:2] != np.shape(tokens):
        raise DataError(
            "the likelihood is for language models, with an input 'input_ids' and logits of "
            "[batch, length, vocabulary]; give another metric."
        )
    scores = logits[:, :-1].astype(np.float64)
    scores -= scores.max(axis=-1, keepdims=True)
    chosen = np.take_along_axis(scores, np.asarray(tokens)[:, 1:, None], axis=-1)[..., 0]
    return float(np.mean(chosen - np.log(np.exp(scores).sum(axis=-1))))


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("top1", _top1, guesses=1, most=1.0),
        Metric("top5", _top5, guesses=5, most=1.0),
        Metric("agreement", _agreement, against_float=True, most=1.0),
        Metric("cosine", _cosine, against_float=True, most=1.0),
        Metric("closeness", _closeness, against_float=True, most=1.0),
        Metric("likelihood", _likelihood),
    )
}
"""The metrics that have a name."""
