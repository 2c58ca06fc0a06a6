"""What is to be tuned, what cannot be, and what each of the samples is for."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np

from bitwright.data import InputSpec, LabelledSamples, fingerprint_data, open_labelled
from bitwright.errors import ArgumentError, DataError, RecipeError, TargetError, did_you_mean
from bitwright.jobs.calibration import Calibration
from bitwright.jobs.improve.effort import Effort, check_effort
from bitwright.jobs.improve.metrics import Metric
from bitwright.recipe import Purpose, Recipe
from bitwright.support.wording import read_bytes

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """How far the metric may fall, and what is worth the more of two models within that."""

    max_drop: float = 0.01
    relative: bool = False
    """Whether the drop is a share of the float model's score."""
    is_share: bool = False
    """Whether it was given in percent, of a metric between 0 and 1."""
    purpose: Purpose = "speed"
    max_size: int | None = None
    """Bytes that the model may have: of all that fit, the one that loses least is looked for."""
    keep_quantized: bool = False
    """Whether a quantized model is wanted where float is as fast, too."""
    seconds: float | None = None

    @classmethod
    def asked(
        cls,
        max_drop: float | str,
        relative: bool,
        purpose: str,
        max_size: int | str | None,
        keep_quantized: bool,
        time: float | str | None,
    ) -> Goal:
        """Return the goal that a user's words say."""
        check_word("purpose", purpose, get_args(Purpose))
        drop, is_share = read_drop(max_drop)
        if max_size is not None and purpose != "size":
            raise ArgumentError('max_size is a number of bytes: tune for size (purpose="size").')
        if keep_quantized and purpose == "size":
            raise ArgumentError(
                "keep_quantized is about speed: for size, what is quantized is smaller."
            )
        return cls(
            max_drop=drop,
            relative=relative,
            is_share=is_share and not relative,
            purpose=purpose,  # type: ignore[arg-type]  # checked above
            max_size=None if max_size is None else read_bytes(max_size),
            keep_quantized=keep_quantized,
            seconds=read_time(time),
        )

    @property
    def is_timed(self) -> bool:
        """Whether time is to be saved, and not bytes."""
        return self.purpose != "size"

    def limit(self, float_score: float) -> float:
        """Return how far the metric may fall, in its own units."""
        if self.relative:
            return self.max_drop * abs(float_score)
        if self.is_share and abs(float_score) > 1:
            raise RecipeError(
                f"a drop in percent is of a metric between 0 and 1, and float scores "
                f"{float_score:.4g}; give the drop in the metric's own units, or make it relative."
            )
        return self.max_drop


def check_word(option: str, word: str, known: Sequence[str]) -> None:
    """Refuse a word that an option does not know."""
    if word not in known:
        raise ArgumentError(
            f"{option} is {' or '.join(map(repr, known))}, not {word!r}.{did_you_mean(word, known)}"
        )


def read_drop(drop: float | str) -> tuple[float, bool]:
    """Return a drop as a number, and whether it was given in percent."""
    text = str(drop).strip()
    found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)(e-?\d+)?\s*(%?)", text)
    if found is None:
        raise RecipeError(f"{text!r} is no drop of a metric; write 0.5%, or 0.005.")
    number = float(f"{found.group(1)}{found.group(2) or ''}")
    return (number / 100, True) if found.group(3) else (number, False)


def read_time(time: float | str | None) -> float | None:
    """Return seconds."""
    if time is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", str(time).strip().lower())
    if found is None or found.group(2) not in _UNITS or float(found.group(1)) <= 0:
        raise RecipeError(f"{str(time)!r} is no length of time; write 90s, 20m or 1.5h.")
    return float(found.group(1)) * _UNITS[found.group(2)]


@dataclass(frozen=True, kw_only=True)
class TuneRequest:
    """What is to be tuned, by which samples and metric, and where the result goes."""

    source: Any
    output: Path | None
    recipe: Recipe
    target: str | None = None
    calibration: Calibration
    """What to calibrate with; without `eval_data`, a part of it evaluates."""
    eval_data: Any
    labels: Any
    metric: Callable[[bool], Metric]
    """Gives the metric, once it is known whether there are labels."""
    goal: Goal
    effort: Effort | None = None
    eval_limit: int | None = None
    work: Path | None = None
    providers: Sequence[str] | None = None
    external_data: bool | None = None
    report: Callable[[str], None] = field(default=lambda line: None)


def check_request(request: TuneRequest) -> None:
    """Refuse what cannot be tuned, before any work is done."""
    recipe = request.recipe
    if recipe.mode in ("dynamic", "cast"):
        what = "dynamic" if recipe.mode == "dynamic" else "without quantizers"
        raise RecipeError(
            f"tuning is for recipes that calibrate activations or store weights in blocks, and "
            f"{recipe.name!r} is {what}; take a static one, such as int8."
        )
    if recipe.fine_tune is not None:
        raise RecipeError(
            f"recipe {recipe.name!r} fine-tunes, and tuning makes many models of one plan; leave "
            "fine_tune out."
        )
    if recipe.rewrite.channels_last:
        raise RecipeError(
            "tuning feeds models as they are given, and rewrite.channels_last changes their "
            "inputs; leave it out, and apply the plan that was found with it."
        )
    if recipe.mode == "weight-only" and request.goal.is_timed:
        raise RecipeError(
            f"recipe {recipe.name!r} stores weights in blocks, and a token takes as long as "
            "reading them: tune it for size."
        )
    if request.effort is not None:
        check_effort(request.effort, recipe, request.calibration)
    if request.target not in (None, "cpu") and request.goal.is_timed:
        raise TargetError(
            f"speed is measured with ONNX Runtime on this machine, which says nothing of "
            f"{request.target}; tune for size, or for the target cpu."
        )
    if request.calibration.data is None:
        raise DataError(
            "tuning calibrates and needs data; give data (arrays, files, a folder of images, a "
            "data reader)."
        )


FINAL_SHARE = 0.2
MIN_FINAL = 50
MAX_CALIBRATION = 128
MIN_SAMPLES = 16
"""Samples that there must be to score models on."""


class Parts(NamedTuple):
    """Which samples are for what, each in a random order that is always the same."""

    calibration: tuple[int, ...]
    """To calibrate with, and to choose by their output error."""
    evaluation: tuple[int, ...]
    """What the metric is measured on during the search."""
    final: tuple[int, ...]
    """What the result is measured on; the search never sees them."""


def split_parts(count: int, *, calibrates: bool) -> Parts:
    """Divide samples: a fifth is for the end, 50 at least; some, where these are all, calibrate."""
    if count < (2 * MIN_SAMPLES if calibrates else MIN_SAMPLES):
        raise DataError(
            f"tuning needs {2 * MIN_SAMPLES if calibrates else MIN_SAMPLES} samples, to search "
            "with some and to report on others that the search has not seen, and there are "
            f"{count}; give more."
        )
    # Files often come class by class, and labels in turn: any regular division would see that.
    order = tuple(int(index) for index in np.random.default_rng(0).permutation(count))
    final = min(max(MIN_FINAL, round(FINAL_SHARE * count)), count // (4 if calibrates else 3))
    end = final + (min(MAX_CALIBRATION, count // 3) if calibrates else 0)
    return Parts(order[final:end], order[end:], order[:final])


class TuneSamples:
    """The samples of a request, read when they are first needed."""

    def __init__(self, request: TuneRequest, specs: Sequence[InputSpec]) -> None:
        self._request, self._specs = request, specs
        self.is_shared = request.eval_data is None
        """Whether the same data serves to calibrate and to evaluate."""

    @cached_property
    def samples(self) -> LabelledSamples:
        """The samples to evaluate with; where data is shared, all of them."""
        request, given = self._request, self._request.calibration
        return open_labelled(
            given.data if self.is_shared else request.eval_data,
            self._specs,
            labels=request.labels,
            limit=given.limit if self.is_shared else request.eval_limit,
            transform=given.transform,
            memory_budget=given.memory_budget,
        )

    @property
    def has_labels(self) -> bool:
        """Whether the samples come with anything beside the model's inputs."""
        return self._request.labels is not None or bool(self.samples.extra)

    @cached_property
    def parts(self) -> Parts:
        """Which samples are for what."""
        count = len(self.samples)
        return split_parts(count, calibrates=self.is_shared)

    def calibration(self) -> Calibration:
        """Return the data to calibrate with."""
        given = self._request.calibration
        if not self.is_shared:
            return given
        data = [self.samples.feeds(index) for index in self.parts.calibration]
        return replace(given, data=data, limit=None, transform=None)

    @cached_property
    def fingerprint(self) -> str:
        """What tells the data apart from other data."""
        request, given = self._request, self._request.calibration
        known = [fingerprint_data(x) for x in (given.data, request.eval_data, request.labels)]
        if None in known:  # a stream: what it gave is what it was
            known = [fingerprint_data(list(self.samples)) or ""]
        text = f"{known} {given.limit} {request.eval_limit} {given.transform}"
        return hashlib.sha256(text.encode()).hexdigest()
