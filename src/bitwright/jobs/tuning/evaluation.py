"""Evaluations: the metric of models on the same samples as float, ended as soon as they may be."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
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
from bitwright.jobs.tuning.journal import Journal
from bitwright.jobs.tuning.metrics import Metric, Outputs, margin_of
from bitwright.run import open_session, run_session
from bitwright.support.engines import LOCAL, Engine, Workers

__all__ = ["Evaluator", "Outcome", "Runnable"]

FOLDS = 20
MARGIN_SHARE = 1 / 8
"""The share of the samples that counts as hard for a small margin of float."""
MAX_HARD = 1 / 4
"""The largest share of the samples that may be hard: with more, the next looks tell as early."""
_KEPT_BYTES = 512 << 20
"""Outputs that are kept in memory; more are on disk."""
FLOAT, _HARD = "float", "hard"


@dataclass(frozen=True, slots=True)
class Runnable:
    """A model that can be run, and what it is for functions that evaluate models."""

    session: Any
    model: ir.Model
    providers: Sequence[str] | None = None
    float_weights: bool = False
    """How the session was opened."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_there, (PortableModel(self.model), self.providers, self.float_weights)


def _open_there(
    model: PortableModel, providers: Sequence[str] | None, float_weights: bool
) -> Runnable:
    """Return a model that travelled, opened again."""
    session = open_session(model.model, providers=providers, float_weights=float_weights)
    return Runnable(session, model.model, providers, float_weights)


def _output_runner(runnable: Runnable) -> Callable[[Iterable[Sample]], Iterator[Outputs]]:
    """Return what runs a model on samples."""
    return lambda samples: (run_session(runnable.session, feeds) for feeds in samples)


Open = Callable[[], Runnable]


def _refuse_to_open() -> Runnable:
    raise AssertionError("what is in the journal needs no model")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a model did against the limit."""

    drop: Drop
    verdict: Verdict
    """"open": not all samples were looked at, as time ran out."""


class Evaluator:
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
        self._engine = engine
        self._metric, self._samples, self._order = metric, samples, order
        self._journal, self._part = journal, part
        self._open_float = open_float
        self._expected = ArrayStore(memory_budget=_KEPT_BYTES)
        self._lost: dict[str, set[int]] = {}
        """Model -> samples that it scored worse than float."""
        self.runs = 0
        """How often a model was run on samples."""
        self.models: set[str] = set()
        """Which models that were."""
        self.seconds = 0.0
        """How long that took."""
        self.sample_seconds: float | None = None
        """How long one sample took, of the last model."""

    def __len__(self) -> int:
        return len(self._order)

    @property
    def first_look_seconds(self) -> float:
        """How long a model takes on the samples of the first look, as far as that is known."""
        size = len(self) if self._metric.scope == "model" else look_sizes(len(self))[0]
        return (self.sample_seconds or 0.0) * size

    def float_score(self, *, whole: bool = False) -> tuple[float, int]:
        """Return the metric of the float model, and on how many samples it is known.

        Float is run no further than other models are, unless the `whole` set is asked for.
        """
        looks = look_sizes(len(self))
        size = len(self) if whole or self._metric.scope == "model" else looks[0]
        if self._metric.scope == "set":
            known = [look for look in looks if self._set_key(look) in self._journal]
            size = max([size, *known])
            return self._float_set(size)[0], size
        self._float_scores(size)
        scores: list[float] = self._journal.get(f"{self._part}/{FLOAT}")
        return float(np.mean(scores)), len(scores)

    def test(
        self,
        name: str,
        open_model: Open,
        limit: float,
        *,
        first_look: bool = False,
        in_order: bool = False,
        has_other: bool = False,
        may_go_on: Callable[[float], bool] = lambda seconds: True,
    ) -> Outcome:
        """Say whether a model is within the limit, from as few samples as that takes.

        The samples are in random order, so that a part of them tells about all. Where the first
        look leaves it open, those that are likely to change come next: by themselves they say
        nothing of the others, but where they lose more than all samples together may, the
        model is beyond the limit for sure. With too little of a drop to expect that, float is not
        run on all samples for it.

        `first_look` ends with the first look, and the verdict may be "open"; `in_order` takes no
        samples before others, so that the drop has its error in any case. `has_other` says that
        another model is within the limit: then one that hardly will be is not worth all samples.
        `may_go_on` hears how long the next look will take, and may stop the evaluation before it.
        """
        looks = look_sizes(len(self))
        if self._metric.scope == "model":
            looks = looks[-1:]
        elif first_look:
            looks = looks[:1]
        run = _Run(self, name, open_model)
        tested: Outcome | None = None
        # What all samples of an earlier run say counts, whatever the first of them looked like.
        has_other = has_other and not self.knows(name, limit)
        for size in looks:
            if tested is not None and not run.knows(size):
                ahead = (self.sample_seconds or 0.0) * (size - tested.drop.samples)
                if not may_go_on(ahead):
                    break
            found = run.look(size)
            tested = Outcome(found, found.verdict(limit, last=size == len(self)))
            if tested.verdict != "open":
                break
            if has_other and found.is_unlikely(limit, len(self)):
                return Outcome(found, "fail")
            likely = found.mean > limit or self._knows_float
            is_first = size == looks[0] and len(looks) > 1 and not run.knows(looks[1])
            if is_first and likely and not in_order:
                counted = run.count_losses(limit, may_go_on)
                if counted is not None:
                    return Outcome(counted, "fail")
        assert tested is not None
        return tested

    def knows(self, name: str, limit: float) -> bool:
        """Whether the journal tells if a model is within the limit, without running it again."""
        return self._known_verdict(name, limit) is not None

    def knows_any(self, limit: float) -> bool:
        """Whether the journal has a model within the limit: an earlier run evaluated it."""
        keys = [name.split("/") for name in self._journal.names()]
        # What float gave stands under shorter names.
        names = {"/".join(key[1:3]) for key in keys if key[0] == self._part and len(key) == 4}
        return any(self._known_verdict(name, limit) == "pass" for name in sorted(names))

    def _known_verdict(self, name: str, limit: float) -> Verdict | None:
        run = _Run(self, name, _refuse_to_open)
        for size in look_sizes(len(self)):
            if not run.knows(size):
                return None
            found = run.look(size).verdict(limit, last=size == len(self))
            if found != "open":
                return found
        return None

    def test_float(self) -> Outcome:
        """Say how a model does of which nothing is quantized: it need not be run."""
        return Outcome(Drop(len(self), 0.0, 0.0), "pass")

    # What float gave --------------------------------------------------------------------------

    @property
    def _knows_float(self) -> bool:
        """Whether float was run on all samples."""
        return len(self._journal.get(f"{self._part}/{FLOAT}") or ()) == len(self)

    def _float_scores(self, size: int) -> list[float]:
        """Return the scores of the float model, sample by sample."""
        name = f"{self._part}/{FLOAT}"
        known: list[float] = self._journal.get(name) or []
        of_model = self._metric.scope == "model"
        if len(known) < (1 if of_model else size):  # a model's may be one number
            if of_model:
                known = self._metric.score_model(self._proto(self._open_float()), self._all(size))
            elif self._metric.against_float:
                known = [1.0] * len(self)  # it agrees with itself
            else:
                known = [*known, *self._score_float(range(len(known), size))]
            self._journal[name] = known
        return known[:size]

    def _score_float(self, places: Sequence[int]) -> list[float]:
        """Run the float model on samples; nothing of its outputs is kept."""
        scores, margins = [], []
        with self.open(self._open_float()) as workers:
            for index, found in zip(places, self.outputs(workers, places), strict=True):
                sample = self.sample(index)
                scores.append(self._metric.score(found, sample, None))
                margins.append(margin_of(found, sample))
        name = f"{self._part}/{FLOAT}/margins"
        self._journal[name] = [*(self._journal.get(name) or []), *margins]
        return scores

    # Samples that are likely to change --------------------------------------------------------

    def note_scores(self, name: str, scores: Mapping[int, float]) -> None:
        """Remember what a model lost: others of the same plan will lose there, too."""
        before = self._float_scores(max(scores, default=-1) + 1)
        lost = {index for index, score in scores.items() if score < before[index]}
        self._lost.setdefault(name, set()).update(lost)

    def best_score(self, size: int) -> float | None:
        """Return the most that a sample can score, as the first ones tell; None: they do not.

        A function of which all scores of float are 0 or 1 is taken to give nothing else.
        """
        if self._metric.most is not None:
            return self._metric.most
        found = {self._metric.sign * score for score in self._float_scores(size)}
        if not found <= {0.0, 1.0}:
            return None
        return 1.0 if self._metric.sign > 0 else 0.0

    def hard_samples(self, most: float) -> list[int]:
        """Return the samples that are likely to change, or may gain, in the order to try them."""
        before = self._float_scores(len(self))
        lost = Counter(index for found in self._lost.values() for index in found)
        margins = self._journal.get(f"{self._part}/{FLOAT}/margins") or []
        known = [(margin, index) for index, margin in enumerate(margins) if margin is not None]
        close = [index for _, index in sorted(known)[: math.ceil(MARGIN_SHARE * len(self))]]
        may_gain = [index for index, score in enumerate(before) if score < most]
        return list(dict.fromkeys([*(index for index, _ in lost.most_common()), *close, *may_gain]))

    def _float_set(self, size: int) -> tuple[float, list[float]]:
        """Return the score of the float model on the first samples, and without each fold."""
        known = self._journal.get(self._set_key(size))
        if known is None:
            self.expect(size)
            outputs = [self.expected(index) for index in range(size)]
            known = self.score_folds(outputs)
            self._journal[self._set_key(size)] = known
        return known[0], known[1]

    def _set_key(self, size: int) -> str:
        return f"{self._part}/{FLOAT}/{size}"

    def score_folds(self, outputs: Sequence[Outputs]) -> tuple[float, list[float]]:
        """Return the score of a whole set, and without each fold of it in turn."""
        samples = self._all(len(outputs))
        whole = self._metric.score_set(outputs, samples)
        folds = min(FOLDS, len(outputs))
        parts = []
        for fold in range(folds):
            kept = [index for index in range(len(outputs)) if index % folds != fold]
            parts.append(
                self._metric.score_set([outputs[i] for i in kept], [samples[i] for i in kept])
            )
        return whole, parts

    def expected(self, index: int) -> Outputs:
        """Return what the float model gives for a sample; what is computed is kept."""
        self.expect(index + 1)
        return self._expected[index]

    def expect(self, size: int) -> None:
        """Compute what the float model gives for the first samples."""
        if len(self._expected) < size:
            with self.open(self._open_float()) as workers:
                for found in self.outputs(workers, range(len(self._expected), size)):
                    self._expected.append(found)

    # Runs -------------------------------------------------------------------------------------

    def open(self, runnable: Runnable) -> AbstractContextManager[Workers]:
        """Return workers that run a model."""
        return self._engine.open(_output_runner, runnable)

    def outputs(self, workers: Workers, places: Sequence[int]) -> Iterator[Outputs]:
        """Yield what a model gives for samples, by their places, and count the time they take."""
        seconds, count, begun = 0.0, 0, time.perf_counter()
        try:
            for found in workers.stream(self.feeds(index) for index in places):
                seconds += time.perf_counter() - begun
                count += 1
                yield found
                begun = time.perf_counter()
        finally:
            if count:
                self.note_time(seconds, count)

    # The samples ------------------------------------------------------------------------------

    def sample(self, index: int) -> Mapping[str, Any]:
        """Return a sample with its labels, by its place in the order."""
        return self._samples()[self._order[index]]

    def feeds(self, index: int) -> dict[str, Any]:
        """Return what the model reads of a sample, by its place in the order."""
        return self._samples().feeds(self._order[index])

    def _all(self, size: int) -> list[Mapping[str, Any]]:
        return [self.sample(index) for index in range(size)]

    def _proto(self, runnable: Runnable) -> Any:
        return ir.to_proto(runnable.model)

    def note_time(self, seconds: float, samples: int) -> None:
        """Count the time that samples took."""
        self.seconds += seconds
        self.sample_seconds = seconds / max(samples, 1)


class _Run:
    """One model on growing numbers of samples."""

    def __init__(self, evaluator: Evaluator, name: str, open_model: Open) -> None:
        self._evaluator, self._name, self._open_model = evaluator, name, open_model
        self._opened: Runnable | None = None
        self._outputs = ArrayStore(memory_budget=_KEPT_BYTES)

    def _key(self, size: int | str) -> str:
        return f"{self._evaluator._part}/{self._name}/{size}"

    def knows(self, size: int) -> bool:
        """Whether this look was made before."""
        return self._key(size) in self._evaluator._journal

    def look(self, size: int) -> Drop:
        """Return the drop on the first samples."""
        owner = self._evaluator
        known = owner._journal.get(self._key(size))
        if known is None:
            known = self._measure(size)
            owner._journal[self._key(size)] = known
        if known["scores"] is not None and owner._metric.scope == "sample":
            owner.note_scores(self._name, dict(enumerate(known["scores"])))
        error = math.nan if known["error"] is None else known["error"]
        return Drop(size, known["drop"], error, known["step"])

    def count_losses(self, limit: float, may_go_on: Callable[[float], bool]) -> Drop | None:
        """Return the least that is lost on all samples, if that is beyond the limit already.

        Samples that are likely to change are run one after the other. What all others could gain
        at most is taken as gained, so that no order of them makes this wrong.
        """
        owner = self._evaluator
        if owner._metric.scope != "sample":
            return None
        count = len(owner)
        fair = dict(enumerate(self._known_scores(count)))
        if self._best_score(len(fair)) is None:  # before float is run on all
            return None
        most = self._best_score(count)
        if most is None:
            return None
        before = owner._float_scores(count)
        scores = fair | self._known_hard()
        hard = [index for index in owner.hard_samples(most) if index not in scores]
        if len(hard) > MAX_HARD * count:
            return None
        lost = sum(before[index] - score for index, score in scores.items())
        gained = sum(most - before[index] for index in range(count) if index not in scores)
        allowed = limit * count
        if lost - gained <= allowed and may_go_on((owner.sample_seconds or 0.0) * len(hard)):
            found = {}
            for index, score in zip(hard, self._scores_of(hard), strict=False):
                found[index] = score
                lost += before[index] - score
                gained -= most - before[index]
                if lost - gained > allowed:
                    break
            scores |= found
            owner._journal[self._key(_HARD)] = {
                str(index): score for index, score in (self._known_hard() | found).items()
            }
            owner.note_scores(self._name, found)
        least = (lost - gained) / count
        if least <= limit:
            return None
        # The first samples are a fair part of all: where they lost more, that is the better guess.
        share = sum(before[index] - score for index, score in fair.items()) / len(fair)
        return Drop(len(scores), max(share, least), math.nan, at_least=True)

    def _best_score(self, size: int) -> float | None:
        """Return the most that a sample can score, if but few of the first ones score less."""
        most = self._evaluator.best_score(size)
        if most is None:
            return None
        less = [score for score in self._evaluator._float_scores(size) if score < most]
        return most if len(less) <= MAX_HARD * size else None

    def _measure(self, size: int) -> dict[str, Any]:
        owner = self._evaluator
        metric = owner._metric
        if metric.scope == "model":
            before = owner._float_scores(size)
            after = metric.score_model(owner._proto(self._open()), owner._all(size))
            return _record(_drop_of_models(size, before, after), after)
        if metric.scope == "set":
            whole, parts = owner._float_set(size)
            for output in self._outputs_of(range(len(self._outputs), size)):
                self._outputs.append(output)
            found, folds = owner.score_folds([self._outputs[index] for index in range(size)])
            lost = [one - other for one, other in zip(parts, folds, strict=True)]
            return _record(drop_of_folds(size, whole - found, lost, whole), None)
        known = self._known_hard() | dict(enumerate(self._known_scores(size)))
        left = [index for index in range(size) if index not in known]
        known |= dict(zip(left, self._scores_of(left), strict=True))
        scores = [known[index] for index in range(size)]
        return _record(drop_of_pairs(owner._float_scores(size), scores), scores)

    def _scores_of(self, places: Sequence[int]) -> Iterator[float]:
        """Yield the scores of samples, by their places."""
        owner = self._evaluator
        metric = owner._metric
        if metric.against_float and places:
            owner.expect(max(places) + 1)
        for index, output in zip(places, self._outputs_of(places), strict=True):
            expected = owner.expected(index) if metric.against_float else None
            yield metric.score(output, owner.sample(index), expected)

    def _known_hard(self) -> dict[int, float]:
        """Return the scores of samples that were run before others."""
        known = self._evaluator._journal.get(self._key(_HARD)) or {}
        return {int(index): score for index, score in known.items()}

    def _known_scores(self, size: int) -> list[float]:
        """Return the scores of the largest look before this one."""
        owner = self._evaluator
        for before in reversed(look_sizes(len(owner))):
            known = owner._journal.get(self._key(before)) if before < size else None
            if known is not None and known["scores"] is not None:
                return list(known["scores"])
        return []

    def _outputs_of(self, places: Sequence[int]) -> Iterator[Outputs]:
        """Yield what the model gives for samples, by their places."""
        if places:
            with self._evaluator.open(self._open()) as workers:
                yield from self._evaluator.outputs(workers, places)

    def _open(self) -> Runnable:
        if self._opened is None:
            self._opened = self._open_model()
            self._evaluator.runs += 1
            self._evaluator.models.add(self._name)
        return self._opened


def _drop_of_models(size: int, before: Sequence[float], after: Sequence[float]) -> Drop:
    """Return the drop between what a function gave for two models."""
    if len(before) > 1 and len(before) == len(after):
        found = drop_of_pairs(before, after)
        return replace(found, samples=size)
    return Drop(size, float(np.mean(before) - np.mean(after)), math.nan)


def _record(drop: Drop, scores: Sequence[float] | None) -> dict[str, Any]:
    error = None if math.isnan(drop.error) else drop.error
    return {"drop": drop.mean, "error": error, "step": drop.step, "scores": scores}
