"""Scores of models by a user's metric, on the same samples as float, from as few as that takes."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import onnx_ir as ir

from bitwright.assess.judge.sequential import (
    Drop,
    Verdict,
    drop_of_folds,
    drop_of_pairs,
    look_sizes,
)
from bitwright.data import ArrayStore, LabelledSamples, Sample
from bitwright.errors import DataError
from bitwright.graph import PortableModel
from bitwright.jobs.improve.journal import Journal
from bitwright.jobs.improve.metrics import Metric, Outputs, count_classes, margin_of
from bitwright.run import Session
from bitwright.support import LOCAL, Engine, counted, warn_user

FOLDS = 20
MARGIN_SHARE = 1 / 8
"""The share of the samples that counts as hard for a small margin of float."""
MAX_HARD = 1 / 4
"""The largest share of the samples that may be hard: with more, the next looks tell as early."""
MIN_SKILL_SAMPLES = 8
"""Of fewer, a good model may get each wrong."""
_SKILLED = 0.9
"""Guesses have less: among six classes, five of them hold the right one in 83 %."""
_KEPT_BYTES = 512 << 20
"""Outputs that are kept in memory; more are on disk."""


@dataclass(frozen=True, slots=True)
class Score:
    """How far a metric falls with a candidate, and whether that is within the limit."""

    drop: Drop
    verdict: Verdict
    """"open": not all samples were looked at, as time ran out."""

    @property
    def passes(self) -> bool:
        """Whether it is within the limit."""
        return self.verdict == "pass"

    def decided(self, limit: float) -> Score:
        """Return the score with a verdict: of what was looked at, the mean decides."""
        if self.verdict != "open":
            return self
        return Score(self.drop, "pass" if self.drop.mean <= limit else "fail")


@dataclass(frozen=True)
class Runnable:
    """A model that can be run, and what it is for functions that evaluate models."""

    opened: Any
    """A session of it, where there is one."""
    model: ir.Model
    providers: Sequence[str] | None = None
    float_weights: bool = False
    """How a session of it is opened."""

    @cached_property
    def session(self) -> Any:
        """What runs it."""
        if self.opened is not None:
            return self.opened
        return Session(self.model, providers=self.providers, float_weights=self.float_weights)

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_there, (PortableModel(self.model), self.providers, self.float_weights)


def _open_there(model: PortableModel, *given: Any) -> Runnable:
    return Runnable(None, model.model, *given)


def _output_runner(runnable: Runnable) -> Callable[[Iterable[Sample]], Iterator[Outputs]]:
    """Return what runs a model on samples."""
    return lambda samples: (runnable.session.run(feeds) for feeds in samples)


Open = Callable[[], Runnable]


class _Samples:
    """The samples of one part of the data, in their order, and what runs models on them."""

    def __init__(
        self, samples: Callable[[], LabelledSamples], order: Sequence[int], engine: Engine
    ) -> None:
        self._samples, self._order, self._engine = samples, order, engine
        self.seconds: float | None = None
        """How long one sample took, of the last model."""

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        """Return a sample with its labels, by its place in the order."""
        return self._samples()[self._order[index]]

    def first(self, size: int) -> list[Mapping[str, Any]]:
        """Return the first samples."""
        return [self[index] for index in range(size)]

    def feeds(self, index: int) -> dict[str, Any]:
        """Return what the model reads of a sample."""
        return self._samples().feeds(self._order[index])

    def run(self, runnable: Runnable, places: Sequence[int]) -> Iterator[Outputs]:
        """Yield what a model gives for samples, by their places, and count the time they take."""
        seconds, count, begun = 0.0, 0, time.perf_counter()
        try:
            with self._engine.open(_output_runner, runnable) as workers:
                begun = time.perf_counter()
                for found in workers.stream(self.feeds(index) for index in places):
                    seconds += time.perf_counter() - begun
                    count += 1
                    yield found
                    begun = time.perf_counter()
        finally:
            if count:
                self.seconds = seconds / count


class Scorer:
    """Scores models on one part of the samples; every figure is written into the journal."""

    def __init__(
        self,
        metric: Metric,
        samples: Callable[[], LabelledSamples],
        order: Sequence[int],
        journal: Journal,
        open_float: Open,
        *,
        part: str,
        engine: Engine = LOCAL,
    ) -> None:
        """Take the samples of `order`, whose part of the data has a name of its own.

        `engine` runs models; metrics are computed here.
        """
        self.metric, self.journal, self._part = metric, journal, part
        self.samples = _Samples(samples, order, engine)
        self.models: set[str] = set()
        """Which models were run on samples, beside float."""
        self.lost: dict[str, set[int]] = {}
        """Model -> samples that it scored worse than float: others of its plan will, too."""
        self.floats = self._scored("float", open_float)
        """Float is run no further than the models that are held against it."""

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def sample_seconds(self) -> float:
        """How long one sample took, of the last model; 0 where none was run."""
        return self.samples.seconds or 0.0

    @property
    def first_look_seconds(self) -> float:
        """How long a model takes on the samples of the first look, as far as that is known."""
        return self.sample_seconds * self._first_look

    @property
    def _first_look(self) -> int:
        return len(self) if self.metric.scope == "model" else look_sizes(len(self))[0]

    def float_score(self, *, whole: bool = False) -> tuple[float, int]:
        """Return the metric of the float model, and on how many samples it is known.

        Float is run no further than other models are, unless the `whole` set is asked for.
        """
        least = len(self) if whole else self._first_look
        size = max([least, *filter(self.floats.knows, look_sizes(len(self)))])
        figures = self.floats.figures(size)
        self._check_float(figures, size)
        return float(figures[0] if self.metric.scope == "set" else np.mean(figures)), size

    def _check_float(self, figures: Sequence[float], size: int) -> None:
        """Refuse labels, and warn of a function, by which float does no better than guesses."""
        metric, mean = self.metric, float(np.mean(figures))
        if size < MIN_SKILL_SAMPLES or metric.against_float or metric.sign < 0:
            return
        among, hopeless = "", not any(figures)
        remedy = "look at the function and the labels, or say that it measures an error"
        if metric.guesses and mean < _SKILLED:
            [outputs] = self.samples.run(self.floats.opened, [0])
            rows, classes = count_classes(outputs, self.samples[0])
            chance = min(metric.guesses / classes, 1.0)
            error = math.sqrt(chance * (1 - chance) / (size * rows))
            hopeless = mean <= chance + error < 1
            among = f" of {classes} classes, where guesses have {chance:.3g}"
            remedy = (
                "give labels as the model was trained with (the classes of folders are numbered by "
                "their sorted names, from 0) and its own preprocessing, or judge by agreement"
            )
        if hopeless:
            sentence = (
                f"the float model itself has {metric.name} {mean:.3g} on "
                f"{counted(size, 'sample')}{among}, so that no drop says anything; {remedy}."
            )
            if metric.guesses:
                raise DataError(sentence)
            warn_user(sentence)  # what a function of the user's own means is not known

    def score(
        self,
        name: str,
        open_model: Open,
        limit: float,
        *,
        first_look: bool = False,
        in_order: bool = False,
        has_other: bool = False,
        may_go_on: Callable[[float], bool] = lambda seconds: True,
    ) -> Score:
        """Say whether a model is within the limit, from as few samples as that takes.

        The samples are in random order, so that a part of them tells about all. Where the first
        look leaves it open, those that are likely to change come next: by themselves they say
        nothing of the others, but where they lose more than all samples together may, the
        model is beyond the limit for sure. With too little of a drop to expect that, float is not
        run on all samples for it.

        `first_look` ends with the first look, and the verdict may be "open"; `in_order` takes no
        samples before others, so that the drop has its error in any case. `has_other` says that
        another model is within the limit: then one that hardly will be is not worth all samples.
        `may_go_on` hears how long the next look will take, and may stop the scoring before it.
        """
        looks = look_sizes(len(self))
        if self.metric.scope == "model":
            looks = looks[-1:]
        elif first_look:
            looks = looks[:1]
        run = self._scored(name, lambda: self._note_run(name, open_model))
        score: Score | None = None
        for size in looks:
            ahead = 0.0 if score is None else self.sample_seconds * (size - score.drop.samples)
            if score is not None and not run.knows(size) and not may_go_on(ahead):
                break
            drop = run.look(size)
            score = Score(drop, drop.verdict(limit, last=size == len(self)))
            if score.verdict != "open":
                break
            if has_other and drop.is_unlikely(limit, len(self)):
                return Score(drop, "fail")
            is_first = size == looks[0] and len(looks) > 1 and not run.knows(looks[1])
            if is_first and not in_order and (drop.mean > limit or self.floats.knows(len(self))):
                counted = run.count_losses(size, limit, may_go_on)
                if counted is not None:
                    return Score(counted, "fail")
        assert score is not None
        return score

    def score_of_float(self) -> Score:
        """Return the score of a model of which nothing is quantized: it need not be run."""
        return Score(Drop(len(self), 0.0, 0.0), "pass")

    def _note_run(self, name: str, open_model: Open) -> Runnable:
        self.models.add(name)
        return open_model()

    def _scored(self, name: str, open_model: Open) -> _Scored:
        return _SCORED[self.metric.scope](self, f"{self._part}/{name}", open_model)


@dataclass
class _Scored:
    """One model, float as any other, on growing numbers of samples."""

    scorer: Scorer
    key: str
    """What its figures are kept under in the journal."""
    open_model: Open

    def knows(self, size: int) -> bool:
        """Whether it was scored on so many samples before."""
        return f"{self.key}/{size}" in self.scorer.journal

    def figures(self, size: int) -> list[float]:
        """Return the figures of the first samples, as the scope of the metric has them."""
        name, journal = f"{self.key}/{size}", self.scorer.journal
        if name not in journal:
            journal[name] = self._measure(size)
        return list(journal.get(name))

    def look(self, size: int) -> Drop:
        """Return the drop on the first samples."""
        return self._drop(size, self.scorer.floats.figures(size), self.figures(size))

    def count_losses(
        self, size: int, limit: float, may_go_on: Callable[[float], bool]
    ) -> Drop | None:
        """Return the least that is lost on all samples, if that is beyond the limit already."""
        return None

    def outputs(self, size: int) -> ArrayStore:
        """Return what the model gives for the first samples; what is computed is kept."""
        for found in self.run(range(len(self._outputs), size)):
            self._outputs.append(found)
        return self._outputs

    def run(self, places: Sequence[int]) -> Iterable[Outputs]:
        """Return what the model gives for samples, by their places."""
        return self.scorer.samples.run(self.opened, places) if places else ()

    def _measure(self, size: int) -> Sequence[float]:
        raise NotImplementedError

    def _drop(self, size: int, before: list[float], after: list[float]) -> Drop:
        raise NotImplementedError

    @cached_property
    def opened(self) -> Runnable:
        """The model, opened when it is first run."""
        return self.open_model()

    @cached_property
    def _outputs(self) -> ArrayStore:
        return ArrayStore(memory_budget=_KEPT_BYTES)


class _ScoredModel(_Scored):
    """A model that a function scores with samples of its own choice: one figure, or one each."""

    def _measure(self, size: int) -> Sequence[float]:
        samples = self.scorer.samples.first(size)
        return self.scorer.metric.score_model(ir.to_proto(self.opened.model), samples)

    def _drop(self, size: int, before: list[float], after: list[float]) -> Drop:
        if len(before) > 1 and len(before) == len(after):
            return replace(drop_of_pairs(before, after), samples=size)
        return Drop(size, float(np.mean(before) - np.mean(after)), math.nan)


class _ScoredSet(_Scored):
    """A model whose outputs a function scores all at once: whole, and without each fold."""

    def _measure(self, size: int) -> Sequence[float]:
        outputs, samples = self.outputs(size), self.scorer.samples
        return score_folds(
            self.scorer.metric, [outputs[index] for index in range(size)], samples.first(size)
        )

    def _drop(self, size: int, before: list[float], after: list[float]) -> Drop:
        whole, *lost = (one - other for one, other in zip(before, after, strict=True))
        return drop_of_folds(size, whole, lost, before[0])


class _ScoredSamples(_Scored):
    """A model that is scored sample by sample, in any order."""

    @cached_property
    def known(self) -> dict[int, float]:
        """Scores by the places of samples."""
        if self._is_float and self.scorer.metric.against_float:  # it agrees with itself
            return dict.fromkeys(range(len(self.scorer)), 1.0)
        kept = self.scorer.journal.get(self.key) or {}
        return {int(index): score for index, score in kept.items()}

    @property
    def _is_float(self) -> bool:
        return self.scorer.floats is self

    def knows(self, size: int) -> bool:
        """Whether it was scored on so many samples before."""
        return all(index in self.known for index in range(size))

    def figures(self, size: int) -> list[float]:
        """Return the scores of the first samples."""
        for _ in self._score(range(size)):
            pass
        return [self.known[index] for index in range(size)]

    def count_losses(
        self, size: int, limit: float, may_go_on: Callable[[float], bool]
    ) -> Drop | None:
        """Return the least that is lost on all samples, if that is beyond the limit already.

        Samples that are likely to change are run one after the other. What all others could gain
        at most is taken as gained, so that no order of them makes this wrong.
        """
        floats, samples, known = self.scorer.floats, self.scorer.samples, self.known
        count = len(samples)
        if self._best_score(floats.figures(size)) is None:  # before float is run on all
            return None
        before = floats.figures(count)
        most = self._best_score(before)
        if most is None:
            return None
        hard = [index for index in self._hard_samples(before, most) if index not in known]
        if len(hard) > MAX_HARD * count:
            return None
        lost = sum(before[index] - score for index, score in known.items())
        gained = sum(most - before[index] for index in range(count) if index not in known)
        allowed = limit * count
        if lost - gained <= allowed and may_go_on((samples.seconds or 0.0) * len(hard)):
            for index in self._score(hard):
                lost += before[index] - known[index]
                gained -= most - before[index]
                if lost - gained > allowed:
                    break
        least = (lost - gained) / count
        if least <= limit:
            return None
        # The first samples are a fair part of all: where they lost more, that is the better guess.
        share = sum(before[index] - known[index] for index in range(size)) / size
        return Drop(len(known), max(share, least), math.nan, at_least=True)

    def _drop(self, size: int, before: list[float], after: list[float]) -> Drop:
        self._note_lost()
        return drop_of_pairs(before, after)

    def _score(self, places: Iterable[int]) -> Iterator[int]:
        """Score samples that are not known, one after the other; yield their places."""
        scorer, metric = self.scorer, self.scorer.metric
        places = [index for index in places if index not in self.known]
        if not places:
            return
        expected = scorer.floats.outputs(max(places) + 1) if metric.against_float else None
        margins = dict(enumerate(self._margins()))
        try:
            for index, output in zip(places, self.run(places), strict=True):
                sample = scorer.samples[index]
                wanted = None if expected is None else expected[index]
                self.known[index] = metric.score(output, sample, wanted)
                if self._is_float:
                    margins[index] = margin_of(output, sample)
                yield index
        finally:
            scorer.journal[self.key] = {str(index): one for index, one in self.known.items()}
            if self._is_float:
                scorer.journal[f"{self.key}/margins"] = [*margins.values()]
            else:
                self._note_lost()

    def _note_lost(self) -> None:
        before = self.scorer.floats.known  # type: ignore[attr-defined]  # of the same scope
        lost = {index for index, score in self.known.items() if score < before.get(index, score)}
        self.scorer.lost.setdefault(self.key, set()).update(lost)

    # Samples that are likely to change: models lost them, or float is hardly sure of them ---------

    def _margins(self) -> list[float | None]:
        """Return how far float's best class is ahead, for the samples that it was scored on."""
        return list(self.scorer.journal.get(f"{self.scorer.floats.key}/margins") or ())

    def _best_score(self, before: Sequence[float]) -> float | None:
        """Return the most that a sample can score, if but few score less in float.

        A function of which all scores of float are 0 or 1 is taken to give nothing else.
        """
        metric = self.scorer.metric
        most = metric.most
        if most is None:
            if not {metric.sign * score for score in before} <= {0.0, 1.0}:
                return None
            most = 1.0 if metric.sign > 0 else 0.0
        less = [score for score in before if score < most]
        return most if len(less) <= MAX_HARD * len(before) else None

    def _hard_samples(self, before: Sequence[float], most: float) -> list[int]:
        """Return the samples that are likely to change, or may gain, in the order to try them."""
        lost = Counter(index for found in self.scorer.lost.values() for index in found)
        margins = enumerate(self._margins())
        sure = sorted((margin, index) for index, margin in margins if margin is not None)
        close = [index for _, index in sure[: math.ceil(MARGIN_SHARE * len(before))]]
        may_gain = [index for index, score in enumerate(before) if score < most]
        return list(dict.fromkeys([*(index for index, _ in lost.most_common()), *close, *may_gain]))


_SCORED: dict[str, type[_Scored]] = {
    "sample": _ScoredSamples,
    "set": _ScoredSet,
    "model": _ScoredModel,
}


def score_folds(
    metric: Metric, outputs: Sequence[Outputs], samples: Sequence[Mapping[str, Any]]
) -> list[float]:
    """Return the score of a whole set, and behind it without each fold of it in turn."""
    whole = metric.score_set(outputs, samples)
    folds = min(FOLDS, len(outputs))
    parts = []
    for fold in range(folds):
        kept = [index for index in range(len(outputs)) if index % folds != fold]
        parts.append(metric.score_set([outputs[i] for i in kept], [samples[i] for i in kept]))
    return [whole, *parts]
