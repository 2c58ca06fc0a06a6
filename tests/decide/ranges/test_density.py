"""The error of a distribution on given levels, from its histogram and value by value."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bitwright.decide.ranges.density import Density, Levels
from bitwright.numerics.types import INT8, UINT8
from bitwright.observe import TensorSketch

values = hnp.arrays(np.float32, st.integers(1, 200), elements=st.floats(-64, 64, width=32))


def density_of(x):
    sketch = TensorSketch.empty()
    sketch.update(x, engine="numpy")
    return Density.of_bins(sketch.values().astype(float), sketch.counts().astype(float))


@given(x=values, symmetric=st.booleans())
@settings(deadline=None, max_examples=60)
def test_the_error_of_a_histogram_is_that_of_its_values_but_for_the_width_of_its_bins(x, symmetric):
    levels = Levels.over(
        np.array([-40.0, -70.0]), np.array([50.0, 70.0]), UINT8, symmetric=symmetric
    )
    exact = levels.as_column().squared_error(x.astype(np.float64)[None]).sum(axis=1)
    wide = x.size * levels.scale**2 + np.square(np.abs(x) / 128).sum()
    slack = 2 * np.sqrt(exact * wide) + wide
    assert (np.abs(density_of(x).error(levels) - exact) <= slack).all()


def test_points_are_judged_one_by_one():
    points, masses = np.array([-3.0, 0.3, 5.0]), np.array([1.0, 4.0, 2.0])
    levels = Levels.over(np.array([-1.0, -4.0]), np.array([1.0, 4.0]), INT8, symmetric=True)
    expected = [
        sum(
            mass * (point - np.clip(np.rint(point / scale), -127, 127) * scale) ** 2
            for point, mass in zip(points, masses, strict=True)
        )
        for scale in (1 / 127, 4 / 127)
    ]
    found = Density.of_points(points, masses).error(levels)
    assert found == pytest.approx(expected, rel=1e-12)
