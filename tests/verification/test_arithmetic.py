"""Sums that do not fit are found, held against sums of all products in Python's integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto
from support.models import build, info, node
from support.pair_models import make_conv, make_product

from bitwright import graph, verify
from bitwright.graph.quantizers import Quantizers
from bitwright.verification.arithmetic import _largest_pairs, _largest_sum, find_products


def product_of(model):
    (found,) = find_products(Quantizers(graph.load_model(model)))
    return found


def rules(model, cpu):
    return [finding.rule for finding in verify(model, cpu=cpu).findings]


integer_ops = {
    "QLinearMatMul": lambda w, z: (["x", "s", z, "w", "s", "wz", "s", z], np.uint8),
    "MatMulInteger": lambda w, z: (["x", "w", z, "wz"], np.int32),
}


def make_integer_product(op, matrix, zero=0):
    """The same product as an integer op."""
    constants = {
        "s": np.float32(0.05),
        "z": np.uint8(zero),
        "wz": np.zeros((), matrix.dtype),
        "w": matrix,
    }
    inputs, made = integer_ops[op](matrix, "z")
    kind = TensorProto.UINT8 if made is np.uint8 else TensorProto.INT32
    ins = [info("x", [1, len(matrix)], TensorProto.UINT8)]
    return build([node(op, inputs, ["y"], name="product")], ins, [info("y", None, kind)], constants)


@given(
    st.integers(1, 6).flatmap(
        lambda depth: st.lists(
            st.lists(st.integers(-128, 127), min_size=depth, max_size=depth), min_size=1, max_size=4
        )
    )
)
def test_the_largest_sum_is_that_of_the_worst_activations(rows):
    matrix = np.array(rows).T
    product = product_of(make_product("MatMul", matrix=matrix))
    worst = max(
        max(sum(w * x for w, x in zip(row, (255 if w > 0 else 0 for w in row), strict=True)),
            -sum(w * x for w, x in zip(row, (255 if w < 0 else 0 for w in row), strict=True)))
        for row in rows
    )  # fmt: skip
    assert _largest_sum(product, len(matrix), np.zeros(1, np.int64)) == worst


@given(st.lists(st.integers(-128, 127), min_size=2, max_size=8))
def test_the_largest_pair_is_that_of_all_pairs(row):
    pairs = [row[i] + row[j] for i in range(len(row)) for j in range(i)]
    assert _largest_pairs(np.array([row], np.int8))[0] == max(max(pairs), -min(pairs))


@pytest.mark.parametrize("cpu", ["avx2", "vnni", "arm"])
def test_a_sum_beyond_int32_is_found_on_every_cpu(cpu):
    deep = np.full((70_000, 2), 127, np.int8)
    assert "accumulator" in rules(make_product("MatMul", matrix=deep, rows=1), cpu)
    shallow = np.full((60_000, 2), 127, np.int8)
    assert "accumulator" not in rules(make_product("MatMul", matrix=shallow, rows=1), cpu)


@pytest.mark.parametrize("op", integer_ops)
def test_integer_ops_are_looked_into_as_well(op):
    deep = np.full((70_000, 2), 127, np.int8)
    (finding,) = verify(make_integer_product(op, deep), cpu="arm").findings
    assert (finding.rule, finding.node, finding.level) == ("accumulator", "product", "warning")
    assert finding.values == {"depth": 70_000, "largest sum": 70_000 * 127 * 255}


def test_the_bias_counts_in_its_own_channel():
    """A bias near the end of int32 leaves room for the products of its channel, or does not."""
    matrix = np.zeros((40_000, 2), np.int8)
    matrix[:, 0] = 127
    product = product_of(make_product("MatMul", matrix=matrix, rows=1))
    room = np.array([0, 2**31 - 10])
    assert _largest_sum(product, 40_000, room) == 2**31 - 10
    none = np.array([2**31 - 10, 0])
    assert _largest_sum(product, 40_000, none) == 2**31 - 10 + 40_000 * 127 * 255
    assert _largest_sum(product, 40_000, -none) == 2**31 - 10


def test_large_weights_that_cancel_or_few_of_them_fit():
    mixed = np.full((70_000, 2), 127, np.int8)
    mixed[::2] = -127  # the worst activations meet one half of them only
    assert "accumulator" not in rules(make_product("MatMul", matrix=mixed, rows=1), "arm")


@pytest.mark.parametrize(("weight", "found"), [(65, True), (64, False), (-65, True), (-64, False)])
def test_two_weights_above_64_saturate_without_vnni(weight, found):
    matrix = np.zeros((8, 5), np.int8)
    matrix[[1, 6], 3] = weight
    for model in (make_product(matrix=matrix), make_integer_product("QLinearMatMul", matrix)):
        assert ("saturation" in rules(model, "avx2")) is found
        assert "saturation" not in rules(model, "vnni")
        assert "saturation" not in rules(model, "arm")


def test_one_large_weight_opposite_signs_and_uint8_weights_do_not_saturate():
    matrix = np.zeros((8, 5), np.int8)
    matrix[1, 3] = 127
    matrix[2, 3] = -127
    assert "saturation" not in rules(make_product(matrix=matrix), "avx2")
    unsigned = make_product(matrix=np.full((8, 5), 200), weight="uint8")
    assert "saturation" not in rules(unsigned, "avx2")


def test_int8_activations_between_pairs_are_turned_into_uint8_and_saturate_too():
    assert "saturation" in rules(make_conv(source="int8", result="int8"), "avx2")


def test_what_saturates_is_a_warning_with_a_remedy():
    found = verify(make_conv(), cpu="avx2")
    assert found.ok
    assert not found.passes(strict=True)
    (finding,) = found.warnings
    assert finding.values == {"channels": 4}
    assert "reduce_range=true" in finding.remedy
