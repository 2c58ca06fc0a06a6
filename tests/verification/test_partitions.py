"""What stays on a target: ops, multiply-adds, and the pieces that others cut it into."""

import numpy as np
import onnx_ir as ir
import pytest
from support.models import build, node, normal

from bitwright.decide.ops.quantized_view import QuantizedView
from bitwright.graph import infer_shapes
from bitwright.verification import Residence
from bitwright.verification.findings import Finding
from bitwright.verification.partitions import find_residence


@pytest.fixture
def view():
    """Two matrix products with an operator of each side between them, and a branch around it."""
    constants = {"v": normal(4, 8), "w": normal(8, 2), "s": np.float32(0.1), "z": np.uint8(0)}
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["xq"], name="q"),
        node("DequantizeLinear", ["xq", "s", "z"], ["xd"], name="d"),
        node("MatMul", ["xd", "v"], ["a"], name="first"),
        node("Relu", ["a"], ["b"], name="relu"),
        node("Erf", ["b"], ["c"], name="erf"),
        node("MatMul", ["c", "w"], ["e"], name="second"),
        node("MatMul", ["b", "w"], ["f"], name="beside"),
        node("Add", ["e", "f"], ["y"], name="sum"),
    ]
    model = ir.from_proto(build(nodes, {"x": ["batch", 4]}, {"y": ["batch", 2]}, constants))
    infer_shapes(model)
    return QuantizedView(model)


def finding(name, consequence):
    return Finding("rule", name, "found", consequence=consequence)


def test_everything_stays_where_nothing_was_found(view):
    stays = find_residence(view, [])
    assert (stays.ops, stays.resident_ops, stays.partitions) == (6, 6, 1)
    assert stays.multiply_adds == stays.resident_multiply_adds == 4 * 8 + 8 * 2 + 8 * 2
    assert stays.quantized_ops == 1


def test_what_leaves_cuts_the_graph_only_where_all_ways_lead_through_it(view):
    stays = find_residence(view, [finding("erf", "leaves")])
    # first, relu and beside run before erf; second and sum behind it.
    assert (stays.resident_ops, stays.partitions, stays.share) == (5, 2, 1.0)
    alone = find_residence(view, [finding("beside", "leaves")])
    assert alone.resident_ops == 5
    assert alone.share == pytest.approx(48 / 64)


def test_what_is_refused_runs_nowhere_and_what_is_float_is_not_quantized(view):
    assert find_residence(view, [finding("erf", "refused")]).resident_ops == 0
    floats = find_residence(view, [finding("first", "float")])
    assert (floats.resident_ops, floats.quantized_ops) == (6, 0)


def test_all_behind_an_input_that_is_not_taken_leaves(view):
    stays = find_residence(view, [finding("x", "leaves")])
    assert (stays.resident_ops, stays.partitions, stays.share) == (0, 0, 0.0)


def test_pairs_that_leave_cut_the_graph_and_tensors_take_their_operator_along(view):
    stays = find_residence(view, [finding("d", "leaves")])
    assert (stays.resident_ops, stays.partitions) == (6, 1)
    scale = Finding("power_of_two", "d", "its scale 0.1 is no power of two", consequence="leaves")
    assert find_residence(view, [scale]).resident_ops == 5


def test_residence_is_told_in_words():
    assert Residence(12, 11, 9, 2_000_000, 1_900_000, 1_800_000, 2).describe() == (
        "11 of 12 ops on the target (95 % of multiply-adds) in 2 partitions, "
        "9 of them quantized (90 %)"
    )
