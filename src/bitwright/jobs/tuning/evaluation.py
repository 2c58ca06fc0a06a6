"""Evaluations: the metric of models on the same samples as float, ended as soon as they may be."""

from __future__ import annotations

import math
import time
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
from bitwright.graph import PortableModel, open_session, run_session
from bitwright.jobs.tuning.journal import Journal
from bitwright.jobs.tuning.metrics import Metric, Outputs
from bitwright.support.engines import LOCAL, Engine, Workers

__all__ = ["Evaluator", "Outcome", "Runnable"]

FOLDS = 20
_KEPT_BYTES = 512 << 20
"""Outputs that are kept in memory; more are on disk."""
FLOAT = "float"


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
        self.runs = 0
        """How many models were run on samples."""
        self.seconds = 0.0
        """How long that took."""
        self.sample_seconds: float | None = None
        """How long one sample took, of the last model."""

    def __len__(self) -> int:
        return len(self._order)

    @property
    def float_score(self) -> float:
        """The metric of the float model."""
        if self._metric.scope == "set":
            return self._float_set(len(self))[0]
        return float(np.mean(self._float_scores(len(self))))

    def test(
        self,
        name: str,
        open_model: Open,
        limit: float,
        *,
        in_one: bool = False,
        first_look: bool = False,
        may_go_on: Callable[[float], bool] = lambda seconds: True,
    ) -> Outcome:
        """Say whether a model is within the limit, from as few samples as that takes.

        `in_one` looks at all samples, and only once, `first_look` only at the first of them: then
        the verdict may be "open". `may_go_on` hears how long the next look will
        take, and may stop the evaluation before it.
        """
        looks = look_sizes(len(self))
        if in_one or self._metric.scope == "model":
            looks = looks[-1:]
        elif first_look:
            looks = looks[:1]
        run = _Run(self, name, open_model)
        tested: Outcome | None = None
        for size, bound in looks:
            if tested is not None and not run.knows(size):
                ahead = (self.sample_seconds or 0.0) * (size - tested.drop.samples)
                if not may_go_on(ahead):
                    break
            found = run.look(size)
            tested = Outcome(found, found.verdict(limit, last=size == len(self), bound=bound))
            if tested.verdict != "open":
                break
        assert tested is not None
        return tested

    # What float gave --------------------------------------------------------------------------

    def _float_scores(self, size: int) -> list[float]:
        """Return the scores of the float model, sample by sample."""
        name = f"{self._part}/{FLOAT}"
        known: list[float] | None = self._journal.get(name)
        if known is None:
            if self._metric.scope == "model":
                known = self._metric.score_model(self._proto(self._open_float()), self._all(size))
            elif self._metric.against_float:
                known = [1.0] * len(self)  # it agrees with itself
            else:
                known = self._score_float()
            self._journal[name] = known
        return known[:size]

    def _score_float(self) -> list[float]:
        """Run the float model on all samples; nothing of its outputs is kept."""
        with self.open(self._open_float()) as workers:
            return [
                self._metric.score(found, self.sample(index), None)
                for index, found in enumerate(self.outputs(workers, 0, len(self)))
            ]

    def _float_set(self, size: int) -> tuple[float, list[float]]:
        """Return the score of the float model on the first samples, and without each fold."""
        name = f"{self._part}/{FLOAT}/{size}"
        known = self._journal.get(name)
        if known is None:
            self.expect(size)
            outputs = [self.expected(index) for index in range(size)]
            known = self.score_folds(outputs)
            self._journal[name] = known
        return known[0], known[1]

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
                for found in self.outputs(workers, len(self._expected), size):
                    self._expected.append(found)

    # Runs -------------------------------------------------------------------------------------

    def open(self, runnable: Runnable) -> AbstractContextManager[Workers]:
        """Return workers that run a model."""
        return self._engine.open(_output_runner, runnable)

    def outputs(self, workers: Workers, start: int, stop: int) -> Iterator[Outputs]:
        """Yield what a model gives for the samples of a range, and count the time they take."""
        seconds, begun = 0.0, time.perf_counter()
        for found in workers.stream(self.feeds(index) for index in range(start, stop)):
            seconds += time.perf_counter() - begun
            yield found
            begun = time.perf_counter()
        self.note_time(seconds, stop - start)

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

    def _key(self, size: int) -> str:
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
        error = math.nan if known["error"] is None else known["error"]
        return Drop(size, known["drop"], error, known["step"])

    def _measure(self, size: int) -> dict[str, Any]:
        owner = self._evaluator
        metric = owner._metric
        if metric.scope == "model":
            before = owner._float_scores(size)
            after = metric.score_model(owner._proto(self._open()), owner._all(size))
            return _record(_drop_of_models(size, before, after), after)
        if metric.scope == "set":
            whole, parts = owner._float_set(size)
            for output in self._outputs_of(len(self._outputs), size):
                self._outputs.append(output)
            found, folds = owner.score_folds([self._outputs[index] for index in range(size)])
            lost = [one - other for one, other in zip(parts, folds, strict=True)]
            return _record(drop_of_folds(size, whole - found, lost, whole), None)
        scores = self._known_scores(size)
        if metric.against_float and len(scores) < size:
            owner.expect(size)
        first = len(scores)
        for index, output in enumerate(self._outputs_of(first, size), start=first):
            expected = owner.expected(index) if metric.against_float else None
            scores.append(metric.score(output, owner.sample(index), expected))
        return _record(drop_of_pairs(owner._float_scores(size), scores), scores)

    def _known_scores(self, size: int) -> list[float]:
        """Return the scores of the largest look before this one."""
        owner = self._evaluator
        for before, _ in reversed(look_sizes(len(owner))):
            known = owner._journal.get(self._key(before)) if before < size else None
            if known is not None and known["scores"] is not None:
                return list(known["scores"])
        return []

    def _outputs_of(self, start: int, stop: int) -> Iterator[Outputs]:
        """Yield what the model gives for the samples of a range."""
        if start < stop:
            with self._evaluator.open(self._open()) as workers:
                yield from self._evaluator.outputs(workers, start, stop)

    def _open(self) -> Runnable:
        if self._opened is None:
            self._opened = self._open_model()
            self._evaluator.runs += 1
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
