"""Second moments are a sum: of batches, in any order and on any number of machines."""

import numpy as np
import pytest

from bitwright.errors import DataError
from bitwright.numerics import second_moment, wide_matrices
from bitwright.numerics.arrays import arrays_on
from bitwright.numerics.second_moment import SecondMoment, output_error


def moment_of(*batches, xp=None):
    moment = SecondMoment(4) if xp is None else SecondMoment(4, xp=xp)
    for batch in batches:
        moment.update(batch)
    return moment


def inputs(count, seed=0):
    return np.random.default_rng(seed).standard_normal((count, 4)).astype(np.float32)


def test_it_is_the_mean_of_the_products():
    x = inputs(60)
    moment = moment_of(x)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(moment.matrix(), wide.T @ wide / 60, rtol=1e-5)
    np.testing.assert_allclose(moment.mean_magnitudes(), np.abs(wide).mean(axis=0), rtol=1e-6)


def test_batches_of_any_shape_and_order_and_merging_come_to_the_same():
    x = inputs(60)
    whole = moment_of(x)
    for other in (
        moment_of(x[40:], x[:40]),
        moment_of(x.reshape(3, 5, 4, 4)),
        moment_of(x[:7]) | moment_of(x[7:]),
        SecondMoment(4) | whole,
    ):
        assert other.count == 60
        np.testing.assert_allclose(other.matrix(), whole.matrix(), rtol=1e-5)
        np.testing.assert_allclose(other.mean_magnitudes(), whole.mean_magnitudes(), rtol=1e-6)


def test_it_says_what_a_change_of_the_weights_costs():
    x = inputs(50)
    change = np.random.default_rng(1).standard_normal((4, 3))
    expected = np.square(x @ change).mean(axis=0)
    np.testing.assert_allclose(output_error(change, moment_of(x).matrix()), expected, rtol=1e-4)


def test_torch_and_numpy_merge():
    pytest.importorskip("torch")
    x = inputs(30)
    merged = moment_of(x[:10], xp=arrays_on("torch")) | moment_of(x[10:])
    np.testing.assert_allclose(merged.matrix(), moment_of(x).matrix(), rtol=1e-5)


def test_empty_wrong_and_broken_data_are_refused():
    with pytest.raises(DataError, match="at least one sample"):
        SecondMoment(4).matrix()
    with pytest.raises(DataError, match=r"shape \(2, 3\) does not end in the layer's 4 channels"):
        SecondMoment(4).update(np.zeros((2, 3)))
    with pytest.raises(DataError, match="NaN or infinity"):
        SecondMoment(4).update([[np.nan, 0, 0, 0]])
    with pytest.raises(DataError, match="do not merge"):
        SecondMoment(4) | SecondMoment(5)


@pytest.mark.parametrize("panel", [3, 8])
def test_wide_ones_are_summed_in_panels(monkeypatch, panel):
    x = np.random.default_rng(3).standard_normal((40, 20)).astype(np.float32)
    plain, wide = SecondMoment(20), SecondMoment(20)
    plain.update(x)
    monkeypatch.setattr(second_moment, "MAX_COPIED_CHANNELS", 0)
    monkeypatch.setattr(wide_matrices, "PANEL", panel)
    wide.update(x[:15])
    wide.update(x[15:])
    reference = x.astype(np.float64).T @ x.astype(np.float64) / 40
    np.testing.assert_allclose(wide.matrix(), reference, atol=1e-6)
    np.testing.assert_allclose((wide | wide).matrix(), reference, atol=1e-6)
    np.testing.assert_allclose(plain.take_matrix(), wide.take_matrix(), atol=1e-6)
    with pytest.raises(DataError, match="NaN or infinity"):
        SecondMoment(20).update(np.full((1, 20), np.inf))
