"""The plan as a file: written, read, applied again with the same bytes, edited and honoured."""

from __future__ import annotations

import copy
import json
import pickle
import re

import numpy as np
import pytest
from support.models import constants_of, make_cnn, make_mlp, make_samples, make_transformer

import bitwright
from bitwright.errors import PlanError
from bitwright.numerics.types import INT8, INT32, UINT8
from bitwright.plan import QuantPlan, TensorPlan
from bitwright.recipe import Recipe

A8W4 = bitwright.load_recipe("a8w4").replace(rounding="squant")  # whose plan is complete
RECIPES = ["int8", "int8-per-channel", "int8-symmetric", "a16w8", A8W4]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("make", [make_cnn, make_transformer])
def test_a_plan_applied_again_gives_the_same_bytes(tmp_path, make, recipe):
    model = make()
    first, second = tmp_path / "first.onnx", tmp_path / "second.onnx"
    result = bitwright.quantize(model, first, data=make_samples(model), recipe=recipe)
    file = tmp_path / "plan.json"
    file.write_text(result.plan.to_json())
    again = bitwright.apply_plan(file, model, second)
    assert again.plan == result.plan
    assert second.read_bytes() == first.read_bytes()


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_plan_survives_json(recipe):
    model = make_cnn()
    plan = bitwright.make_plan(model, data=make_samples(model), recipe=recipe)
    assert QuantPlan.from_json(plan.to_json()) == plan


def test_a_plan_says_everything_that_was_decided():
    model = make_cnn()
    data = json.loads(bitwright.make_plan(model, data=make_samples(model), recipe="int8").to_json())
    assert data["version"] == 1
    assert data["recipe"]["name"] == "int8"
    assert set(data["nodes"]) == {item.name for item in model.graph.node}
    assert data["tensors"]["x"]["qtype"] == "uint8"
    assert data["tensors"]["x"]["range"][0] < 0 < data["tensors"]["x"]["range"][1]
    assert data["tensors"]["p1"]["same_as"] == "r1"
    assert data["tensors"]["b1"]["bias_of"] == ["x", "w1"]
    assert data["nodes"]["relu1"]["action"] == "absorb"


def test_planning_writes_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = make_mlp()
    bitwright.make_plan(model, data=make_samples(model))
    assert not list(tmp_path.iterdir())


def test_a_scale_edited_in_the_file_is_honoured(tmp_path):
    model = make_mlp()
    plan = bitwright.make_plan(model, data=make_samples(model), recipe="int8")
    data = json.loads(plan.to_json())
    data["tensors"]["x"]["scale"] = 0.03125
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(data))
    result = bitwright.apply_plan(file, model)
    assert constants_of(result)["x_scale"] == np.float32(0.03125)


def test_a_type_edited_in_the_file_is_honoured(tmp_path):
    model = make_mlp()
    plan = bitwright.make_plan(model, data=make_samples(model), recipe="int8-symmetric")
    data = json.loads(plan.to_json())
    data["tensors"]["w1"].update(qtype="uint8", zero_point=[128] * 16)
    for key in ("x",):
        data["tensors"][key].update(qtype="uint8", zero_point=128)
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(data))
    result = bitwright.apply_plan(file, model)
    assert constants_of(result)["w1_quantized"].dtype == np.uint8


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("[]", "must be a mapping, not a list"),
        ("{}", "it needs 'fingerprint'"),
        ('{"fingerprint": "", "recipe": {}, "tensors": {}, "nodes": {}, "extra": 1}', "'extra'"),
        ('{"fingerprint": "", "recipe": {"per_chan": 1}, "tensors": {}, "nodes": {}}', "per_chan"),
    ],
)
def test_what_is_no_plan_is_a_plan_error_with_the_file(tmp_path, text, said):
    file = tmp_path / "mine.json"
    file.write_text(text)
    with pytest.raises(PlanError, match=rf"(?s)mine\.json.*{said}") as error:
        QuantPlan.load(file)
    assert "\n" not in str(error.value)


def test_a_missing_plan_is_named(tmp_path):
    with pytest.raises(PlanError, match=r"cannot read the plan '.*none\.json'"):
        bitwright.apply_plan(tmp_path / "none.json", make_mlp())


def make_small_plan(**tensors):
    return QuantPlan(recipe=Recipe(), fingerprint="", tensors=tensors, nodes={})


def activation(**fields):
    return TensorPlan(tensor="t", role="activation", qtype=UINT8, **fields)


def test_parameters_follow_same_as_to_their_root():
    plan = make_small_plan(
        a=activation(scale=0.5, zero_point=3), b=activation(same_as="a"), c=activation(same_as="b")
    )
    assert plan.parameters("c").scale == 0.5
    assert plan.parameters("c").zero_point == 3


def test_a_circle_of_same_as_is_refused():
    plan = make_small_plan(a=activation(same_as="b"), b=activation(same_as="a"))
    with pytest.raises(PlanError, match="circle: a -> b"):
        plan.parameters("a")


def test_the_scale_of_a_bias_is_the_float32_product():
    weights = TensorPlan(
        tensor="w", role="weight", qtype=INT8, scale=[0.1, 0.3], zero_point=[0, 0], axis=0
    )
    bias = TensorPlan(tensor="b", role="bias", qtype=INT32, bias_of=("x", "w"), axis=0, tile=2)
    plan = make_small_plan(x=activation(scale=0.7, zero_point=0), w=weights, b=bias)
    found = plan.parameters("b").scale
    factors = np.float32([0.1, 0.3, 0.1, 0.3]).astype(np.float64)
    np.testing.assert_array_equal(found, np.float64(np.float32(0.7)) * factors)


def test_nothing_writes_into_a_plan():
    entry = TensorPlan(tensor="x", role="activation", qtype=UINT8, scale=0.5, zero_point=3)
    given, notes = {"x": entry}, ["a note"]
    plan = QuantPlan(
        recipe=Recipe(),
        fingerprint="",
        tensors=given,
        nodes={},
        bias_shifts={"b": [1.0]},
        notes=notes,
    )
    for write in (
        lambda: plan.tensors.update(y=entry),
        lambda: plan.tensors.pop("x"),
        lambda: plan.nodes.setdefault("n", None),
        lambda: plan.outputs.clear(),
        lambda: plan.bias_shifts["b"].append(2.0),
        lambda: plan.notes.append("another"),
        lambda: plan.tensors.__setitem__("x", entry),
        lambda: plan.tensors.__delitem__("x"),
    ):
        with pytest.raises(TypeError, match="belongs to a frozen value and cannot be changed"):
            write()
    with pytest.raises(AttributeError):
        plan.tensors = {}
    given["y"] = entry
    notes.append("another")
    assert plan.tensors == {"x": entry} and plan.notes == ["a note"]
    more = plan.with_tensors({"y": entry}).with_notes(["another"])
    assert more.tensors == given and more.notes == notes
    with pytest.raises(TypeError):
        more.tensors["z"] = entry


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda plan: pickle.loads(pickle.dumps(plan))])
def test_a_plan_travels_as_it_is(copied):
    entry = TensorPlan(tensor="x", role="activation", qtype=UINT8, scale=[0.5, 1.0], axis=0)
    plan = QuantPlan(recipe=Recipe(), fingerprint="", tensors={"x": entry}, nodes={}, notes=["a"])
    other = copied(plan)
    assert other == plan and other.to_json() == plan.to_json()
    with pytest.raises(TypeError):
        other.tensors["y"] = entry


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        (("tensors", "b1", "tile"), -1, "'tile' is -1, and may be 1 to 65536"),
        (("tensors", "b1", "tile"), 10**9, "'tile' is 1000000000, and may be 1 to 65536"),
        (("tensors", "b1", "shift"), 2**70, "and may be -64 to 64"),
        (("tensors", "x", "block_size"), 2**70, "'block_size' is 1180591620717411303424"),
        (("tensors", "x", "block_size"), -4, "'block_size' is -4, and may be 0"),
        (("nodes",), [], "option 'nodes' must be a mapping, not a list"),
        (("nodes",), {}, "does not say what becomes of node 'conv1'"),
        (("nodes", "relu1"), None, "does not say what becomes of node 'relu1'"),
    ],
)
def test_a_plan_that_was_edited_into_something_impossible_is_one_sentence(place, value, says):
    model = make_cnn()
    data = json.loads(bitwright.make_plan(model, data=make_samples(model), recipe="int8").to_json())
    *outer, last = place
    inside = data
    for name in outer:
        inside = inside[name]
    if value is None:
        del inside[last]
    else:
        inside[last] = value
    with pytest.raises(PlanError, match=re.escape(says)):
        bitwright.apply_plan(QuantPlan.from_json(json.dumps(data)), model)
