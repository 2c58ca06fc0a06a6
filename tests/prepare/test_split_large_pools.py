"""A global average over more than 512 values becomes two pools that compute the same."""

from __future__ import annotations

import pytest
from support.models import build, node
from support.rewriting import assert_same, op_types, rewrite

from bitwright.prepare import split_large_pools


def model_of(height, width, opset=17):
    pool = node("GlobalAveragePool", ["x"], ["y"], name="pool")
    return build([pool], {"x": ["n", 2, height, width]}, {"y": None}, opset=opset)


@pytest.mark.parametrize(
    ("size", "kernel"),
    [((32, 32), [4, 4]), ((64, 64), [8, 8]), ((30, 20), [5, 4]), ((23, 64), [1, 8])],
)
def test_the_first_pool_has_the_largest_divisors_up_to_the_root(size, kernel):
    proto = model_of(*size)
    model, count, notes = rewrite(proto, split_large_pools)
    assert (count, notes) == (1, [])
    first, last = model.graph
    assert (first.op_type, last.op_type, last.name) == ("AveragePool", "GlobalAveragePool", "pool")
    assert list(first.attributes["kernel_shape"].as_ints()) == kernel
    assert list(first.attributes["strides"].as_ints()) == kernel
    assert_same(proto, model)


def test_small_pools_stay_without_a_word():
    assert rewrite(model_of(16, 32), split_large_pools)[1:] == (0, [])


@pytest.mark.parametrize(
    ("size", "reason"),
    [((23, 23), "23x23"), ((1024, 1024), "1024x1024"), (("h", 64), "not fixed")],
)
def test_it_says_why_a_large_pool_stays(size, reason):
    model, count, notes = rewrite(model_of(*size), split_large_pools)
    assert (count, op_types(model)) == (0, {"GlobalAveragePool": 1})
    assert reason in notes[0]
    assert "'pool'" in notes[0]
