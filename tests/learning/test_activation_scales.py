"""Gradients of learned activation scales against the published formula, in float64."""

from __future__ import annotations

import numpy as np
import pytest
from support.models import normal

torch = pytest.importorskip("torch", reason="learning is torch code")

from bitwright.learning.activation_scales import MAX_FACTOR, ActivationScales  # noqa: E402
from bitwright.learning.fake_quantize import FakeQuantizer  # noqa: E402
from bitwright.learning.optimizers import Adam  # noqa: E402

TYPES = {"uint4": (0, 15, 6), "int4": (-8, 7, 0), "uint8 of a Relu": (0, 255, 0)}


def quantizer_of(kind, scale):
    low, high, zero_point = TYPES[kind]
    return FakeQuantizer(torch.tensor(scale), torch.tensor(float(zero_point)), low, high)


def lsq_gradient(x, scale, kind):
    """Return d/ds of each element, as Esser et al. write it in eq. 3, around a zero point."""
    low, high, zero_point = TYPES[kind]
    v = x.astype(np.float64) / scale
    below, above = v <= low - zero_point, v >= high - zero_point
    inside = np.rint(v) - v
    return np.where(below, low - zero_point, np.where(above, high - zero_point, inside))


@pytest.mark.parametrize("kind", TYPES)
def test_scales_have_the_published_gradient(kind):
    x, weights, scale = normal(5, 40, seed=1), normal(5, 40, seed=2), 0.25
    low, high, zero_point = TYPES[kind]
    scales = ActivationScales({"x": 0.0})
    y = scales.quantize("x", torch.from_numpy(x), quantizer_of(kind, scale))
    (y * torch.from_numpy(weights)).sum().backward()
    levels = max(high - zero_point, zero_point - low)
    # By the chain rule a step of the logarithm is a step of the scale times the scale.
    expected = (weights * lsq_gradient(x, scale, kind)).sum() * scale / np.sqrt(40 * levels)
    assert scales.parameters()[0].grad.item() == pytest.approx(expected, rel=1e-4)
    assert torch.equal(y, quantizer_of(kind, scale).nearest(torch.from_numpy(x)))


def test_beyond_the_range_the_gradient_is_that_of_finite_differences():
    """There the estimate is no estimate: what is clipped moves with the scale."""
    x = np.array([[40.0, 55.0, -30.0]])

    def total(log):
        scale = 0.25 * np.exp(log)
        return float((np.clip(np.rint(x / scale) + 6, 0, 15) - 6).sum() * scale)

    scales = ActivationScales({"x": 0.0})
    scales.quantize("x", torch.from_numpy(x).float(), quantizer_of("uint4", 0.25)).sum().backward()
    difference = (total(1e-5) - total(-1e-5)) / 2e-5
    gradient = scales.parameters()[0].grad.item() * np.sqrt(3 * 9)
    assert gradient == pytest.approx(difference, rel=1e-5)


def test_a_scale_learns_to_the_least_error():
    x = torch.from_numpy(normal(64, 32, seed=3))
    quantizer = quantizer_of("int4", 0.9)
    scales = ActivationScales({"x": 0.0})
    optimizer = Adam([(scales.parameters(), 0.05)])
    for step in range(60):
        (scales.quantize("x", x, quantizer) - x).square().mean().backward()
        optimizer.step(1 - step / 60)
    tried = np.linspace(0.1, 1.2, 111)
    errors = [float((quantizer_of("int4", s).nearest(x) - x).square().mean()) for s in tried]
    with torch.no_grad():
        error = float((scales.quantize("x", x, quantizer) - x).square().mean())
    assert error < 1.02 * min(errors) < errors[80]
    assert quantizer_of("int4", 0.9 * scales.factors()["x"]).nearest(torch.zeros(1)) == 0


def test_elements_are_dropped_at_random_and_only_while_asked_for():
    x = torch.from_numpy(normal(100, 100, seed=4))
    quantizer, scales = quantizer_of("int4", 0.9), ActivationScales({})
    whole = scales.quantize("x", x, quantizer)
    with scales.dropping(0.25, torch.Generator().manual_seed(1)):
        part = scales.quantize("x", x, quantizer)
    with scales.dropping(0.25, torch.Generator().manual_seed(1)):
        assert torch.equal(part, scales.quantize("x", x, quantizer))
    is_float, is_quantized = part == x, part == whole
    assert torch.all(is_float | is_quantized)
    assert float(is_quantized.float().mean()) == pytest.approx(0.25, abs=0.02)
    assert torch.equal(scales.quantize("x", x, quantizer), quantizer.nearest(x))


def test_factors_stay_within_their_limits():
    scales = ActivationScales({"free": 0.0, "bound": 0.8})
    with torch.no_grad():
        for log in scales.parameters():
            log.fill_(-50)
    assert scales.factors() == pytest.approx({"free": 1 / MAX_FACTOR, "bound": 0.8})
    with torch.no_grad():
        for log in scales.parameters():
            log.fill_(50)
    assert scales.factors() == pytest.approx({"free": MAX_FACTOR, "bound": MAX_FACTOR})
