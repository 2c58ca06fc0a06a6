"""Learn the constants of a segment so that its quantized output comes close to float (needs torch).

First each weight learns for its own layer, then all of them together for the segment's outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import torch

from bitwright.learning.adam import Adam
from bitwright.learning.layer_error import LayerError
from bitwright.learning.reports import SegmentReport
from bitwright.learning.segment_target import SegmentTarget, Tensors, distance_between, mix
from bitwright.recipe import FineTuning

__all__ = ["Learner", "Outcome", "reconstruct"]

WORTH_THREADS = 2e7
"""Products of a step, some 2 ms of one core, from which threads pay."""


class Learner(Protocol):
    """Constants that learn: what the optimizer moves, and what the segment computes with.

    Everything can be asked for some of them, by name.
    """

    names: tuple[str, ...]

    def groups(
        self, learning_rate: float | None, names: Iterable[str] | None = None
    ) -> list[tuple[list[torch.Tensor], float]]:
        """Return the parameters with their learning rates; None: the method's own choice."""

    def soft(self, names: Iterable[str] | None = None) -> Tensors:
        """Return the constants while learning, gradients attached."""

    def hard(self, names: Iterable[str] | None = None) -> Tensors:
        """Return the constants as they will be stored."""

    def pull(self, part: float) -> torch.Tensor | None:
        """Add to the gradients what makes constants fit to be stored, and return its size.

        `part` of all steps are done. It is held against a loss of 1 where all is at its nearest.
        """

    def follow(
        self, name: str, part: float, gradient_at: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        """Set the gradients of one weight from what its layer's error has, with the pull."""

    def pace(self, part: float) -> float:
        """Return what the learning rate is multiplied with where this part of all steps is done."""

    @property
    def is_hard(self) -> bool:
        """Whether constants can be stored after every step, and not only in the end."""

    def bias_follows(self, name: str) -> bool:
        """Whether a weight has a bias that goes with it."""

    def solve(self, name: str, layer: LayerError, stored: torch.Tensor) -> bool:
        """Find what is best for a layer by itself without a step; False: there is no way to."""

    def polish(self, name: str, layer: LayerError, stored: torch.Tensor) -> None:
        """Better what was learned for a layer by itself, where there is a way to."""

    def parameters(self) -> list[torch.Tensor]:
        """Return all that learns."""

    def scales(self) -> Tensors:
        """Return the scales that learned."""

    def reopen(self) -> None:
        """Let what has been learned so far change again."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The mean squared error of a segment before and after, on samples it did not learn from."""

    before: float
    after: float
    steps: int
    constants: Tensors | None
    """What was learned; None where the error did not fall and selection is on."""

    def report(self, first: str, weights: int) -> SegmentReport:
        """Return it as the report of a segment, by its first node."""
        is_kept = self.constants is not None
        return SegmentReport(first, weights, self.before, self.after, self.steps, is_kept)


def reconstruct(
    target: SegmentTarget, learner: Learner, method: FineTuning, *, seed: int = 0
) -> Outcome:
    """Let the learner's constants learn, and say what came of it."""
    generator = torch.Generator().manual_seed(method.seed + seed)
    order = torch.randperm(target.count, generator=generator)
    held = round(target.count * method.holdout_fraction) if target.count > 1 else 0
    unseen, seen = order[:held], order[held:]
    judge = unseen if held else seen
    before = target.error({}, judge)
    rate = method.learning_rate
    if method.learning_rate_above is not None and before > method.learning_rate_above[0]:
        rate = method.learning_rate_above[1]
    run = _Run(target, learner, method, rate, seen, judge, generator)
    with _threads_for(target.work(learner.names, method.batch_size)):
        steps = run.learn_alone(round(method.iterations * method.layerwise_fraction))
        if not run.is_solved:
            steps += run.learn_together(method.iterations - steps)
        if method.selective:
            run.best.restore()
        hard = learner.hard()
        after = target.error(hard, judge)
    better = after < before or not method.selective
    return Outcome(before, after, steps, hard if better else None)


@dataclass(slots=True)
class _Run:
    """Both parts of learning a segment: each weight for its own layer, then all for the segment."""

    target: SegmentTarget
    learner: Learner
    method: FineTuning
    rate: float | None
    seen: torch.Tensor
    judge: torch.Tensor
    """Samples to choose by."""
    generator: torch.Generator
    best: _Best = field(init=False)
    is_solved: bool = False
    """Whether the segment is one layer, whose best is known and kept."""

    def __post_init__(self) -> None:
        self.best = _Best(self.learner)

    def learn_alone(self, steps: int) -> int:
        """Let weights of linear layers learn one after the other; return the steps of each."""
        learned: Tensors = {}
        for name in self.learner.names if steps else ():
            # What the layer reads follows from what the layers before it have learned.
            layer = self.target.layer(
                name,
                learned,
                self.seen,
                self.method.drop_ratio,
                self.generator,
                bias_follows=self.learner.bias_follows(name),
            )
            if layer is not None:
                is_best = self._learn_layer(layer, name, steps)
                # Nothing that is learned from there on would be chosen.
                self.is_solved = is_best and self.target.is_one_node and self.method.selective
                learned.update(self.learner.hard([name]))
        if not learned:
            return 0
        self._offer()
        self.learner.reopen()
        return steps

    def _learn_layer(self, layer: LayerError, name: str, steps: int) -> bool:
        """Let a weight learn for its own layer; return whether it is now the best it can be."""
        stored, unit = self.target.fixed[name], layer.error or 1.0
        if self.learner.solve(name, layer, stored):
            return True
        optimizer = Adam(self.learner.groups(self.rate, [name]))
        best = _Best(self.learner)

        def gradient_at(weight: torch.Tensor) -> torch.Tensor:
            change = weight - stored
            gradient = layer.gradient(change, self.generator)
            if self.learner.is_hard:
                best.offer(layer.excess(change, gradient))
            return gradient.div_(unit)

        for step in range(steps):
            self.learner.follow(name, step / steps, gradient_at)
            optimizer.step(self.learner.pace(step / steps))
        if self.method.selective:
            best.restore()
        self.learner.polish(name, layer, stored)
        return False

    def learn_together(self, steps: int) -> int:
        """Let all constants learn for the segment's outputs; return the steps that were taken."""
        target, learner, method, generator = self.target, self.learner, self.method, self.generator
        optimizer = Adam(learner.groups(self.rate))
        unit = target.distance({}, self.seen) or 1.0
        patience = _Patience(method, steps) if method.early_stop else None
        check = max(steps // 10, 1)
        for step in range(steps):
            order = torch.randperm(len(self.seen), generator=generator)
            chosen = self.seen[order[: method.batch_size]]
            batches = target.batches(chosen, floats=method.drop_ratio < 1)
            constants = learner.soft()
            distance = torch.zeros(())
            for quantized, floats, targets in batches:
                feeds = mix(quantized, floats, method.drop_ratio, generator)
                for name, tensor in target.run(feeds, constants).items():
                    distance = distance.to(tensor.device) + distance_between(tensor, targets[name])
            loss = distance / (len(batches) * unit)
            loss.backward()
            pull = learner.pull(step / steps)
            optimizer.step(learner.pace(step / steps))
            if (learner.is_hard and step % check == check - 1) or step == steps - 1:
                self._offer()
            if patience is not None and patience.is_over(step, loss if pull is None else pull):
                self._offer()
                return step + 1
        return steps

    def _offer(self) -> None:
        self.best.offer(self.target.distance(self.learner.hard(), self.judge))


class _Best:
    """What a learner held when its error was smallest."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._error = float("inf")
        self._kept: list[torch.Tensor] = []

    def offer(self, error: float) -> None:
        """Keep what the learner holds now if this error is the smallest so far."""
        if error < self._error:
            self._error = error
            self._kept = [tensor.detach().clone() for tensor in self._learner.parameters()]

    def restore(self) -> None:
        """Give it back to the learner."""
        with torch.no_grad():
            for tensor, kept in zip(
                self._learner.parameters(), self._kept, strict=bool(self._kept)
            ):
                tensor.copy_(kept)


class _Patience:
    """Stops at the first window whose mean loss is not better than the best."""

    def __init__(self, method: FineTuning, steps: int) -> None:
        self._window = method.patience or max(steps // 10, 1)
        self._start = int(getattr(method, "warm_start", 0.0) * steps)
        self._best = float("inf")
        self._sum = 0.0

    def is_over(self, step: int, loss: torch.Tensor) -> bool:
        if step < self._start:
            return False
        self._sum += float(loss.detach())
        if (step - self._start + 1) % self._window:
            return False
        mean, self._sum = self._sum / self._window, 0.0
        if mean >= self._best:
            return True
        self._best = mean
        return False


@contextmanager
def _threads_for(products: float) -> Iterator[None]:
    """Compute with one thread where a step is too small to be worth the waiting for others."""
    before = torch.get_num_threads()
    if products < WORTH_THREADS:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
