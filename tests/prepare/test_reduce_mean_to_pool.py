"""A mean over height and width becomes a GlobalAveragePool, and no other mean does."""

from __future__ import annotations

import numpy as np
import pytest
from support.models import build, node
from support.rewriting import assert_same, op_types, rewrite

from bitwright.prepare import reduce_mean_to_pool


def model_of(axes, *, opset=17, shape=(2, 3, 5, 7), dtype=np.int64, **attributes):
    """Axes are an attribute before opset 18, an input from then on."""
    if axes is None or opset < 18:
        given = {} if axes is None else {"axes": axes}
        mean = node("ReduceMean", ["x"], ["y"], name="mean", **given, **attributes)
        return build([mean], {"x": shape}, {"y": None}, opset=opset)
    mean = node("ReduceMean", ["x", "axes"], ["y"], name="mean", **attributes)
    constants = {"axes": np.array(axes, dtype)}
    return build([mean], {"x": shape}, {"y": None}, constants, opset=opset)


@pytest.mark.parametrize("axes", [[2, 3], [3, 2], [-1, -2], [2, -1]])
@pytest.mark.parametrize("opset", [11, 17, 18, 21])
def test_axes_in_every_spelling(axes, opset):
    proto = model_of(axes, opset=opset)
    model, count, _ = rewrite(proto, reduce_mean_to_pool)
    assert (count, op_types(model)) == (1, {"GlobalAveragePool": 1})
    assert next(iter(model.graph)).name == "mean"
    assert_same(proto, model)


@pytest.mark.parametrize("opset", [11, 18])
@pytest.mark.parametrize("shape", [(2, 3, 5, 7), ("n", 3, "h", "w")])
def test_dimensions_that_go_are_flattened_away(opset, shape):
    proto = model_of([2, 3], opset=opset, keepdims=0, shape=shape)
    model, count, _ = rewrite(proto, reduce_mean_to_pool)
    assert (count, op_types(model)) == (1, {"GlobalAveragePool": 1, "Flatten": 1})
    assert_same(proto, model)


@pytest.mark.parametrize("axes", [[1, 2], [2], [1, 2, 3], None])
@pytest.mark.parametrize("opset", [17, 18])
def test_other_axes_stay(axes, opset):
    model, count, _ = rewrite(model_of(axes, opset=opset), reduce_mean_to_pool)
    assert (count, op_types(model)) == (0, {"ReduceMean": 1})


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 5, 7, 2), None])
def test_other_ranks_stay(shape):
    _, count, _ = rewrite(model_of([-2, -1], shape=shape), reduce_mean_to_pool, infer=False)
    assert count == 0
