"""The skip of a residual Add is the input that does not come straight from a convolution."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from support.models import build, node, normal

from bitwright.decide.ops.residuals import find_skip_input

CONV = node("Conv", ["x", "w"], ["c"])
OTHER = node("Conv", ["x", "w"], ["d"])
CASES = {
    "skip behind": ([CONV, node("Add", ["c", "x"], ["y"])], 1),
    "skip before": ([CONV, node("Add", ["x", "c"], ["y"])], 0),
    "behind its activation": (
        [CONV, node("Relu", ["c"], ["r"]), node("Add", ["r", "x"], ["y"])],
        1,
    ),
    "two convolutions": ([CONV, OTHER, node("Add", ["c", "d"], ["y"])], 0),
    "the nearer is fused": (
        [CONV, OTHER, node("Relu", ["d"], ["r"]), node("Add", ["c", "r"], ["y"])],
        1,
    ),
    "a convolution that others read": (
        [CONV, node("Neg", ["c"], ["n"]), node("Add", ["c", "n"], ["y"])],
        None,
    ),
    "twice the same": ([CONV, node("Add", ["c", "c"], ["y"])], None),
    "a bias": ([CONV, node("Add", ["c", "b"], ["y"])], None),
    "no convolution": ([node("Neg", ["x"], ["n"]), node("Add", ["n", "x"], ["y"])], None),
    "no sum": ([CONV, node("Mul", ["c", "x"], ["y"])], None),
}


@pytest.mark.parametrize("case", CASES)
def test_the_skip_is_found(case):
    nodes, expected = CASES[case]
    used = {name for one in nodes for name in one.input}
    given = {"w": normal(3, 3, 1, 1), "b": normal(3, 1, 1)}
    constants = {name: value for name, value in given.items() if name in used}
    model = ir.from_proto(build(nodes, {"x": [1, 3, 4, 4]}, {"y": [1, 3, 4, 4]}, constants))
    assert find_skip_input(list(model.graph)[-1]) == expected
