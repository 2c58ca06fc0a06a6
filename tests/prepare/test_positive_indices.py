"""Constant indices of a Gather count from the front."""

import numpy as np
import pytest
from support.models import build, node
from support.rewriting import assert_same, rewrite

from bitwright.prepare import positive_indices


def make(indices, axis, shape=(2, 5, 3)):
    gather = node("Gather", ["x", "i"], ["y"], name="gather", axis=axis)
    return build([gather], {"x": list(shape)}, {"y": None}, {"i": np.array(indices, np.int64)})


@pytest.mark.parametrize(("indices", "axis"), [(-1, 1), ([0, -2, 4], 1), ([[-3, 1]], -1)])
def test_they_take_the_same_values(indices, axis):
    proto = make(indices, axis)
    model, changed, notes = rewrite(proto, positive_indices)
    assert (changed, notes) == (1, [])
    (gather,) = list(model.graph)
    assert gather.inputs[1].const_value.numpy().min() >= 0
    assert_same(proto, model)


def test_what_counts_from_the_front_stays():
    assert rewrite(make([0, 1], 1), positive_indices)[1:] == (0, [])


def test_an_axis_of_open_size_is_noted():
    _, changed, notes = rewrite(make(-1, 1, (2, "length", 3)), positive_indices)
    assert changed == 0 and "size of its axis is not known" in notes[0]
