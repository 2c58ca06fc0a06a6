"""Datasets give items, or what a model reads of them, as often as they are asked."""

from itertools import count

from bitwright.compat.nncf.dataset import Dataset, first_inputs


def test_items_are_chosen_by_number_from_lists_and_from_iterables():
    squares = Dataset([0, 1, 4, 9], lambda item: {"x": item})
    assert list(squares.get_data()) == [0, 1, 4, 9]
    assert list(squares.get_data([3, 1])) == [9, 1]
    once = Dataset(dict.fromkeys(range(5)).keys(), lambda item: -item)
    assert list(once.get_inference_data([1, 3])) == [-1, -3]


def test_items_can_be_read_again():
    chosen = Dataset([1, 2, 3]).get_data([0, 2])
    assert list(chosen) == list(chosen) == [1, 3]


def test_lengths_and_batches_are_told_where_they_are_known():
    class Loader(list):
        batch_size = 8

    assert Dataset([1, 2]).get_length() == 2 and Dataset(iter([1])).get_length() is None
    assert Dataset(Loader()).get_batch_size() == 8 and Dataset([]).get_batch_size() is None


def test_the_first_items_are_all_that_is_read():
    assert list(first_inputs(Dataset([1, 2]), 5)) == [1, 2]
    assert list(first_inputs(Dataset(count()), 3)) == [0, 1, 2]
