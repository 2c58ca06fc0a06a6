"""Reconstruct the float outputs of a segment by learning its constants (needs torch).

First each weight learns for its own layer, then all of them together for the segment's outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bitwright.learning.layer_error import LayerError
from bitwright.learning.learner import Learner, Tensors
from bitwright.learning.optimizers import Adam
from bitwright.learning.reports import SegmentReport
from bitwright.learning.segment_target import SegmentTarget, distance_between, mix
from bitwright.recipe import AdaRound, FineTuning, LearningDetails

MIN_THREADED_PRODUCTS = 2e7
"""Products of a step, some 2 ms of one core, from which threads pay."""
SCALES_FRACTION = 0.25
"""As many steps, of those for weights, go to activation scales before weights learn."""


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
    target: SegmentTarget,
    learner: Learner[Any],
    method: FineTuning,
    details: LearningDetails = LearningDetails(),  # noqa: B008 (frozen)
    *,
    seed: int = 0,
) -> Outcome:
    """Let the learner's constants learn, and say what came of it."""
    generator = torch.Generator().manual_seed(details.seed + seed)
    order = torch.randperm(target.count, generator=generator)
    held = round(target.count * details.holdout_fraction) if target.count > 1 else 0
    holdout, training = order[:held], order[held:]
    judged = holdout if held else training
    before = target.error({}, judged)
    rate = method.learning_rate
    if details.learning_rate_above is not None and before > details.learning_rate_above[0]:
        rate = details.learning_rate_above[1]
    run = _Run(target, learner, method, details, rate, training, judged, generator)
    with _threads_for(target.products(learner.names, method.batch_size)):
        scale_steps = run.learn_scales()
        steps = run.learn_layerwise(round(method.iterations * method.layerwise_fraction))
        if not run.is_solved:
            steps += run.learn_jointly(method.iterations - steps)
        if details.selective:
            run.best.restore()
        hard = learner.hard()
        after = target.error(hard, judged)
    better = after < before or not details.selective
    return Outcome(before, after, scale_steps + steps, hard if better else None)


@dataclass(slots=True)
class _Run:
    """Learning of a segment: each weight for its own layer, then all for the segment's outputs."""

    target: SegmentTarget
    learner: Learner[Any]
    method: FineTuning
    details: LearningDetails
    rate: float | None
    training: Tensor
    judged: Tensor
    """Samples to choose by."""
    generator: torch.Generator
    best: _Best = field(init=False)
    is_solved: bool = False
    """Whether the segment is one layer that was solved without steps."""

    def __post_init__(self) -> None:
        self.best = _Best([*self.learner.parameters(), *self.target.scales.parameters()])

    def learn_layerwise(self, steps: int) -> int:
        """Let weights of linear layers learn one after the other; return the steps of each."""
        learned: Tensors = {}
        for name in self.learner.names if steps else ():
            # What the layer reads follows from what the layers before it have learned.
            layer = self.target.layer(
                name,
                learned,
                self.training,
                self.details.drop_ratio,
                self.generator,
                learns_bias=self.learner.constants[name].learns_bias,
            )
            if layer is not None:
                is_solved = self._learn_layer(layer, name, steps)
                # Nothing that is learned from there on would be chosen.
                self.is_solved = is_solved and self.target.is_one_node and self.details.selective
                self.is_solved &= not self.target.scales
                learned.update(self.learner.hard([name]))
        if not learned:
            return 0
        self._offer()
        self.learner.unfreeze()
        return steps

    def _learn_layer(self, layer: LayerError, name: str, steps: int) -> bool:
        """Let a weight learn for its own layer; return whether that was solved without steps."""
        stored, unit = self.target.fixed[name], layer.error or 1.0
        constant = self.learner.constants[name]
        if constant.solve(layer, stored):
            return True
        groups = self.learner.parameter_groups(self.rate, [name])
        optimizer = self.learner.optimizer(groups)
        best = _Best(self.learner.parameters())

        def gradient_at(weight: Tensor) -> Tensor:
            change = weight - stored
            gradient = layer.gradient(change, self.generator)
            if self.learner.is_hard:
                best.offer(layer.excess(change, gradient))
            return gradient.div_(unit)

        for step in range(steps):
            constant.backpropagate(step / steps, gradient_at)
            optimizer.step(self.learner.rate_factor(step / steps))
        if self.details.selective:
            best.restore()
        constant.polish(layer, stored)
        return False

    def learn_scales(self) -> int:
        """Let the scales of activations learn, weights as they are stored; return the steps.

        Roundings are chosen for what their layers read, and so after it is decided.
        """
        scales, method = self.target.scales, self.method
        if not scales:
            return 0
        steps = max(round(method.iterations * SCALES_FRACTION), 1)
        optimizer = Adam([(scales.parameters(), method.activation_scale_learning_rate)])
        unit = self.target.distance({}, self.training) or 1.0
        check = max(steps // 10, 1)
        best = _Best(scales.parameters())
        best.offer(self.target.distance({}, self.judged))
        for step in range(steps):
            self._batch_loss({}, unit).backward()
            optimizer.step(1 - step / steps)
            if step % check == check - 1:
                best.offer(self.target.distance({}, self.judged))
        if self.details.selective:
            best.restore()
        return steps

    def learn_jointly(self, steps: int) -> int:
        """Let all constants learn for the segment's outputs; return the steps that were taken."""
        learner, method, scales = self.learner, self.method, self.target.scales
        optimizer = learner.optimizer(learner.parameter_groups(self.rate))
        scale_optimizer = Adam([(scales.parameters(), method.activation_scale_learning_rate)])
        unit = self.target.distance({}, self.training) or 1.0
        patience = _Patience(method, self.details, steps) if self.details.early_stop else None
        check = max(steps // 10, 1)
        for step in range(steps):
            loss = self._batch_loss(learner.soft(), unit)
            loss.backward()
            regularizer = learner.add_regularizer(step / steps)
            optimizer.step(learner.rate_factor(step / steps))
            scale_optimizer.step(1 - step / steps)
            if (learner.is_hard and step % check == check - 1) or step == steps - 1:
                self._offer()
            if patience is not None and patience.is_over(
                step, loss if regularizer is None else regularizer
            ):
                self._offer()
                return step + 1
        return steps

    def _batch_loss(self, constants: Tensors, unit: float) -> Tensor:
        """Return how far samples that are chosen anew are from their targets, with gradients."""
        target, ratio, generator = self.target, self.details.drop_ratio, self.generator
        order = torch.randperm(len(self.training), generator=generator)
        chosen = self.training[order[: self.method.batch_size]]
        batches = target.batches(chosen, floats=ratio < 1)
        distance = torch.zeros(())
        for quantized, floats, targets in batches:
            feeds = mix(quantized, floats, ratio, generator)
            with target.scales.dropping(ratio, generator):
                found = target.run(feeds, constants)
            for name, tensor in found.items():
                distance = distance.to(tensor.device) + distance_between(tensor, targets[name])
        return distance / (len(batches) * unit)

    def _offer(self) -> None:
        self.best.offer(self.target.distance(self.learner.hard(), self.judged))


class _Best:
    """The values of parameters when the error was smallest."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self._error = float("inf")
        self._kept: list[Tensor] = []

    def offer(self, error: float) -> None:
        """Keep the parameters of now if this error is the smallest so far."""
        if error < self._error:
            self._error = error
            self._kept = [tensor.detach().clone() for tensor in self._parameters]

    def restore(self) -> None:
        """Set the parameters to the best ones."""
        with torch.no_grad():
            for tensor, kept in zip(self._parameters, self._kept, strict=bool(self._kept)):
                tensor.copy_(kept)


class _Patience:
    """Early stopping: at the first window whose mean loss is not better than the best."""

    def __init__(self, method: FineTuning, details: LearningDetails, steps: int) -> None:
        self._window = details.patience or max(steps // 10, 1)
        # Until then the loss has no regularizer.
        self._start = int(details.warm_start * steps) if isinstance(method, AdaRound) else 0
        self._best = float("inf")
        self._sum = 0.0

    def is_over(self, step: int, loss: Tensor) -> bool:
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
    """Compute with one thread where a step is too small for several to pay."""
    before = torch.get_num_threads()
    if products < MIN_THREADED_PRODUCTS:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
