"""Branches in the place of their If compute what the If computes."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper
from support.models import BOOL, build, info, node, normal, run, tensors

from bitwright.graph import iter_values, load_model
from bitwright.graph.branches import choose_by_size, find_choices, iter_chosen, open_branches


def make_choice(label):
    """Return an If whose branches have tensors of the same names as those of the other one."""
    then = helper.make_graph(
        [
            node("Mul", ["x", f"{label}_u"], ["k"], name=f"{label}/scale"),
            node("Add", ["k", "v"], ["t"], name=f"{label}/add"),
            node("Abs", ["t"], ["n"], name=f"{label}/abs"),
        ],
        "then",
        [],
        [info("t", [4]), info("n", [4])],
        tensors({f"{label}_u": normal(4, seed=1)}),
    )
    other = helper.make_graph(
        [
            node("Sub", ["x", "v"], ["t"], name=f"{label}/sub"),
            node("Neg", ["t"], ["n"], name=f"{label}/neg"),
        ],
        "else",
        [],
        [info("t", [4]), info("n", [4])],
    )
    outputs = [f"{label}_a", f"{label}_b"]
    return node("If", ["c"], outputs, name=label, then_branch=then, else_branch=other)


def make_model():
    nodes = [
        node("Mul", ["x", "w"], ["h"], name="first"),
        make_choice("one"),
        make_choice("two"),
        node("Sum", ["one_a", "one_b", "two_a", "two_b", "h"], ["y"], name="last"),
    ]
    inputs = [info("x", [4]), info("c", [], BOOL)]
    outputs = [info("y", [4]), info("two_a", [4])]
    constants = {"w": normal(4, seed=2), "v": normal(4, seed=3)}
    return build(nodes, inputs, outputs, constants, opset=21)


@pytest.mark.parametrize("condition", [True, False])
def test_the_branch_that_is_taken_computes_the_same(condition):
    proto = make_model()
    feeds = {"x": normal(4), "c": np.array(condition)}
    opened = open_branches(ir.from_proto(proto), feeds)
    names = [name for name, _ in iter_values(opened)]
    assert len(names) == len(set(names))
    branch = {"one/scale", "two/add"} if condition else {"one/sub", "two/neg"}
    assert branch <= {n.name for n in opened.graph}
    assert [output.name for output in opened.graph.outputs] == ["y", "two_a"]
    for wanted, found in zip(run(proto, feeds), run(ir.to_proto(opened), feeds), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_the_model_itself_stays_as_it_is():
    model = ir.from_proto(make_model())
    open_branches(model, {"c": np.array(True)})
    assert [n.op_type for n in model.graph] == ["Mul", "If", "If", "Sum"]
    assert len(list(iter_chosen(model))) == 5


def test_a_condition_that_is_computed_is_no_choice():
    body = helper.make_graph([node("Neg", ["x"], ["n"], name="n")], "b", [], [info("n", [4])])
    other = helper.make_graph([node("Abs", ["x"], ["m"], name="m")], "e", [], [info("m", [4])])
    nodes = [
        node("Not", ["c"], ["not_c"], name="not"),
        node("If", ["not_c"], ["y"], name="choose", then_branch=body, else_branch=other),
    ]
    inputs = [info("x", [4]), info("c", [], BOOL)]
    model = ir.from_proto(build(nodes, inputs, [info("y", [4])], {}, opset=21))
    assert not find_choices(model)
    assert list(iter_chosen(model)) == [model.graph]


def test_the_size_of_an_input_chooses_between_two_models():
    def make(added):
        nodes = [node("Add", ["x", "w"], ["sum"], "add"), node("Neg", ["sum"], ["y"], "negate")]
        outputs = [info("sum", ["n"]), info("y", ["n"])]
        constants = {"w": np.array([added], np.float32)}
        return load_model(build(nodes, [info("x", ["n"])], outputs, constants, opset=17))

    merged = ir.to_proto(choose_by_size(make(1), make(10), "x", 3))
    onnx.checker.check_model(merged)
    assert {tensor.name for tensor in merged.graph.initializer} == {"w", "many/w", "few/x"}
    for count, added in ((2, 1), (3, 10)):
        found = run(merged, {"x": np.zeros(count, np.float32)})
        assert [value.tolist() for value in found] == [[added] * count, [-added] * count]
