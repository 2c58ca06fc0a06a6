"""The squared error of one linear layer as a quadratic form of its weight (needs torch).

A layer gives W x + b, so that the second moment of its inputs, the sum of x xᵀ, and the cross
moment of the residual with them, the sum of r xᵀ, hold all that its error needs to know about the
data. They are made once. A step then costs the same for a hundred samples as for a million, and
sees all of them. Layers that are too wide for a second moment keep some rows of their inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bitwright.learning.torch_graph.attributes import Attributes
from bitwright.learning.unfolding import Unfolding, unfolding_of

MAX_GRAM_WIDTH = 1024
"""Weights of one output up to which a second moment pays; beyond, each step takes some rows."""
ROWS_PER_WEIGHT = 64
"""Rows for each weight of an output: more say no more about second moments."""
DAMPING, TINY = 1e-6, 1e-30
"""Added to second moments before they are inverted, the first as a part of their mean."""
DAMPING_ATTEMPTS = 6
"""How often ten times as much is added, where that does not make them positive definite."""
BLOCK = 128
"""Inputs that are decided one by one before the others take over what they lost."""
MAX_SWEEPS = 8
"""How often coordinate descent goes over all weights at the most: after a few, hardly any flip."""
CORRELATED_ROWS = 8
"""So many rows of one sample are taken to say as much as one row of another: places of a picture
are much like those beside them."""
ROWS, STEP_ROWS = 4096, 256
"""Rows that are kept of wider layers, and how many of them a step sees."""


def layer_error(
    attributes: Attributes, weight: Tensor, *, learns_bias: bool = False
) -> LayerError | None:
    """Return the error of a node as a function of its weight, None where that is not linear.

    With `learns_bias` the bias takes the mean residual over, and the weights the rest.
    """
    unfolding = unfolding_of(attributes, weight)
    if unfolding is None:
        return None
    kind = GramError if unfolding.inputs <= MAX_GRAM_WIDTH else SampledError
    return kind(unfolding, weight, learns_bias)


class LayerError:
    """The error of one layer as a function of how its weight changes."""

    _max_rows = ROWS
    """Rows after which more samples would say nothing new."""

    def __init__(self, unfolding: Unfolding, weight: Tensor, learns_bias: bool) -> None:
        self._unfolding = unfolding
        # The outputs of a tile share a bias, but not their residuals.
        self._is_centered = learns_bias and unfolding.has_own_biases
        groups, outputs, inputs = unfolding.groups, unfolding.outputs, unfolding.inputs
        self._cross_moment = weight.new_zeros(groups, outputs, inputs)
        self._input_sums = weight.new_zeros(groups, inputs)
        self._residual_sums = weight.new_zeros(groups, outputs)
        self._squares, self._count = 0.0, 0

    @property
    def is_full(self) -> bool:
        """Whether more samples would say nothing new."""
        return self._count >= self._max_rows

    @property
    def error(self) -> float:
        """The error of the weights as they are: summed over outputs, a mean over rows."""
        return self._squares / max(self._count, 1)

    def add(self, x: Tensor, residual: Tensor) -> None:
        """Take samples: the layer's inputs, and what its results are short of."""
        rows, residuals = self._unfolding.rows(x), self._unfolding.results(residual)
        self._count += rows.shape[1]
        self._squares += float(residuals.double().square().sum())
        self._cross_moment += residuals.transpose(1, 2) @ rows
        self._input_sums += rows.sum(dim=1)
        self._residual_sums += residuals.sum(dim=1)
        self._add_rows(rows, residuals, self._unfolding.count(x))

    def finish(self, rounding_error: Tensor) -> None:
        """Make the moments ready, once all samples are taken; given float minus stored weight."""
        if self._is_centered:
            self._add_means(-1.0)

    def bias(self, change: Tensor) -> Tensor:
        """Return what to add to the bias of each output, where the weight is changed by this."""
        moved = torch.bmm(self._unfolding.matrix(change), self._input_sums[..., None])[..., 0]
        residual = (self._residual_sums - moved).div_(max(self._count, 1))
        return residual.reshape(-1, self._unfolding.outputs_per_bias).mean(dim=1)

    def gradient(self, change: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return the derivative of the error where the weight is changed by this."""
        matrix = self._unfolding.matrix(change)
        return self._unfolding.folded(self._matrix_gradient(matrix, generator))

    def excess(self, change: Tensor, gradient: Tensor) -> float:
        """Return what a change adds to the error, given the gradient there."""
        linear = (self._unfolding.matrix(change) * self._cross_moment).sum() / self._count
        return float((change * gradient).sum() / 2 - linear)

    def _add_rows(self, rows: Tensor, residuals: Tensor, samples: int) -> None:
        raise NotImplementedError

    def _matrix_gradient(self, matrix: Tensor, generator: torch.Generator | None) -> Tensor:
        raise NotImplementedError

    def _add_means(self, share: float) -> float:
        """Add what the means make of the moments; -1 leaves what varies. Return its factor."""
        part = share / max(self._count, 1)
        self._cross_moment += part * self._residual_sums[..., None] * self._input_sums[:, None]
        self._squares += part * float(self._residual_sums.double().square().sum())
        return part


class GramError(LayerError):
    """The exact error, from the second moment (Gram matrix) of the layer's inputs."""

    def __init__(self, unfolding: Unfolding, weight: Tensor, learns_bias: bool) -> None:
        super().__init__(unfolding, weight, learns_bias)
        inputs = unfolding.inputs
        self._max_rows = max(ROWS_PER_WEIGHT * inputs, ROWS)
        self._second_moment = weight.new_zeros(unfolding.groups, inputs, inputs)
        self._samples, self._shrinkage = 0, 0.0

    def _add_rows(self, rows: Tensor, residuals: Tensor, samples: int) -> None:
        self._second_moment += rows.transpose(1, 2) @ rows
        self._samples += samples

    def finish(self, rounding_error: Tensor) -> None:
        """Make the moments ready: without means where a bias learns, and shrunk.

        They are drawn toward those of inputs that are independent of each other. The fewer rows
        there are for each weight, the more of what they say is chance, and a weight that is fitted
        to it does worse elsewhere (O. Ledoit and M. Wolf, 2004). For such inputs the best a weight
        can do is to be near to what it was in float.
        """
        super().finish(rounding_error)
        inputs = self._unfolding.inputs
        independent = max(self._samples, self._count / CORRELATED_ROWS)
        self._shrinkage = inputs / (inputs + independent)
        kept = 1 - self._shrinkage
        mean = self._second_moment.diagonal(dim1=1, dim2=2).mean(dim=1)[:, None] * self._shrinkage
        self._second_moment.mul_(kept).diagonal(dim1=1, dim2=2).add_(mean)
        lost = self._unfolding.matrix(rounding_error)
        self._cross_moment.mul_(kept).add_(mean[..., None] * lost)

    def fix_bias(self, shift: Tensor) -> None:
        """Take it that the bias has moved by this, and does not learn with the weights any more."""
        kept = 1 - self._shrinkage
        if self._is_centered:
            self._add_means(kept)
            self._is_centered = False
        moved = shift.repeat_interleave(self._unfolding.outputs_per_bias)
        moved = moved.reshape(self._residual_sums.shape)
        self._residual_sums -= moved * self._count
        self._cross_moment -= kept * moved[..., None] * self._input_sums[:, None]

    def round_by_gptq(self, lower: Tensor, up: Tensor, step: Tensor, free: Tensor) -> Tensor:
        """Choose for each weight whether its change is `lower`, or a `step` more.

        One input after the other is decided, and those to come make up for its rounding error
        (E. Frantar et al., "GPTQ", 2022). What is not `free` stays `up`, or not; so does
        everything where inputs were not finite, or say nothing.
        """
        second = self._second_moment.double()
        if not bool(second.isfinite().all()):
            return up
        inverse, factor, failed = _invert(second)
        wanted = torch.bmm(self._cross_moment.double(), inverse).to(self._cross_moment.dtype)
        factor.div_(factor.diagonal(dim1=1, dim2=2)[..., None].clone())
        updates = factor.to(wanted.dtype)
        chosen, low, steps, loose = (
            self._unfolding.matrix(part).clone() for part in (up, lower, step, free)
        )
        loose[failed] = False
        for start in range(0, chosen.shape[2], BLOCK):
            stop = min(start + BLOCK, chosen.shape[2])
            block = wanted[..., start:stop].clone()
            for index in range(start, stop):
                aim = block[..., index - start]
                above = aim - low[..., index] > steps[..., index] / 2
                taken = torch.where(loose[..., index], above, chosen[..., index])
                chosen[..., index] = taken
                aim -= torch.where(taken, low[..., index] + steps[..., index], low[..., index])
                block[..., index - start + 1 :].addcmul_(
                    aim[..., None], updates[:, None, index, index + 1 : stop], value=-1
                )
            # What a block has lost, which now stands in it, reaches the rest in one product.
            wanted[..., stop:] -= torch.bmm(block, updates[:, start:stop, stop:])
        return self._unfolding.folded(chosen)

    def coordinate_descent(self, change: Tensor, up: Tensor, step: Tensor, free: Tensor) -> Tensor:
        """Flip the rounding of single weights, a `step` up or down, while the error falls.

        One input after the other is tried, for all outputs at once. What is not `free` stays.
        """
        second = self._second_moment
        squares = second.diagonal(dim1=1, dim2=2)[:, None]
        slope = torch.bmm(self._unfolding.matrix(change), second).sub_(self._cross_moment)
        chosen, steps, loose = (self._unfolding.matrix(part).clone() for part in (up, step, free))

        def improving(index: int | slice) -> tuple[Tensor, Tensor]:
            """Return which weights should flip, and by how much they would move."""
            there = (..., index)
            move = torch.where(chosen[there], -steps[there], steps[there])
            gain = move * (2 * slope[there] + move * squares[there])
            return (gain < 0) & loose[there], move

        for _ in range(MAX_SWEEPS):
            found = improving(slice(None))[0].any(dim=0).any(dim=0).nonzero().flatten().tolist()
            if not found:
                break
            for index in found:
                flips, move = improving(index)
                slope.addcmul_((move * flips)[..., None], second[:, index, None, :])
                chosen[..., index] ^= flips
        return self._unfolding.folded(chosen)

    def _matrix_gradient(self, matrix: Tensor, generator: torch.Generator | None) -> Tensor:
        found = torch.bmm(matrix, self._second_moment).sub_(self._cross_moment)
        return found.mul_(2 / self._count)

    def _add_means(self, share: float) -> float:
        part = super()._add_means(share)
        self._second_moment += part * self._input_sums[..., None] * self._input_sums[:, None]
        return part


def _invert(second: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the inverses of second moments, their Cholesky factors, and which have none.

    Row by row of a factor: how inputs to come make up for one that is decided.
    """
    mean = second.diagonal(dim1=1, dim2=2).mean(dim=1)
    failed = torch.ones_like(mean, dtype=torch.bool)
    for attempt in range(DAMPING_ATTEMPTS):
        # Channels that are nearly copies of each other need more than the usual damping.
        damping = (DAMPING * 10**attempt * mean + TINY) * failed
        second.diagonal(dim1=1, dim2=2).add_(damping[:, None])
        inverse, is_singular = torch.linalg.inv_ex(second)
        factor, is_indefinite = torch.linalg.cholesky_ex(inverse, upper=True)
        failed = (is_singular != 0) | (is_indefinite != 0)
        if not bool(failed.any()):
            break
    # Where no input was ever seen, sums that should cancel out leave noise of either sign.
    inverse[failed] = 0
    factor[failed] = torch.eye(factor.shape[1], dtype=factor.dtype, device=factor.device)
    return inverse, factor, failed


class SampledError(LayerError):
    """An estimate for wide layers: each step sees some rows of their inputs."""

    def __init__(self, unfolding: Unfolding, weight: Tensor, learns_bias: bool) -> None:
        super().__init__(unfolding, weight, learns_bias)
        self._rows: list[tuple[Tensor, Tensor]] = []

    def _add_rows(self, rows: Tensor, residuals: Tensor, samples: int) -> None:
        self._rows.append((rows, residuals))

    def _matrix_gradient(self, matrix: Tensor, generator: torch.Generator | None) -> Tensor:
        if len(self._rows) > 1:
            rows, residuals = (torch.cat(part, 1) for part in zip(*self._rows, strict=True))
            kept = torch.linspace(0, rows.shape[1] - 1, min(ROWS, rows.shape[1])).long()
            kept = kept.to(rows.device)
            self._rows = [(rows.index_select(1, kept), residuals.index_select(1, kept))]
        rows, residuals = self._rows[0]
        chosen = torch.randint(rows.shape[1], (STEP_ROWS,), generator=generator)
        rows, residuals = (
            part.index_select(1, chosen.to(part.device)) for part in (rows, residuals)
        )
        over = (rows @ matrix.transpose(1, 2)).sub_(residuals)
        return (over.transpose(1, 2) @ rows).mul_(2 / STEP_ROWS)

    def _add_means(self, share: float) -> float:
        part = super()._add_means(share)
        means = [part * sums[:, None] for sums in (self._input_sums, self._residual_sums)]
        self._rows = [(rows + means[0], left + means[1]) for rows, left in self._rows]
        return part
