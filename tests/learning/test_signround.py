"""SignRound: where learning starts, what moves, and by which gradients."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="fine-tuning needs torch")

from bitwright.learning.optimizers import SignDescent  # noqa: E402
from bitwright.learning.signround import LIMIT, SignRoundLearner  # noqa: E402
from bitwright.numerics.blocks import (  # noqa: E402
    BlockFormat,
    QuantizedBlocks,
    collect,
    fit_block_scales,
)
from bitwright.recipe import SignRound  # noqa: E402

FORMATS = [
    BlockFormat(bits=2, block_size=16),
    BlockFormat(bits=3, block_size=32, symmetric=True),
    BlockFormat(bits=4, block_size=-1),
    BlockFormat(bits=2, block_size=16, scale_type="float16"),
    BlockFormat(bits=8, block_size=16, symmetric=True, scale_type="bfloat16"),
]


def rounded(format, *, rows=40, columns=6, seed=0):
    """A weight, and codes for it that lie up to two steps off, as GPTQ's do."""
    rng = np.random.default_rng(seed)
    weight = rng.normal(size=(rows, columns)).astype(np.float32)
    grid = fit_block_scales(weight, format)
    steps = weight / format.per_weight(grid.scales, rows)
    codes = np.rint(steps + format.per_weight(grid.zero_points, rows))
    codes = np.clip(codes + rng.integers(-2, 3, codes.shape), 0, format.highest)
    return weight, collect(codes.astype(np.uint8), grid, format)


def learner_of(format, method=None, **options):
    weight, blocks = rounded(format, **options)
    return SignRoundLearner({"w": (weight, blocks, torch.t)}, method or SignRound()), blocks


def assert_same(found: QuantizedBlocks, wanted: QuantizedBlocks):
    np.testing.assert_array_equal(found.codes, wanted.codes)
    np.testing.assert_array_equal(found.scales, wanted.scales)
    assert found.scales.dtype == wanted.scales.dtype
    assert (found.zero_points is None) == (wanted.zero_points is None)
    if wanted.zero_points is not None:
        np.testing.assert_array_equal(found.zero_points, wanted.zero_points)
        assert found.zero_points.dtype == np.uint8


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_learning_starts_from_exactly_what_was_rounded(format):
    learner, blocks = learner_of(format)
    assert_same(learner.blocks("w"), blocks)
    np.testing.assert_array_equal(learner.hard()["w"].numpy(), blocks.dequantize(np.float32).T)


@pytest.mark.parametrize("format", FORMATS[:3], ids=str)
def test_gradients_of_ranges_are_those_of_finite_differences(format):
    learner, blocks = learner_of(format, rows=48)
    pull = torch.from_numpy(np.random.default_rng(1).normal(size=(6, 48)).astype(np.float32))
    (learner.soft()["w"] * pull).sum().backward()
    _, *factors = learner.parameters()
    assert len(factors) == (1 if format.symmetric else 2)
    for factor in factors:
        for place in ((0, 0, 0), (-1, 0, 5)):
            ends = []
            for change in (1e-2, -1e-2):
                with torch.no_grad():
                    factor[place] += change
                    ends.append(float((learner.hard()["w"] * pull).double().sum()))
                    factor[place] -= change
            assert np.array_equal(learner.blocks("w").codes, blocks.codes)
            slope = (ends[0] - ends[1]) / 2e-2
            assert float(factor.grad[place]) == pytest.approx(slope, rel=2e-3, abs=2e-3)


def test_the_gradient_of_a_rounding_is_its_scale():
    # The straight-through estimate of the paper: dW/dV = s.
    format = FORMATS[0]
    learner, blocks = learner_of(format, rows=32)
    learner.soft()["w"].sum().backward()
    offsets = learner.parameters()[0].grad.reshape(32, -1)
    np.testing.assert_array_equal(offsets, format.per_weight(blocks.scales, 32))


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_what_was_learned_can_be_stored(format):
    learner, start = learner_of(format)
    optimizer = learner.optimizer(learner.parameter_groups(0.2))
    generator = torch.Generator().manual_seed(0)
    pulls = [torch.randn(p.shape, generator=generator) for p in learner.parameters()]
    for _ in range(5):
        for parameter, pull in zip(learner.parameters(), pulls, strict=True):
            parameter.grad = pull.clone()
        optimizer.step()
    found = learner.blocks("w")
    assert found.codes.max() <= format.highest
    assert (found.codes != start.codes).any() and (found.scales != start.scales).any()
    assert found.scales.dtype == start.scales.dtype
    ratios = found.scales.astype(np.float64) / start.scales.astype(np.float64)
    assert ratios.min() > 0.49 and ratios.max() < 1.51
    if not format.symmetric:
        assert found.zero_points.dtype == np.uint8 and found.zero_points.max() <= format.highest
        assert (found.zero_points != start.zero_points).any()
    # What it was chosen by is what is stored.
    np.testing.assert_array_equal(learner.hard()["w"].numpy(), found.dequantize(np.float32).T)


def test_rates_are_the_methods_own_unless_they_are_given():
    def rates(method, given=None):
        return [rate for _, rate in learner_of(FORMATS[0], method)[0].parameter_groups(given)]

    assert rates(SignRound(iterations=50)) == [0.02, 0.02]
    assert rates(SignRound(iterations=50), 0.5) == [0.5, 0.5]
    assert rates(SignRound(iterations=50, range_learning_rate=0.1)) == [0.02, 0.1]
    learner = learner_of(FORMATS[0])[0]
    assert [learner.rate_factor(part) for part in (0, 0.25, 1)] == [1, 0.75, 0]


def test_steps_have_one_size_and_end_at_the_limit():
    x = torch.tensor([0.0, 0.0, 0.45], requires_grad=True)
    optimizer = SignDescent([([x], 0.1)], limit=LIMIT)
    (x * torch.tensor([1e-6, 0.0, -1e6])).sum().backward()
    optimizer.step(0.5)
    torch.testing.assert_close(x.detach(), torch.tensor([-0.05, 0.0, 0.5]))
    assert x.grad is None
    optimizer.step()  # nothing moves without a gradient
    torch.testing.assert_close(x.detach(), torch.tensor([-0.05, 0.0, 0.5]))
