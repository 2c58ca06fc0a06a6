import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bitwright.observe import kernels

pytest.importorskip("numba")

any_float32 = hnp.arrays(
    np.uint32, st.integers(0, 300), elements=st.integers(0, 2**32 - 1), fill=st.nothing()
).map(lambda bits: bits.view(np.float32))


def counted(values, engine):
    lanes = np.zeros((kernels.LANES, kernels.BINS), np.int64)
    found = kernels.accumulate(values, lanes, engine=engine)
    return lanes.sum(axis=0), found


@given(any_float32)
@settings(deadline=None)
@pytest.mark.slow
def test_numba_and_numpy_give_the_same_counts_and_extremes(values):
    compiled, plain = counted(values, "numba"), counted(values, "numpy")
    assert np.array_equal(compiled[0], plain[0])
    assert compiled[1] == plain[1]


@pytest.mark.parametrize("engine", ["numba", "numpy"])
@pytest.mark.parametrize("size", [1, 2, 16383, 16384, 16385, 70001])
def test_every_value_is_counted_in_its_nearest_bfloat16(engine, size):
    rng = np.random.default_rng(size)
    values = rng.normal(size=size) * 10.0 ** rng.uniform(-38, 38, size)
    values = np.clip(values, -3e38, 3e38).astype(np.float32)
    histogram, found = counted(values, engine)
    bins = values.astype(ml_dtypes.bfloat16).view(np.uint16)
    assert np.array_equal(histogram, np.bincount(bins, minlength=kernels.BINS))
    assert (found.low, found.high) == (values.min(), values.max())


@pytest.mark.parametrize("engine", ["numba", "numpy"])
def test_the_largest_floats_stay_in_the_largest_finite_bin(engine):
    top = np.finfo(np.float32).max
    histogram, found = counted(np.array([top, -top, np.inf, -np.inf, np.nan], np.float32), engine)
    assert histogram[0x7F7F] == histogram[0xFF7F] == 1
    assert histogram.sum() == 2
    assert found == (-top, top, 1, 2)


@pytest.mark.parametrize("engine", ["numba", "numpy"])
@pytest.mark.parametrize(
    "values", [[-1.0, -2.0], [3.0, 4.0], [-0.0, 5e-324], [1e-45, -1e-45], [np.nan], []]
)
def test_extremes_of_one_sign_denormals_and_nothing(engine, values):
    array = np.array(values, np.float32)
    _, found = counted(array, engine)
    assert found == kernels.extremes(array)
    finite = array[np.isfinite(array)]
    if finite.size:
        assert (found.low, found.high) == (finite.min(), finite.max())
    else:
        assert found.low > found.high


@given(any_float32)
def test_extremes_are_those_of_the_finite_values(values):
    found = kernels.extremes(values)
    finite = values[np.isfinite(values)]
    assert found.nan == np.isnan(values).sum()
    assert found.inf == np.isinf(values).sum()
    if finite.size:
        assert (found.low, found.high) == (finite.min(), finite.max())


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_channel_extremes_skip_what_is_not_finite(axis):
    values = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)
    values[1, 2, 3] = np.nan
    values[0, 0, 0] = -np.inf
    low, high = kernels.channel_extremes(values, axis)
    others = tuple(a for a in range(3) if a != axis % 3)
    clean = np.where(np.isfinite(values), values, np.nan)
    assert np.array_equal(low, np.nanmin(clean, axis=others))
    assert np.array_equal(high, np.nanmax(clean, axis=others))


def test_a_whole_channel_of_nan_has_no_extremes():
    low, high = kernels.channel_extremes(np.array([[np.nan, 1.0]], np.float32), 1)
    assert low.tolist() == [np.inf, 1.0]
    assert high.tolist() == [-np.inf, 1.0]


def test_importing_the_observer_and_watching_extremes_loads_no_compiler():
    program = (
        "import sys, numpy as np; from bitwright.observe import TensorSketch;"
        "s = TensorSketch.empty(histogram=False); s.update(np.ones(9, np.float32));"
        "assert not {'numba', 'ray', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_many_values_earn_the_compiler_and_count_the_same(monkeypatch):
    used = []
    monkeypatch.setattr(kernels, "_PROGRESS", kernels._Progress())
    monkeypatch.setattr(kernels, "_WORTH_COMPILING", 1000)
    monkeypatch.setattr(kernels, "default_engine", lambda: used.append("numba") or "numba")
    lanes = np.zeros((kernels.LANES, kernels.BINS), np.int64)
    for _ in range(4):
        kernels.accumulate(np.linspace(-2, 2, 400, dtype=np.float32), lanes)
    assert used == ["numba"] * 2
    alone, _ = counted(np.linspace(-2, 2, 400, dtype=np.float32), "numpy")
    assert np.array_equal(lanes.sum(axis=0), 4 * alone)
