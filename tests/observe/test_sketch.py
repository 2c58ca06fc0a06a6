import pickle
from array import array as packed_array
from collections import Counter
from functools import reduce
from operator import or_

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bitwright.errors import DataError
from bitwright.numerics.positions import PositionGrid
from bitwright.observe import TensorSketch

batch = hnp.arrays(
    np.float32, st.tuples(st.integers(1, 3), st.just(4)), elements=st.floats(width=32)
)
batches = st.lists(batch, max_size=4)


GRIDS = (PositionGrid(-127, 127, True), PositionGrid(0, 255, False))


def sketch_of(arrays, *, histogram=True, axis=1, grids=GRIDS):
    sketch = TensorSketch.empty(histogram=histogram, channel_axis=axis, grids=grids)
    for array in arrays:
        sketch.update(array, engine="numpy")
    return sketch


def without_batches(sketch):
    clone = TensorSketch.from_state(sketch.state())
    clone._lows_highs = packed_array("f")
    return clone


def without_cut(sketch):
    clone = without_batches(sketch)
    clone.votes = {}
    return clone


@given(batches, batches, batches, st.booleans())
@settings(deadline=None, max_examples=50)
def test_merging_is_associative_and_empty_is_neutral(a, b, c, histogram):
    x, y, z = (sketch_of(part, histogram=histogram) for part in (a, b, c))
    empty = TensorSketch.empty(histogram=histogram, channel_axis=1, grids=GRIDS)
    assert (x | y) | z == x | (y | z)
    assert x | empty == x == empty | x


@given(batches, st.randoms(), st.integers(1, 4))
@settings(deadline=None, max_examples=50)
def test_order_and_shards_do_not_matter(arrays, random, shards):
    whole = sketch_of(arrays)
    shuffled = list(arrays)
    random.shuffle(shuffled)
    parts = [sketch_of(shuffled[i::shards]) for i in range(shards)]
    assert without_batches(reduce(or_, parts)) == without_batches(whole)


@given(st.lists(batch, min_size=1, max_size=4))
@settings(deadline=None, max_examples=50)
def test_batch_size_does_not_matter(arrays):
    one_by_one, at_once = sketch_of(arrays), sketch_of([np.concatenate(arrays)])
    assert without_cut(one_by_one) == without_cut(at_once)


@given(batches, st.randoms(), st.integers(1, 4))
@settings(deadline=None, max_examples=30)
def test_votes_are_those_of_each_batch_however_the_batches_are_sharded(arrays, random, shards):
    shuffled = list(arrays)
    random.shuffle(shuffled)
    merged = reduce(or_, [sketch_of(shuffled[i::shards]) for i in range(shards)])
    for grid in GRIDS:
        alone = [grid.best_position(array) for array in arrays]
        assert merged.votes[grid] == Counter(p for p in alone if p is not None)
    assert TensorSketch.from_state(merged.state()).votes == merged.votes
    assert pickle.loads(pickle.dumps(merged)) == merged


def test_sketches_of_other_grids_do_not_merge():
    with pytest.raises(DataError, match="same detail"):
        TensorSketch.empty(grids=GRIDS) | TensorSketch.empty(grids=GRIDS[:1])


@given(batches, batches)
@settings(deadline=None, max_examples=30)
def test_batches_keep_their_order_through_merges(a, b):
    merged = sketch_of(a) | sketch_of(b)
    assert np.array_equal(merged.batches, sketch_of(a + b).batches)


@given(batches)
@settings(deadline=None, max_examples=30)
def test_merging_changes_neither_part(arrays):
    x, y = sketch_of(arrays), sketch_of(arrays)
    before = x.state()
    x | y
    assert TensorSketch.from_state(before) == x


@given(batches)
@settings(deadline=None, max_examples=30)
def test_values_ascend_within_the_extremes_and_count_everything_finite(arrays):
    sketch = sketch_of(arrays)
    values, counts = sketch.values(), sketch.counts()
    assert np.all(np.diff(values) > 0)
    assert counts.sum() == sketch.finite
    if sketch.finite:
        assert sketch.low <= values[0]
        assert values[-1] <= sketch.high


def test_update_after_values_is_seen():
    sketch = TensorSketch.of([1.0])
    assert sketch.counts().tolist() == [1]
    sketch.update(np.ones(2, np.float32))
    assert sketch.counts().tolist() == [3]


@pytest.mark.parametrize("dtype", [np.float16, np.float64, ml_dtypes.bfloat16])
def test_other_float_types_are_converted(dtype):
    sketch = TensorSketch.empty()
    sketch.update(np.array([0.5, -2.0], dtype))
    assert (sketch.low, sketch.high, sketch.finite) == (-2.0, 0.5, 2)


def test_a_float64_beyond_float32_counts_as_infinite():
    sketch = TensorSketch.of(np.array([1e300, 1.0]))
    assert (sketch.inf, sketch.high) == (1, 1.0)


@pytest.mark.parametrize("dtype", [np.int32, np.bool_, np.uint8])
def test_integers_are_refused(dtype):
    with pytest.raises(DataError, match="only float tensors"):
        TensorSketch.of(np.ones(2, dtype))


def test_strided_scalar_and_empty_arrays():
    sketch = TensorSketch.empty()
    sketch.update(np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2].T)
    sketch.update(np.float32(20.0).reshape(()))
    sketch.update(np.zeros((0, 5), np.float32))
    assert (sketch.count, sketch.low, sketch.high) == (7, 0.0, 20.0)
    assert len(sketch.batches) == 2


def test_different_kinds_do_not_merge():
    with pytest.raises(DataError, match="same detail"):
        TensorSketch.empty() | TensorSketch.empty(histogram=False)


def test_extremes_only_has_no_histogram():
    with pytest.raises(DataError, match="detail='histogram'"):
        TensorSketch.of([1.0], histogram=False).values()


def test_a_changed_number_of_channels_is_refused():
    sketch = TensorSketch.empty(channel_axis=1)
    sketch.update(np.zeros((1, 3), np.float32))
    with pytest.raises(DataError, match="from 3 to 4"):
        sketch.update(np.zeros((1, 4), np.float32))
    with pytest.raises(DataError, match="no axis 1"):
        sketch.update(np.zeros(4, np.float32))


def test_a_pickle_is_small_and_equal():
    sketch = TensorSketch.of(np.random.default_rng(0).normal(size=1000))
    pickled = pickle.dumps(sketch)
    assert len(pickled) < 30_000
    assert pickle.loads(pickled) == sketch


finite_batch = hnp.arrays(
    np.float32, st.tuples(st.integers(1, 3), st.just(4)), elements=st.floats(-100, 100, width=32)
)


@given(st.lists(finite_batch, min_size=1, max_size=6), st.integers(1, 3))
@settings(deadline=None, max_examples=50)
def test_means_of_channels_are_those_of_all_the_data_however_it_is_cut(arrays, shards):
    parts = []
    for shard in range(shards):
        part = TensorSketch.empty(histogram=False, mean_axis=-1)
        for array in arrays[shard::shards]:
            part.update(array)
        parts.append(pickle.loads(pickle.dumps(part)))
    merged = reduce(or_, parts)
    expected = np.concatenate(arrays).astype(np.float64).mean(axis=0)
    np.testing.assert_allclose(merged.channel_mean, expected, rtol=1e-12, atol=1e-12)
    whole = TensorSketch.empty(histogram=False, mean_axis=-1)
    for array in arrays:
        whole.update(array)
    assert (merged.channel_mean == whole.channel_mean).all()


def test_means_need_the_axis_and_the_same_channels_throughout():
    sketch = TensorSketch.empty(mean_axis=1)
    assert sketch.channel_mean is None
    with pytest.raises(DataError, match="no axis 1 to keep per-channel means"):
        sketch.update(np.ones(3, np.float32))
    sketch.update(np.ones((2, 3), np.float32))
    with pytest.raises(DataError, match="changed from 3 to 4"):
        sketch.update(np.ones((2, 4), np.float32))


def test_a_thinned_histogram_has_all_extremes_and_nearly_the_same_distribution():
    batches = np.random.default_rng(0).normal(size=(4, 8, 56, 56)).astype(np.float32)
    whole, thinned = TensorSketch.empty(), TensorSketch.empty(most_counted=2048)
    for batch in batches:
        whole.update(batch)
        thinned.update(batch)
    assert (thinned.low, thinned.high, thinned.count) == (whole.low, whole.high, whole.count)
    assert thinned.counts().sum() == pytest.approx(whole.finite, rel=0.01)
    for point in (-2.0, -0.5, 0.0, 1.0, 2.5):
        parts = [s.counts()[s.values() <= point].sum() / s.count for s in (whole, thinned)]
        assert parts[1] == pytest.approx(parts[0], abs=0.02)


def test_small_tensors_are_not_thinned():
    small = np.linspace(-1, 1, 99, dtype=np.float32)
    thinned = TensorSketch.empty(most_counted=99)
    thinned.update(small)
    assert thinned == TensorSketch.of(small)


def test_thinning_does_not_depend_on_how_the_data_is_cut():
    batches = np.random.default_rng(0).normal(size=(4, 1000)).astype(np.float32)
    one, *parts = (TensorSketch.empty(most_counted=100) for _ in range(3))
    for index, batch in enumerate(batches):
        one.update(batch)
        parts[index // 2].update(batch)
    assert parts[0] | parts[1] == one
