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
from bitwright.data import Sample
from bitwright.data.labelled import ArrayStore, LabelledSamples
from bitwright.graph import PortableModel
from bitwright.jobs.improve.journal import Journal
from bitwright.jobs.improve.metrics import Metric, Outputs, margin_of
from bitwright.run import open_session, run_session
from bitwright.support.engines import LOCAL, Engine

FOLDS = 20
MARGIN_SHARE = 1 / 8
"""The share of the samples that counts as hard for a small margin of float."""
MAX_HARD = 1 / 4
"""The largest share of the samples that may be hard: with more, the next looks tell as early."""
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
        return open_session(self.model, providers=self.providers, float_weights=self.float_weights)

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_there, (PortableModel(self.model), self.providers, self.float_weights)


def _open_there(model: PortableModel, *given: Any) -> Runnable:
    return Runnable(None, model.model, *given)


def _output_runner(runnable: Runnable) -> Callable[[Iterable[Sample]], Iterator[Outputs]]:
    """Return what runs a model on samples."""
    return lambda samples: (run_session(runnable.session, feeds) for feeds in samples)


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


class _FloatScores:
    """What the float model gave: it is run no further than the models that are held against it."""

    def __init__(
        self, metric: Metric, samples: _Samples, journal: Journal, open_float: Open, part: str
    ) -> None:
        self._metric, self._samples, self._journal = metric, samples, journal
        self._open, self._name = open_float, f"{part}/float"
        self._outputs = ArrayStore(memory_budget=_KEPT_BYTES)

    @property
    def is_whole(self) -> bool:
        """Whether float was run on all samples."""
        return len(self._journal.get(self._name) or ()) == len(self._samples)

    def known(self) -> list[float]:
        """Return the scores that were needed so far."""
        return list(self._journal.get(self._name) or ())

    def scores(self, size: int) -> list[float]:
        """Return the scores of the first samples; of a function of models it may be one number."""
        known: list[float] = self.known()
        if self._metric.scope == "model" and not known:
            known = self._metric.score_model(
                ir.to_proto(self._open().model), self._samples.first(size)
            )
            self._journal[self._name] = known
        elif self._metric.scope != "model" and len(known) < size:
            more = range(len(known), size)
            if self._metric.against_float:  # it agrees with itself
                known = [1.0] * len(self._samples)
            else:
                known += self._score(more)
            self._journal[self._name] = known
        return known[:size]

    def _score(self, places: Sequence[int]) -> list[float]:
        """Run the float model on samples; nothing of its outputs is kept."""
        scores, margins = [], self.margins()
        for index, found in zip(places, self._samples.run(self._open(), places), strict=True):
            sample = self._samples[index]
            scores.append(self._metric.score(found, sample, None))
            margins.append(margin_of(found, sample))
        self._journal[f"{self._name}/margins"] = margins
        return scores

    def margins(self) -> list[float | None]:
        """Return how far the best class is ahead, for the samples that float was scored on."""
        return list(self._journal.get(f"{self._name}/margins") or ())

    def largest_known_set(self, least: int) -> int:
        """Return the size of the largest set that was scored, or the one that is asked for."""
        looks = look_sizes(len(self._samples))
        return max([least, *(n for n in looks if f"{self._name}/{n}" in self._journal)])

    def of_set(self, size: int) -> tuple[float, list[float]]:
        """Return the score of the first samples as a set, and without each fold."""
        known = self._journal.get(f"{self._name}/{size}")
        if known is None:
            outputs = [self.outputs(index) for index in range(size)]
            known = score_folds(self._metric, outputs, self._samples.first(size))
            self._journal[f"{self._name}/{size}"] = known
        return known[0], known[1]

    def outputs(self, index: int) -> Outputs:
        """Return what the float model gives for a sample; what is computed is kept."""
        self.run_on(index + 1)
        return self._outputs[index]

    def run_on(self, size: int) -> None:
        """Compute what the float model gives for the first samples."""
        if len(self._outputs) < size:
            for found in self._samples.run(self._open(), range(len(self._outputs), size)):
                self._outputs.append(found)


class _HardSamples:
    """Samples that are likely to change: models lost them, or float is hardly sure of them."""

    def __init__(self, metric: Metric, floats: _FloatScores) -> None:
        self._metric, self._floats = metric, floats
        self._lost: dict[str, set[int]] = {}
        """Model -> samples that it scored worse than float."""

    def note(self, name: str, scores: Mapping[int, float]) -> None:
        """Remember what a model lost: others of the same plan will lose there, too."""
        before = self._floats.scores(max(scores, default=-1) + 1)
        lost = {index for index, score in scores.items() if score < before[index]}
        self._lost.setdefault(name, set()).update(lost)

    def best_score(self, size: int) -> float | None:
        """Return the most that a sample can score, if but few of the first ones score less.

        A function of which all scores of float are 0 or 1 is taken to give nothing else.
        """
        scores, most = self._floats.scores(size), self._metric.most
        if most is None:
            if not {self._metric.sign * score for score in scores} <= {0.0, 1.0}:
                return None
            most = 1.0 if self._metric.sign > 0 else 0.0
        less = [score for score in scores if score < most]
        return most if len(less) <= MAX_HARD * size else None

    def listed(self, most: float) -> list[int]:
        """Return the samples that are likely to change, or may gain, in the order to try them."""
        before = self._floats.known()
        lost = Counter(index for found in self._lost.values() for index in found)
        margins = enumerate(self._floats.margins())
        known = sorted((margin, index) for index, margin in margins if margin is not None)
        close = [index for _, index in known[: math.ceil(MARGIN_SHARE * len(before))]]
        may_gain = [index for index, score in enumerate(before) if score < most]
        return list(dict.fromkeys([*(index for index, _ in lost.most_common()), *close, *may_gain]))


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
        self.floats = _FloatScores(metric, self.samples, journal, open_float, part)
        self.hard = _HardSamples(metric, self.floats)
        self.models: set[str] = set()
        """Which models were run on samples."""

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
        size = len(self) if whole else self._first_look
        if self.metric.scope == "set":
            size = self.floats.largest_known_set(size)
            return self.floats.of_set(size)[0], size
        self.floats.scores(size)
        scores = self.floats.known()
        return float(np.mean(scores)), len(scores)

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
        run = self._run(name, open_model)
        # What all samples of an earlier run say counts, whatever the first of them looked like.
        has_other = has_other and not self.knows(name, limit)
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
            if is_first and not in_order and (drop.mean > limit or self.floats.is_whole):
                counted = run.count_losses(limit, may_go_on)
                if counted is not None:
                    return Score(counted, "fail")
        assert score is not None
        return score

    def score_of_float(self) -> Score:
        """Return the score of a model of which nothing is quantized: it need not be run."""
        return Score(Drop(len(self), 0.0, 0.0), "pass")

    def knows(self, name: str, limit: float) -> bool:
        """Whether the journal tells if a model is within the limit, without running it again."""
        return self._known_verdict(name, limit) is not None

    def knows_any(self, names: Iterable[str], limit: float) -> bool:
        """Whether the journal has one of these models within the limit."""
        return any(self._known_verdict(name, limit) == "pass" for name in names)

    def _known_verdict(self, name: str, limit: float) -> Verdict | None:
        run = self._run(name, _refuse_to_open)
        for size in look_sizes(len(self)):
            if not run.knows(size):
                return None
            verdict = run.look(size).verdict(limit, last=size == len(self))
            if verdict != "open":
                return verdict
        return None

    def _run(self, name: str, open_model: Open) -> _Run:
        return _RUNS[self.metric.scope](self, f"{self._part}/{name}", name, open_model)


def _refuse_to_open() -> Runnable:
    raise AssertionError("what is in the journal needs no model")


@dataclass
class _Run:
    """One model on growing numbers of samples."""

    scorer: Scorer
    key: str
    name: str
    open_model: Open

    def knows(self, size: int) -> bool:
        """Whether this look was made before."""
        return f"{self.key}/{size}" in self.scorer.journal

    def look(self, size: int) -> Drop:
        """Return the drop on the first samples."""
        known = self.scorer.journal.get(f"{self.key}/{size}")
        if known is None:
            drop, scores = self._measure(size)
            error = None if math.isnan(drop.error) else drop.error
            known = {"drop": drop.mean, "error": error, "step": drop.step, "scores": scores}
            self.scorer.journal[f"{self.key}/{size}"] = known
        if self.scorer.metric.scope == "sample":
            self.scorer.hard.note(self.key, dict(enumerate(known["scores"] or ())))
        error = math.nan if known["error"] is None else known["error"]
        return Drop(size, known["drop"], error, known["step"])

    def count_losses(self, limit: float, may_go_on: Callable[[float], bool]) -> Drop | None:
        """Return the least that is lost on all samples, if that is beyond the limit already."""
        return None

    def _measure(self, size: int) -> tuple[Drop, Sequence[float] | None]:
        raise NotImplementedError

    @cached_property
    def _opened(self) -> Runnable:
        opened = self.open_model()
        self.scorer.models.add(self.name)
        return opened


class _ModelRun(_Run):
    """A model that a function scores with samples of its own choice."""

    def _measure(self, size: int) -> tuple[Drop, Sequence[float] | None]:
        before = self.scorer.floats.scores(size)
        model = ir.to_proto(self._opened.model)
        after = self.scorer.metric.score_model(model, self.scorer.samples.first(size))
        if len(before) > 1 and len(before) == len(after):
            return replace(drop_of_pairs(before, after), samples=size), after
        return Drop(size, float(np.mean(before) - np.mean(after)), math.nan), after


class _SetRun(_Run):
    """A model whose outputs a function scores all at once."""

    @cached_property
    def _outputs(self) -> ArrayStore:
        return ArrayStore(memory_budget=_KEPT_BYTES)

    def _measure(self, size: int) -> tuple[Drop, Sequence[float] | None]:
        scorer = self.scorer
        whole, parts = scorer.floats.of_set(size)
        more = range(len(self._outputs), size)
        for output in scorer.samples.run(self._opened, more) if more else ():
            self._outputs.append(output)
        outputs = [self._outputs[index] for index in range(size)]
        found, folds = score_folds(scorer.metric, outputs, scorer.samples.first(size))
        lost = [one - other for one, other in zip(parts, folds, strict=True)]
        return drop_of_folds(size, whole - found, lost, whole), None


class _SampleRun(_Run):
    """A model that is scored sample by sample."""

    def _measure(self, size: int) -> tuple[Drop, Sequence[float] | None]:
        known = self._known_hard() | dict(enumerate(self._known_scores(size)))
        left = [index for index in range(size) if index not in known]
        known |= dict(zip(left, self._scores_of(left), strict=True))
        scores = [known[index] for index in range(size)]
        return drop_of_pairs(self.scorer.floats.scores(size), scores), scores

    def count_losses(self, limit: float, may_go_on: Callable[[float], bool]) -> Drop | None:
        """Return the least that is lost on all samples, if that is beyond the limit already.

        Samples that are likely to change are run one after the other. What all others could gain
        at most is taken as gained, so that no order of them makes this wrong.
        """
        scorer, samples, listed = self.scorer, self.scorer.samples, self.scorer.hard
        count = len(samples)
        fair = dict(enumerate(self._known_scores(count)))
        if listed.best_score(len(fair)) is None:  # before float is run on all
            return None
        most = listed.best_score(count)
        if most is None:
            return None
        before = scorer.floats.scores(count)
        scores = fair | self._known_hard()
        hard = [index for index in listed.listed(most) if index not in scores]
        if len(hard) > MAX_HARD * count:
            return None
        lost = sum(before[index] - score for index, score in scores.items())
        gained = sum(most - before[index] for index in range(count) if index not in scores)
        allowed = limit * count
        if lost - gained <= allowed and may_go_on((samples.seconds or 0.0) * len(hard)):
            found = {}
            for index, score in zip(hard, self._scores_of(hard), strict=False):
                found[index] = score
                lost += before[index] - score
                gained -= most - before[index]
                if lost - gained > allowed:
                    break
            scores |= found
            scorer.journal[f"{self.key}/hard"] = {
                str(index): score for index, score in (self._known_hard() | found).items()
            }
            listed.note(self.key, found)
        least = (lost - gained) / count
        if least <= limit:
            return None
        # The first samples are a fair part of all: where they lost more, that is the better guess.
        share = sum(before[index] - score for index, score in fair.items()) / len(fair)
        return Drop(len(scores), max(share, least), math.nan, at_least=True)

    def _scores_of(self, places: Sequence[int]) -> Iterator[float]:
        """Yield the scores of samples, by their places."""
        scorer, against = self.scorer, self.scorer.metric.against_float
        if not places:
            return
        if against:
            scorer.floats.run_on(max(places) + 1)
        for index, output in zip(places, scorer.samples.run(self._opened, places), strict=True):
            expected = scorer.floats.outputs(index) if against else None
            yield scorer.metric.score(output, scorer.samples[index], expected)

    def _known_hard(self) -> dict[int, float]:
        """Return the scores of samples that were run before others."""
        known = self.scorer.journal.get(f"{self.key}/hard") or {}
        return {int(index): score for index, score in known.items()}

    def _known_scores(self, size: int) -> list[float]:
        """Return the scores of the largest look before this one."""
        for before in reversed(look_sizes(len(self.scorer.samples))):
            known = self.scorer.journal.get(f"{self.key}/{before}") if before < size else None
            if known is not None:
                return list(known["scores"])
        return []


_RUNS: dict[str, type[_Run]] = {"sample": _SampleRun, "set": _SetRun, "model": _ModelRun}


def score_folds(
    metric: Metric, outputs: Sequence[Outputs], samples: Sequence[Mapping[str, Any]]
) -> tuple[float, list[float]]:
    """Return the score of a whole set, and without each fold of it in turn."""
    whole = metric.score_set(outputs, samples)
    folds = min(FOLDS, len(outputs))
    parts = []
    for fold in range(folds):
        kept = [index for index in range(len(outputs)) if index % folds != fold]
        parts.append(metric.score_set([outputs[i] for i in kept], [samples[i] for i in kept]))
    return whole, parts
