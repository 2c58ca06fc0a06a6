"""Average pools that round up lose a count of pads that they do not have."""

from __future__ import annotations

import numpy as np
import pytest
from support.models import build, node, weight
from support.rewriting import assert_same, rewrite

import bitwright
from bitwright.prepare import drop_pad_counts


def model_of(size=6, **attributes):
    wanted = {"kernel_shape": [4, 4], "strides": [4, 4], "ceil_mode": 1, "count_include_pad": 1}
    nodes = [
        node("Conv", ["x", "w"], ["r"], name="conv"),
        node("AveragePool", ["r"], ["y"], name="pool", **(wanted | attributes)),
    ]
    return build(nodes, {"x": [1, 2, size, size]}, {"y": None}, {"w": weight(2, 2, 1, 1)})


@pytest.mark.parametrize(
    ("attributes", "count"),
    [
        ({}, 1),
        ({"pads": [0, 0, 0, 0]}, 1),
        ({"pads": [1, 1, 1, 1]}, 0),
        ({"auto_pad": "SAME_UPPER"}, 0),
        ({"ceil_mode": 0}, 0),
    ],
)
def test_only_a_pool_without_pads_that_rounds_up_loses_it(attributes, count):
    proto = model_of(**attributes)
    model, found, _ = rewrite(proto, drop_pad_counts)
    assert found == count
    assert_same(proto, model)


@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [1, 1, 1, 1]], ids=["plain", "padded"])
def test_windows_over_the_edge_are_averaged_as_in_float(pads):
    rng = np.random.default_rng(0)
    samples = [{"x": rng.random((1, 2, 5, 5), np.float32)} for _ in range(4)]
    model = model_of(5, pads=pads)
    result = bitwright.quantize(model, data=samples, target="npu-cnn", progress=False)
    # Divided by the whole window, it would be 3 or 12 dB.
    assert result.outputs[0].sqnr > 25
