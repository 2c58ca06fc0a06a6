"""The pieces of a Gelu become one node, in whatever order exporters write them."""

from __future__ import annotations

import numpy as np
import pytest
from support.models import build, node, normal
from support.rewriting import assert_same, op_types, rewrite

from bitwright.prepare import fuse_gelu

X = normal(4, 6)
CONSTANTS = {
    "root": np.float32(2**0.5),
    "inverse": np.float32(0.5**0.5),
    "one": np.float32(1),
    "half": np.float32(0.5),
    "wide": np.full((1, 1, 1), 0.5, np.float32),
}
DIVIDED = [node("Div", ["x", "root"], ["d"]), node("Erf", ["d"], ["e"])]
PLUS = node("Add", ["e", "one"], ["p"])
FORMS = {
    "x times half apart": [
        *DIVIDED,
        PLUS,
        node("Mul", ["x", "half"], ["h"]),
        node("Mul", ["h", "p"], ["y"]),
    ],
    "x, then half": [
        *DIVIDED,
        PLUS,
        node("Mul", ["p", "x"], ["m"]),
        node("Mul", ["half", "m"], ["y"]),
    ],
    "half, then x": [
        *DIVIDED,
        PLUS,
        node("Mul", ["p", "half"], ["m"]),
        node("Mul", ["x", "m"], ["y"]),
    ],
    "times the inverse": [
        node("Mul", ["inverse", "x"], ["d"]),
        node("Erf", ["d"], ["e"]),
        node("Add", ["one", "e"], ["p"]),
        node("Mul", ["p", "half"], ["m"]),
        node("Mul", ["m", "x"], ["y"]),
    ],
}


def model_of(nodes, *, opset=17, outputs=("y",), constants=CONSTANTS):
    used = {name for n in nodes for name in n.input}
    kept = {name: value for name, value in constants.items() if name in used}
    return build(nodes, {"x": [4, 6]}, dict.fromkeys(outputs), kept, opset=opset)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("opset", "domain"), [(13, "com.microsoft"), (20, "")])
def test_all_pieces_become_one(form, opset, domain):
    proto = model_of(FORMS[form], opset=opset)
    model, count, notes = rewrite(proto, fuse_gelu)
    assert (count, notes, op_types(model)) == (1, [], {"Gelu": 1})
    assert [n.domain for n in model.graph] == [domain]
    assert_same(proto, model, samples=[{"x": X}])


@pytest.mark.parametrize(
    "changed",
    [
        {"root": np.float32(1.5)},
        {"one": np.float32(0.5)},
        {"half": np.float32(1)},
        {"half": np.full((1, 1, 1), 0.5, np.float32)},  # would add an axis
    ],
)
def test_other_numbers_stay(changed):
    proto = model_of(FORMS["x, then half"], constants={**CONSTANTS, **changed})
    model, count, _ = rewrite(proto, fuse_gelu)
    assert count == 0 and op_types(model)["Erf"] == 1


@pytest.mark.parametrize("between", ["d", "e", "p", "m"])
def test_a_tensor_in_between_that_is_read_elsewhere_stays(between):
    proto = model_of(FORMS["x, then half"], outputs=("y", between))
    assert rewrite(proto, fuse_gelu)[1] == 0


def test_the_square_of_x_is_no_gelu():
    nodes = [*DIVIDED, PLUS, node("Mul", ["p", "x"], ["m"]), node("Mul", ["m", "x"], ["y"])]
    assert rewrite(model_of(nodes), fuse_gelu)[1] == 0
