"""Types of activations are spread and converted as the peer does it."""

from __future__ import annotations

import numpy as np
import pytest
from support.models import FLOAT, INT64, build, info, node, normal
from support.peer_overrides import both, in_types_of, normal_form

from bitwright.errors import RecipeError

MODULES = both("execution_providers.qnn.mixed_precision_overrides_utils")


def make_branches(names=True):
    """Two inputs and eight nodes, all Sigmoid but op5, which adds."""
    edges = {
        "op1": ["i0"],
        "op2": ["i1"],
        "op3": ["op1_out"],
        "op4": ["op2_out"],
        "op5": ["op3_out", "op4_out"],
        "op6": ["op5_out"],
        "op7": ["op2_out"],
        "op8": ["op2_out"],
    }
    nodes = [
        node("Add" if len(inputs) > 1 else "Sigmoid", inputs, [f"{name}_out"])
        for name, inputs in edges.items()
    ]
    if names:
        for made, name in zip(nodes, edges, strict=True):
            made.name = name
    outputs = {f"{name}_out": [4] for name in ("op6", "op7", "op8")}
    return build(nodes, {"i0": [4], "i1": [4]}, outputs)


def make_weighted():
    """A product with a constant, a Gather by integers, and a TopK with two outputs."""
    nodes = [
        node("MatMul", ["x", "w"], ["m"], name="product"),
        node("Gather", ["m", "index"], ["g"], name="gather", axis=0),
        node("TopK", ["g", "k"], ["values", "places"], name="top"),
        node("Relu", ["values"], ["y"], name="relu"),
    ]
    inputs = [info("x", [4, 8]), info("index", [2], INT64)]
    outputs = [info("y", [2, 3], FLOAT), info("places", [2, 3], INT64)]
    constants = {"w": normal(8, 6), "k": np.array([3])}
    return build(nodes, inputs, outputs, constants)


def fixed(module, model, overrides, default="QUInt8", symmetric=False):
    """Return the completed overrides, or how they were refused."""
    helper = module.TensorQuantOverridesHelper(in_types_of(module, overrides))
    kind = in_types_of(module, default)
    make = module.MixedPrecisionTensorQuantOverridesFixer.create_from_model
    try:
        make(helper, model, kind).apply(kind, symmetric)
    except ValueError as error:
        return str(error)
    return normal_form(helper.get_dict())


def test_the_example_of_the_documentation():
    u8, u16 = "QUInt8", "QUInt16"
    converted = fixed(MODULES[0], make_branches(), {"op4_out": [{"quant_type": u16}]})
    assert converted == {
        "op2_out": [{"quant_type": u8, "convert": {"quant_type": u16, "recv_nodes": ["op4"]}}],
        "op3_out": [{"quant_type": u8, "convert": {"quant_type": u16, "recv_nodes": ["op5"]}}],
        "op4_out": [{"quant_type": u16}],
        "op5_out": [{"quant_type": u16, "convert": {"quant_type": u8, "recv_nodes": ["op6"]}}],
    }


@pytest.mark.parametrize("default", ["QUInt8", "QInt8"])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(
    "overrides",
    [
        {"op4_out": [{"quant_type": "QUInt16"}]},
        {"op2_out": [{"quant_type": "QUInt16"}]},
        {"i0": [{"quant_type": "QInt16"}]},
        {"op6_out": [{"quant_type": "QInt16", "symmetric": True}]},
        {"op1_out": [{"quant_type": "QUInt16"}], "op8_out": [{"quant_type": "QInt16"}]},
        {"op3_out": [{"quant_type": "QUInt16"}], "op4_out": [{"quant_type": "QUInt16"}]},
        {"op3_out": [{"quant_type": "QUInt8"}]},
        {"op4_out": [{"quant_type": "QUInt16"}], "op2_out": [{"quant_type": "QUInt8"}]},
        {
            "op2_out": [
                {
                    "quant_type": "QUInt16",
                    "convert": {"quant_type": "QUInt8", "recv_nodes": {"op7", "op8"}},
                }
            ]
        },
        {"op2_out": [{"convert": {"quant_type": "QUInt16", "recv_nodes": {"op7"}}}]},
    ],
)
def test_overrides_are_completed_like_the_peers(overrides, default, symmetric):
    mine, theirs = (fixed(m, make_branches(), overrides, default, symmetric) for m in MODULES)
    assert isinstance(mine, str) == isinstance(theirs, str), (mine, theirs)
    assert isinstance(mine, str) or mine == theirs


def test_a_tensor_is_not_converted_to_its_own_type():
    # The peer does, and its own check would refuse that if it looked at more than one tensor.
    mine, theirs = (fixed(m, make_branches(), {"op3_out": [{"symmetric": True}]}) for m in MODULES)
    assert mine["op5_out"] == [{"quant_type": "QUInt8", "symmetric": True}]
    assert theirs["op5_out"][0]["convert"]["quant_type"] == "QUInt8"


@pytest.mark.parametrize("tensor", ["x", "m", "g", "values", "y"])
def test_constants_and_integers_are_left_out(tensor):
    overrides = {tensor: [{"quant_type": "QUInt16"}]}
    mine, theirs = (fixed(m, make_weighted(), overrides) for m in MODULES)
    assert mine == theirs
    assert mine.keys() <= {"x", "m", "g", "values", "y"}


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            {"op3_out": [{"quant_type": "QInt16"}], "op4_out": [{"quant_type": "QUInt16"}]},
            "has multiple types",
        ),
        (
            {"op7_out": [{"quant_type": "QInt16"}], "op8_out": [{"quant_type": "QUInt16"}]},
            "consumers requesting different types",
        ),
        (
            {
                "op7_out": [{"quant_type": "QUInt16"}],
                "op2_out": [{"quant_type": "QInt16", "convert": {"quant_type": "QUInt8"}}],
            },
            "Desired consumer quant_type for op2_out doesn't match existing type",
        ),
        ({"nowhere": [{"quant_type": "QInt16"}]}, "is not present in the model"),
    ],
)
def test_contradictions_are_refused_in_the_peers_words(overrides, words):
    mine, theirs = (fixed(m, make_branches(), overrides) for m in MODULES)
    assert words in mine
    assert words in theirs


def test_a_node_without_a_name_is_refused():
    mine, theirs = (
        fixed(m, make_branches(names=False), {"op4_out": [{"quant_type": "QUInt16"}]})
        for m in MODULES
    )
    assert "does not have a name" in mine
    assert "does not have a name" in theirs


def test_a_refusal_is_an_error_of_both_kinds():
    module = MODULES[0]
    kind = in_types_of(module, "QUInt8")
    helper = module.TensorQuantOverridesHelper({"nowhere": [{}]})
    with pytest.raises(RecipeError) as caught:
        module.MixedPrecisionTensorQuantOverridesFixer.create_from_model(
            helper, make_branches(), kind
        )
    assert isinstance(caught.value, ValueError)
