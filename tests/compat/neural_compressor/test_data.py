"""Loaders put samples into batches, whatever a dataset is."""

import numpy as np
import pytest

from bitwright.compat.neural_compressor.data import DataLoader
from bitwright.errors import DataError

PAIRS = [(np.full(2, i), i) for i in range(5)]


def labels(loader):
    return [labels for _, labels in loader]


def test_samples_become_batches_and_the_last_may_be_dropped():
    assert labels(DataLoader("onnxruntime", PAIRS, 2)) == [[0, 1], [2, 3], [4]]
    whole = DataLoader("onnxrt_qlinearops", PAIRS, 2, last_batch="discard")
    assert labels(whole) == labels(whole) == [[0, 1], [2, 3]]
    whole.batch(5)
    assert labels(whole) == [[0, 1, 2, 3, 4]]


def test_datasets_may_be_iterated_over_and_samples_be_dicts():
    class Stream:
        def __iter__(self):
            yield from ({"x": np.zeros(3), "name": "a"}, {"x": np.ones(3), "name": "b"})

    [batch] = DataLoader("onnxruntime", Stream(), 2)
    assert batch["x"].shape == (2, 3) and batch["name"] == ["a", "b"]


def test_samplers_and_other_ways_to_batch():
    assert labels(DataLoader("onnxruntime", PAIRS, 2, sampler=[4, 0])) == [[4, 0]]
    batches = DataLoader("onnxruntime", PAIRS, batch_sampler=[[1], [2, 3]])
    assert labels(batches) == [[1], [2, 3]]
    assert list(DataLoader("onnxruntime", PAIRS, 3, collate_fn=len)) == [3, 2]


def test_lengths_that_differ_stay_a_list():
    [[inputs, _]] = DataLoader("onnxruntime", [(np.zeros(2), 0), (np.zeros(3), 1)], 2)
    assert [each.shape for each in inputs] == [(2,), (3,)]


def test_wrong_arguments_are_refused_and_the_rest_is_warned_of():
    with pytest.raises(DataError, match="for the framework onnxruntime, not 'pytorch'"):
        DataLoader("pytorch", PAIRS)
    with pytest.raises(DataError, match="last_batch is one of rollover, discard, not 'keep'"):
        DataLoader("onnxruntime", PAIRS, last_batch="keep")
    with pytest.raises(DataError, match="batch_size is at least 1, not 0"):
        DataLoader("onnxruntime", PAIRS, 0)
    with pytest.warns(UserWarning, match="shuffle of DataLoader is ignored"):
        DataLoader("onnxruntime", PAIRS, shuffle=True)
