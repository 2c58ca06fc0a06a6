"""Averages with the NPU's fixed-point reciprocals."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.models import build, node, normal, run
from support.rewriting import checked, op_types, rewrite

from bitwright.prepare.simulation.pools import (
    mean_factor,
    pool_factor,
    scale_average_pools,
    scale_means,
)

# Measured on the vendor's quantizer.
SEEN = {
    2: 1, 3: 0.984375, 4: 1, 5: 0.9765625, 6: 0.984375, 7: 1.0048828125, 8: 1, 9: 0.9986572,
    10: 1.0009766, 11: 1.0043945, 12: 1.0019531, 13: 1.0005493, 14: 1.0048828125, 15: 1.0025024,
    16: 1, 256: 1,
}  # fmt: skip


@pytest.mark.parametrize(("side", "factor"), SEEN.items())
def test_the_factors_are_those_of_the_vendor(side, factor):
    assert pool_factor(side, side) == pytest.approx(factor, abs=5e-8)


def test_means_do_not_use_the_table():
    assert mean_factor(36) == pytest.approx(1.001953, abs=5e-7)


@given(st.integers(1, 70_000))
def test_the_reciprocal_is_the_closest_of_its_shifts(count):
    shifts = range(7 + (count - 1).bit_length())
    errors = {n: abs(Fraction(round(Fraction(2**n, count)), 2**n) * count - 1) for n in shifts}
    assert abs(Fraction(mean_factor(count)) - 1) == min(errors.values())


def pool_model(op="AveragePool", shape=(1, 2, 14, 14), **attributes):
    pool = node(op, ["x"], ["y"], name="pool", **attributes)
    return build([pool, node("Relu", ["y"], ["z"])], {"x": shape}, {"y": None, "z": None})


def assert_scaled(proto, change, factor, shape=(1, 2, 14, 14)):
    model, count, notes = rewrite(proto, change)
    assert (count, notes) == (int(factor != 1), [])
    assert op_types(model)["Mul"] == count
    if count:
        scale = next(n for n in model.graph if n.op_type == "Mul")
        assert scale.metadata_props["bitwright.role"] == "simulation"
    x = normal(*shape)
    for plain, scaled in zip(run(proto, {"x": x}), run(checked(model), {"x": x}), strict=True):
        np.testing.assert_allclose(scaled, plain * factor, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("side", [2, 3, 7])
def test_a_pool_of_whole_windows_is_scaled(side):
    proto = pool_model(kernel_shape=[side, side], strides=[side, side])
    assert_scaled(proto, scale_average_pools, SEEN[side])


def test_a_global_pool_right_behind_an_input_is_scaled():
    assert_scaled(pool_model("GlobalAveragePool"), scale_average_pools, SEEN[14])


def test_padding_that_counts_leaves_windows_whole():
    proto = pool_model(kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1)
    assert_scaled(proto, scale_average_pools, SEEN[3])


def test_ceil_mode_counts_where_it_changes_nothing():
    proto = pool_model(kernel_shape=[3, 3], strides=[1, 1], ceil_mode=1)
    assert_scaled(proto, scale_average_pools, SEEN[3])


@pytest.mark.parametrize(
    "attributes", [{"pads": [1, 1, 1, 1]}, {"auto_pad": "SAME_UPPER"}, {"ceil_mode": 1}]
)
def test_windows_over_the_edge_are_scaled_as_the_vendor_does(attributes):
    proto = pool_model(kernel_shape=[3, 3], strides=[2, 2], **attributes)
    assert_scaled(proto, scale_average_pools, SEEN[3])


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"kernel_shape": [3, 2]}, "3x2 is not square"),
        ({"op": "GlobalAveragePool", "shape": (1, 2, "h", 14)}, "not fixed"),
        ({"op": "GlobalAveragePool", "shape": (1, 2, 14)}, "1 dimensions"),
    ],
)
def test_it_says_why_a_pool_stays_exact(attributes, reason):
    model, count, notes = rewrite(pool_model(**attributes), scale_average_pools)
    assert (count, op_types(model)["Mul"]) == (0, 0)
    assert reason in notes[0]
    assert "'pool'" in notes[0]


def test_a_mean_is_scaled_by_how_much_it_covers():
    for axes, factor in (([2, 3], mean_factor(196)), ([1], 1), ([-1], mean_factor(14))):
        assert_scaled(pool_model("ReduceMean", axes=axes), scale_means, factor)
    assert_scaled(pool_model("ReduceMean"), scale_means, mean_factor(392))


def test_a_mean_over_what_varies_is_named():
    proto = pool_model("ReduceMean", shape=(1, 2, "h", 14), axes=[2])
    _, count, notes = rewrite(proto, scale_means)
    assert count == 0
    assert "'pool'" in notes[0]
