import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitwright.data.specs import InputSpec, check_sample
from bitwright.data.stacks import split_stack
from bitwright.errors import DataError

F32 = np.dtype("float32")


def split(arrays, *specs, lone=True):
    count, samples = split_stack(arrays, specs, origin="data", lone=lone)
    samples = list(samples)
    assert len(samples) == count
    return samples


@given(count=st.integers(1, 6), batch=st.integers(1, 4))
def test_an_extra_leading_dimension_counts_samples(count, batch):
    spec = InputSpec("x", F32, (batch, 2))
    stack = np.arange(count * batch * 2, dtype=np.float32).reshape(count, batch, 2)
    samples = split({"x": stack}, spec)
    np.testing.assert_array_equal(np.stack([sample["x"] for sample in samples]), stack)


@given(count=st.integers(1, 6), batch=st.integers(1, 4))
def test_a_multiple_of_the_fixed_batch_is_cut_into_batches(count, batch):
    spec = InputSpec("x", F32, (batch, 2))
    rows = np.arange(count * batch * 2, dtype=np.float32).reshape(count * batch, 2)
    samples = split({"x": rows}, spec)
    assert len(samples) == count
    np.testing.assert_array_equal(np.concatenate([sample["x"] for sample in samples]), rows)
    for index, sample in enumerate(samples):
        check_sample(sample, [spec], index)


def test_an_open_batch_is_cut_only_when_the_array_is_all_there_is():
    spec = InputSpec("x", F32, ("batch", 2))
    rows = np.zeros((5, 2), np.float32)
    assert [s["x"].shape for s in split({"x": rows}, spec)] == [(1, 2)] * 5
    assert [s["x"].shape for s in split({"x": rows}, spec, lone=False)] == [(5, 2)]


def test_what_fits_no_rule_is_handed_on_for_the_check_to_explain():
    spec = InputSpec("x", F32, (4, 2))
    assert split({"x": np.zeros((6, 2))}, spec)[0]["x"].shape == (6, 2)
    assert split({"y": np.zeros((6, 2))}, spec)[0]["y"].shape == (6, 2)
    assert split({"x": np.zeros(())}, spec)[0]["x"].shape == ()


def test_an_input_with_one_sample_is_used_for_all():
    image, size = InputSpec("image", F32, (1, 2)), InputSpec("size", F32, (1, 3))
    samples = split({"image": np.zeros((4, 2)), "size": np.ones((1, 3))}, image, size)
    assert [s["size"].shape for s in samples] == [(1, 3)] * 4


def test_inputs_of_different_length_are_refused():
    a, b = InputSpec("a", F32, (1, 2)), InputSpec("b", F32, (1, 2))
    with pytest.raises(DataError, match="different numbers of samples \\('a' 4, 'b' 3\\)"):
        split({"a": np.zeros((4, 2)), "b": np.zeros((3, 2))}, a, b)
