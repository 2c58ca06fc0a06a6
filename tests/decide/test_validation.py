"""Plans edited by hand: what fits the model is honoured, what does not is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from support.models import (
    build,
    constants_of,
    make_cnn,
    make_mlp,
    make_samples,
    node,
    ops,
    quality,
    weight,
)

import bitwright
from bitwright.errors import PlanError
from bitwright.plan import QuantPlan


@pytest.fixture(scope="module")
def planned():
    model = make_cnn()
    samples = make_samples(model)
    return model, bitwright.make_plan(model, data=samples, recipe="int8-per-channel"), samples


def edit(plan, change):
    """Return the plan as it would be after an edit of its file."""
    data = json.loads(plan.to_json())
    change(data)
    return QuantPlan.from_json(json.dumps(data))


def test_an_untouched_plan_is_accepted(planned):
    model, plan, _ = planned
    assert bitwright.apply_plan(plan, model).plan == plan


def test_a_changed_scale_is_honoured(planned):
    model, plan, samples = planned
    changed = edit(plan, lambda data: data["tensors"]["x"].update(scale=0.125, zero_point=77))
    result = bitwright.apply_plan(changed, model, data=samples)
    assert constants_of(result)["x_scale"] == np.float32(0.125)
    assert constants_of(result)["x_zero_point"] == 77
    # The bias follows: its scale is made last, from the final ones.
    np.testing.assert_allclose(
        constants_of(result)["b1_quantized_scale"],
        0.125 * constants_of(result)["w1_scale"],
        rtol=1e-6,
    )


def test_a_changed_weight_scale_gives_new_integers(planned):
    model, plan, _ = planned

    def double(data):
        entry = data["tensors"]["w1"]
        entry["scale"] = [2 * scale for scale in entry["scale"]]

    before = constants_of(bitwright.apply_plan(plan, model))["w1_quantized"]
    after = constants_of(bitwright.apply_plan(edit(plan, double), model))["w1_quantized"]
    assert np.abs(after.astype(int)).max() == 64
    assert np.abs(before.astype(int)).max() == 127


def test_a_node_set_to_float_is_float(planned):
    model, plan, samples = planned

    def leave_out(data):
        gemm = data["nodes"]["fc"]
        gemm.update(action="float", reason="by hand", inputs=[None] * 3, outputs=[None])
        data["outputs"]["y"] = None

    result = bitwright.apply_plan(edit(plan, leave_out), model)
    gemm = next(item for item in result.to_proto().graph.node if item.name == "fc")
    assert list(gemm.input) == ["f", "w3", "b3"]
    assert "w3_quantized" not in constants_of(result)
    assert quality(model, result, samples) > 30


def test_an_absorbed_relu_whose_scale_goes_below_zero_is_refused(planned):
    model, plan, _ = planned
    changed = edit(plan, lambda data: data["tensors"]["r1"].update(zero_point=10))
    with pytest.raises(PlanError, match=r"'relu1' \(Relu\) is to be absorbed.*set its action"):
        bitwright.apply_plan(changed, model)


def test_an_absorbed_relu_is_done_for_a_node_that_is_made_float_by_hand():
    model = build(
        [
            node("Conv", ["x", "w"], ["c"], name="conv"),
            node("Clip", ["c", "zero"], ["k"], name="clip"),
            node("Relu", ["k"], ["r"], name="relu"),
            node("Conv", ["r", "v"], ["y"], name="head"),
            node("Conv", ["r", "u"], ["side"], name="side"),
        ],
        {"x": [1, 3, 6, 6]},
        {"y": [1, 4, 6, 6], "side": [1, 4, 6, 6]},
        {
            "w": weight(8, 3, 1, 1, seed=1),
            "v": weight(4, 8, 1, 1, seed=2),
            "u": weight(4, 8, 1, 1, seed=3),
            "zero": np.array(0, np.float32),
        },
    )
    samples = make_samples(model)
    plan = bitwright.make_plan(model, data=samples, recipe={"base": "int8", "optimize": False})
    assert {plan.nodes[name].action for name in ("clip", "relu")} == {"absorb"}

    def leave_out(data):
        data["nodes"]["head"] = {"op": "Conv", "action": "float", "reason": "by hand"}

    result = bitwright.apply_plan(edit(plan, leave_out), model)
    assert ops(result)["Relu"] == ops(result)["Clip"] == 1
    assert quality(model, result, samples) > 30


def test_an_absorbed_relu_taken_back_is_honoured(planned):
    model, plan, samples = planned

    def take_back(data):
        data["tensors"]["r1"].update(zero_point=10)
        relu = data["nodes"]["relu1"]
        relu.update(action="quantize", reason=None, inputs=[None], outputs=["r1"])
        data["nodes"]["conv1"]["outputs"] = [None]

    result = bitwright.apply_plan(edit(plan, take_back), model)
    assert ops(result)["Relu"] == 1
    assert quality(model, result, samples) > 25


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda d: d["tensors"].update(x7=d["tensors"].pop("x")),
            "refers to tensor 'x', which has no entry",
        ),
        (
            lambda d: d["tensors"]["x"].update(tensor="xx"),
            "names tensor 'xx', which the model lacks. Did you mean 'x'",
        ),
        (
            lambda d: d["nodes"].update(conv9=d["nodes"].pop("conv1")),
            "names node 'conv9', which the model lacks. Did you mean 'conv",
        ),
        (
            lambda d: d["nodes"]["conv1"].update(inputs=["r1", "w1", "b1"]),
            "input of node 'conv1', number 0, is not tensor 'r1'",
        ),
        (
            lambda d: d["nodes"]["conv1"].update(inputs=["x", "w1", "b1", "x"]),
            "node 'conv1' has 3 inputs, of which the plan lists 4",
        ),
        (
            lambda d: d["nodes"]["conv1"].update(outputs=[]),
            "node 'conv1' has 1 outputs, of which the plan lists 0",
        ),
        (lambda d: d.update(outputs={}), "outputs are not those of the model: 'y' is among one"),
        (lambda d: d["outputs"].update(y="z"), "graph output 'y' refers to 'z'"),
        (lambda d: d["tensors"]["x"].update(scale=0.0), "'x' has a scale that is not positive"),
        (lambda d: d["tensors"]["x"].update(scale=-1.0), "'x' has a scale that is not positive"),
        (lambda d: d["tensors"]["x"].update(zero_point=300), "zero point outside uint8's 0..255"),
        (lambda d: d["tensors"]["x"].update(scale=None), "'x' has neither a scale nor"),
        (lambda d: d["tensors"]["p1"].update(same_as="p1"), "share parameters in a circle"),
        (lambda d: d["tensors"]["p1"].update(same_as="q1"), "refers to tensor 'q1'"),
        (
            lambda d: d["tensors"]["w1"].update(scale=[0.1, 0.2], zero_point=0),
            "'w1' of shape 8x3x3x3 cannot take 2 scales on axis 0",
        ),
        (lambda d: d["tensors"]["w1"].update(axis=1), "cannot take 8 scales on axis 1"),
        (lambda d: d["tensors"]["w1"].update(axis=7), "cannot take 8 scales on axis 7"),
        (lambda d: d["tensors"]["x"].update(role="weight"), "'x' is planned as a weight"),
        (lambda d: d["tensors"]["x"].update(qtype="uint9"), "unknown .*'uint9'"),
        (lambda d: d["tensors"]["x"].update(scal=1.0), "unknown option 'scal'"),
        (lambda d: d.update(version=2), "version"),
        (lambda d: d["nodes"]["conv1"].update(action="skip"), "skip"),
        (
            lambda d: d["tensors"]["x"].update(scale=[0.1, 0.2], zero_point=[0, 0], axis=1),
            "'x' of shape 1x3x12x12 cannot take 2 scales on axis 1",
        ),
        (
            lambda d: d["tensors"]["x"].update(scale=[0.1] * 3, zero_point=[0] * 3, axis=1),
            "bias 'b1' needs one scale for the whole of 'x', which has 3",
        ),
        (
            lambda d: d["tensors"]["w1"].update(zero_point=[0, 0]),
            "'w1' has 8 scales but 2 zero points",
        ),
        (
            lambda d: d["tensors"]["w1"].update(scale=[0.1, [0.2]]),
            "'w1' has a scale or zero point that is no array",
        ),
        (
            lambda d: d["tensors"]["w3"].update(block_size=4, axis=0),
            "'w3' of shape 8x10 cannot take 10 scales on axis 0",
        ),
    ],
)
def test_an_edit_that_the_model_contradicts_is_refused_with_its_place(planned, change, said):
    model, plan, _ = planned
    with pytest.raises(PlanError, match=said) as error:
        bitwright.apply_plan(edit(plan, change), model)
    assert "\n" not in str(error.value)


def test_a_plan_of_another_model_is_refused(planned):
    _, plan, _ = planned
    with pytest.raises(PlanError, match="made for another model"):
        bitwright.apply_plan(plan, make_mlp())


def test_a_plan_fits_the_same_graph_with_other_weights(planned):
    _, plan, _ = planned
    model = make_cnn()
    tensor = next(t for t in model.graph.initializer if t.name == "w1")
    tensor.raw_data = (constants_of(model)["w1"] * 0.5).tobytes()
    assert bitwright.apply_plan(plan, model).quantized["Conv"] == 2


def test_no_file_is_left_behind_by_a_refused_plan(planned, tmp_path):
    model, plan, _ = planned
    changed = edit(plan, lambda data: data["tensors"]["x"].update(scale=0.0))
    with pytest.raises(PlanError):
        bitwright.apply_plan(changed, model, tmp_path / "q.onnx")
    assert not list(tmp_path.iterdir())
