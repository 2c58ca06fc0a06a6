"""The error of a distribution on given levels: compiled, in numpy, and value by value."""

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
def test_compiled_and_numpy_give_the_same_errors(x, symmetric):
    pytest.importorskip("numba")
    ends = np.geomspace(0.01, 70.0, 12)
    levels = Levels.over(-ends / 2, ends, UINT8, symmetric=symmetric)
    for density in (
        density_of(x),
        Density.of_points(np.unique(x).astype(float), np.ones(np.unique(x).size)),
    ):
        numpy, compiled = (density.error(levels, engine=engine) for engine in ("numpy", "numba"))
        np.testing.assert_allclose(compiled, numpy, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("engine", ["numpy", "numba"])
def test_points_are_judged_one_by_one(engine):
    pytest.importorskip("numba")
    points, masses = np.array([-3.0, 0.3, 5.0]), np.array([1.0, 4.0, 2.0])
    levels = Levels.over(np.array([-1.0, -4.0]), np.array([1.0, 4.0]), INT8, symmetric=True)
    expected = [
        sum(
            mass * (point - np.clip(np.rint(point / scale), -127, 127) * scale) ** 2
            for point, mass in zip(points, masses, strict=True)
        )
        for scale in (1 / 127, 4 / 127)
    ]
    found = Density.of_points(points, masses).error(levels, engine=engine)
    assert found == pytest.approx(expected, rel=1e-12)
