"""Which nodes the recipe selects, and the reason for each one that it does not."""

from __future__ import annotations

import pytest
from onnx import helper
from support.layouts import layout_of, quantized_nodes
from support.models import (
    build,
    info,
    make_cnn,
    node,
    weight,
)
from support.op_models import OP_MODELS

from bitwright.decide.ops import DEFAULT_OP_TYPES
from bitwright.errors import RecipeError
from bitwright.recipe import Selection


def test_only_the_usual_op_types_are_chosen_when_none_are_named():
    assert not {"Erf", "Tanh", "Gelu", "Div"} & DEFAULT_OP_TYPES
    layout = layout_of(OP_MODELS["Tanh"]())
    assert layout.nodes["op"].reason == "Tanh is not among the op types to quantize"


def test_op_types_select():
    assert quantized_nodes(layout_of(make_cnn(), select=Selection(op_types=("Conv",)))) == {
        "conv1",
        "conv2",
    }


def test_op_types_exclude():
    layout = layout_of(make_cnn(), select=Selection(exclude_op_types=("Gemm",)))
    assert layout.nodes["fc"].reason == "Gemm is excluded by type"
    assert "conv1" in quantized_nodes(layout)


def test_names_select():
    layout = layout_of(make_cnn(), select=Selection(nodes=("conv2",)))
    assert quantized_nodes(layout) == {"conv2"}
    assert layout.nodes["conv1"].reason == "it is not in the list of nodes to quantize"


def test_regular_expressions_select_whole_names():
    layout = layout_of(make_cnn(), select=Selection(nodes=("re:conv[0-9]", "fc")))
    assert quantized_nodes(layout) == {"conv1", "conv2", "fc"}
    with pytest.raises(RecipeError, match=r"no node fits 're:onv'.*did you mean 're:.\*onv'"):
        layout_of(make_cnn(), select=Selection(nodes=("re:onv",)))


def test_regular_expressions_exclude():
    layout = layout_of(make_cnn(), select=Selection(exclude=("re:conv.*", "re:.*residual")))
    assert not {"conv1", "conv2", "residual"} & quantized_nodes(layout)
    assert layout.nodes["conv2"].inputs == (None, None, None)


@pytest.mark.parametrize("option", ["nodes", "exclude", "input_nodes", "output_nodes"])
def test_an_unknown_name_is_an_error_with_a_suggestion(option):
    what = "node or tensor" if option.endswith("_nodes") else "node"
    with pytest.raises(
        RecipeError, match=f"{option}: no {what} is called 'conv3'. Did you mean 'c"
    ):
        layout_of(make_cnn(), select=Selection(**{option: ("conv3",)}))


def make_parallel():
    """A stem, two branches, and a head that joins them."""

    def conv(source, result, name, inputs=8):
        return node("Conv", [source, f"w_{name}"], [result], name=name)

    names = ["stem", "left1", "left2", "right1", "head"]
    return build(
        [
            conv("x", "s", "stem"),
            conv("s", "l1", "left1"),
            conv("l1", "l2", "left2"),
            conv("s", "r1", "right1"),
            node("Add", ["l2", "r1"], ["a"], name="join"),
            conv("a", "y", "head"),
        ],
        {"x": [1, 8, 4, 4]},
        {"y": [1, 8, 4, 4]},
        {f"w_{name}": weight(8, 8, 1, 1, seed=i) for i, name in enumerate(names)},
    )


@pytest.mark.parametrize(
    ("select", "expected"),
    [
        ({"input_nodes": ("left1",)}, {"left1", "left2", "head"}),
        ({"input_nodes": ("left1", "right1")}, {"left1", "left2", "right1", "join", "head"}),
        ({"output_nodes": ("left2",)}, {"stem", "left1", "left2"}),
        ({"output_nodes": ("join",)}, {"stem", "left1", "left2", "right1", "join"}),
        ({"input_nodes": ("left1",), "output_nodes": ("left2",)}, {"left1", "left2"}),
        ({"input_nodes": ("re:left.",), "output_nodes": ("join",)}, {"left1", "left2"}),
        ({"input_nodes": ("s",)}, {"left1", "left2", "right1", "join", "head"}),
        ({"input_nodes": ("x",), "output_nodes": ("l2",)}, {"stem", "left1", "left2"}),
        ({"output_nodes": ("y",)}, {"stem", "left1", "left2", "right1", "join", "head"}),
        ({"exclude_between": ((("left1",), ("join",)),)}, {"stem", "right1", "head"}),
        ({"exclude_between": ((("re:left1|right1",), ("join",)),)}, {"stem", "head"}),
        (
            {"exclude_between": ((("left2",), ("left2",)), (("head",), ("head",)))},
            {"stem", "left1", "right1"},
        ),
    ],
)
def test_regions_follow_the_graph_and_leave_parallel_branches_alone(select, expected):
    found = quantized_nodes(layout_of(make_parallel(), select=Selection(**select)))
    assert found == expected


def test_a_region_says_why_the_rest_is_float():
    layout = layout_of(make_parallel(), select=Selection(input_nodes=("left1",)))
    assert layout.nodes["right1"].reason == "it does not lie behind input_nodes"
    layout = layout_of(make_parallel(), select=Selection(output_nodes=("left2",)))
    assert layout.nodes["head"].reason == "it does not lie before output_nodes"
    between = ((("left1",), ("left2",)),)
    layout = layout_of(make_parallel(), select=Selection(exclude_between=between))
    assert layout.nodes["left2"].reason == "it lies in a part that is excluded"


def test_a_part_that_no_way_leads_through_is_an_error():
    backwards = ((("head",), ("left1",)),)
    with pytest.raises(RecipeError, match="no way leads from head to left1; give the first"):
        layout_of(make_parallel(), select=Selection(exclude_between=backwards))


def make_body():
    body = helper.make_graph(
        [node("MatMul", ["h", "v"], ["inner"], name="inside")], "then", [], [info("inner")]
    )
    other = helper.make_graph(
        [node("Identity", ["h"], ["same"], name="pass")], "else", [], [info("same")]
    )
    return build(
        [
            node("MatMul", ["x", "w"], ["h"], name="outside"),
            node("If", ["c"], ["y"], name="choose", then_branch=body, else_branch=other),
        ],
        [info("x", [4, 16]), info("c", [], 9)],
        [info("y")],
        {"w": weight(16, 16), "v": weight(16, 16, seed=1)},
    )


def test_bodies_are_quantized_only_on_request():
    assert quantized_nodes(layout_of(make_body())) == {"outside"}
    inside = layout_of(make_body(), select=Selection(subgraphs=True))
    assert quantized_nodes(inside) == {"outside", "inside"}
    assert "choose/then_branch:inner" in inside.entries
