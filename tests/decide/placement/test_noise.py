"""Noise over signal of activations, against the values themselves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitwright.decide.placement.noise import noise_shares
from bitwright.numerics.types import INT16, UINT8
from bitwright.observe import TensorSketch
from bitwright.plan import TensorPlan

DRAWS = {
    "normal": lambda random, size: random.normal(size=size),
    "relu": lambda random, size: np.maximum(random.normal(size=size), 0),
    "heavy": lambda random, size: random.standard_t(3, size=size),
}


def activation(qtype=UINT8, name="x"):
    return TensorPlan(tensor=name, role="activation", qtype=qtype, scale=1.0, zero_point=0)


def least_noise(values: np.ndarray) -> float:
    """Return the least noise over signal of ranges that are tried one after the other."""
    low, high = min(values.min(), 0.0), max(values.max(), 0.0)
    found = []
    for share in np.geomspace(0.02, 1, 60):
        scale = share * (high - low) / 255
        zero = np.clip(np.rint(-share * low / scale), 0, 255)
        rounded = (np.clip(np.rint(values / scale) + zero, 0, 255) - zero) * scale
        found.append(np.square(rounded - values).sum() / np.square(values).sum())
    return float(min(found))


@pytest.mark.parametrize("kind", DRAWS)
@given(seed=st.integers(0, 2**16), scale=st.floats(1e-3, 1e3))
def test_noise_is_the_least_that_the_values_themselves_show(kind, seed, scale):
    values = (scale * DRAWS[kind](np.random.default_rng(seed), 5_000)).astype(np.float32)
    found = noise_shares([activation()], {"x": TensorSketch.of(values)})["x"]
    assert 0.6 * least_noise(values.astype(np.float64)) < found
    assert found < 1.1 * least_noise(values.astype(np.float64))


def test_a_finer_type_has_less_noise():
    sketch = TensorSketch.of(np.random.default_rng(0).normal(size=5000).astype(np.float32))
    fine, coarse = (
        noise_shares([activation(qtype)], {"x": sketch})["x"] for qtype in (INT16, UINT8)
    )
    assert 0 < fine < coarse / 1000


def test_what_nothing_is_known_of_has_no_noise():
    extremes = TensorSketch.of(np.ones(5, np.float32), histogram=False)
    zeros = TensorSketch.of(np.zeros(5, np.float32))
    sketches = {"extremes": extremes, "zeros": zeros, "empty": TensorSketch.empty()}
    entries = [activation(name=name) for name in (*sketches, "not observed")]
    assert noise_shares(entries, sketches) == dict.fromkeys(sketches, 0.0)
