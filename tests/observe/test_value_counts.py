from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from bitwright.observe import value_counts
from bitwright.observe.value_counts import ValueCounts

BATCHES = st.lists(
    npst.arrays(np.float32, st.integers(1, 40), elements=st.floats(width=32)), max_size=6
)


def counted(batches, most=value_counts.MOST_WAITING):
    counts = ValueCounts()
    before, value_counts.MOST_WAITING = value_counts.MOST_WAITING, most
    try:
        extremes = [counts.add(batch) for batch in batches]
    finally:
        value_counts.MOST_WAITING = before
    return counts, extremes


@given(BATCHES, st.integers(0, 120))
def test_values_that_wait_count_as_those_that_are_counted_at_once(batches, most):
    waiting, seen = counted(batches, most)
    at_once, expected = counted(batches, most=0)
    np.testing.assert_array_equal(waiting.total(), at_once.total())
    assert seen == expected
    assert waiting.total().sum() == sum(batch.size for batch in batches) - sum(
        np.isnan(batch).sum() + np.isinf(batch).sum() for batch in batches
    )


@given(BATCHES, BATCHES, st.sampled_from([0, 50]), st.sampled_from([0, 50]), st.booleans())
def test_merging_adds_up_whether_values_wait_or_not(first, second, one, other, packed):
    merged = counted(first, one)[0]
    if packed:
        merged.pack()
    merged.merge(counted(second, other)[0])
    together = counted([*first, *second])[0]
    np.testing.assert_array_equal(merged.total(), together.total())


@settings(max_examples=30)
@given(BATCHES, BATCHES, st.sampled_from([0, 50]))
def test_counting_goes_on_after_packing(first, second, most):
    counts = counted(first, most)[0]
    counts.pack()
    for batch in second:
        counts.add(batch)
    np.testing.assert_array_equal(counts.total(), counted([*first, *second])[0].total())
    counts.pack()
    np.testing.assert_array_equal(counts.total(), counted([*first, *second])[0].total())


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the kernel's own count")
def test_bins_that_hold_nothing_take_no_memory():
    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    values = np.random.default_rng(0).normal(size=1 << 14).astype(np.float32)
    ValueCounts().add(values)  # what is loaded once
    before = resident()
    counts = [ValueCounts() for _ in range(200)]
    for count in counts:
        count.add(values)
    assert resident() - before < 50 << 20  # with all bins they would take 200 MiB
    for count in counts:
        count.pack()
    assert resident() - before < 20 << 20


def test_a_batch_that_waits_is_a_copy():
    batch = np.ones(3, np.float32)
    counts = ValueCounts()
    counts.add(batch)
    batch[:] = 2
    assert counts.total()[0x3F80] == 3
