from __future__ import annotations

import warnings

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from bitwright.errors import ModelError
from bitwright.graph import (
    check_model,
    load_model,
    normalize,
    opset_of,
    opsets,
    runtime_limits,
    stamp_versions,
)
from bitwright.run import Session, upgrade_opset

RNG = np.random.default_rng(0)


def one_op(builders, op, opset, shape, initializers=None, **attributes):
    inputs = ["x", *(initializers or {})]
    return builders.build(
        [helper.make_node(op, inputs, ["y"], name="op", **attributes)],
        [builders.info("x", TensorProto.FLOAT, shape)],
        [builders.info("y")],
        initializers,
        opset=opset,
        ir_version=7,
    )


SCALES = np.array([1, 1, 2, 2], np.float32)
CASES = {
    "softmax": ("Softmax", 11, (2, 3, 4), {}, {}),
    "squeeze": ("Squeeze", 11, (1, 3, 4), {}, {"axes": [0]}),
    "reduce_mean": ("ReduceMean", 11, (2, 3, 4), {}, {"axes": [1]}),
    "clip": ("Clip", 6, (2, 3), {}, {"min": -0.5, "max": 0.5}),
    "pad": ("Pad", 2, (2, 3), {}, {"pads": [0, 1, 0, 1], "mode": "constant"}),
    "upsample-7 nearest": ("Upsample", 7, (1, 2, 4, 4), {}, {"scales": [1.0, 1.0, 3.0, 3.0]}),
    "upsample-7 linear": (
        "Upsample",
        7,
        (1, 2, 4, 4),
        {},
        {"scales": [1.0, 1.0, 2.0, 2.0], "mode": "linear"},
    ),
    "upsample-9 linear": ("Upsample", 9, (1, 2, 4, 4), {"s": SCALES}, {"mode": "linear"}),
    "resize-10 linear": ("Resize", 10, (1, 2, 4, 4), {"s": SCALES * 1.5}, {"mode": "linear"}),
    "resize-10 shrink": (
        "Resize",
        10,
        (1, 2, 7, 7),
        {"s": np.array([1, 1, 0.6, 0.6], np.float32)},
        {},
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("version", [13, 21])
def test_an_upgraded_operator_computes_the_same(builders, case, version):
    op, opset, shape, initializers, attributes = CASES[case]
    if op == "Resize" and initializers["s"].max() > 1:
        initializers = {"s": np.array([1, 1, 2.5, 2.5], np.float32)}
    model = load_model(one_op(builders, op, opset, shape, initializers, **attributes))
    x = {"x": RNG.standard_normal(shape).astype(np.float32)}
    expected = Session(model).run(x)["y"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # none says that it was not compared
        upgraded = upgrade_opset(model, version)
    assert opset_of(upgraded) == version and opset_of(model) == opset
    np.testing.assert_allclose(Session(upgraded).run(x)["y"], expected, atol=1e-6)


def test_names_metadata_and_tensors_stay(builders, tmp_path):
    proto = builders.mlp(opset=12, producer_name="me", domains=["com.microsoft"])
    proto.metadata_props.add(key="who", value="knows")
    proto.graph.node[0].metadata_props.add(key="layer", value="one")
    model = load_model(builders.save_external(proto, tmp_path))
    upgraded = upgrade_opset(model, 21)
    assert upgraded.producer_name == "me" and upgraded.metadata_props == {"who": "knows"}
    assert upgraded.graph.node(0).metadata_props == {"layer": "one"}
    assert upgraded.graph.opset_imports == {"": 21, "com.microsoft": 1}
    assert [v.name for v in upgraded.graph.inputs] == ["x"]
    assert [v.name for v in upgraded.graph.outputs] == ["y"]
    assert set(upgraded.graph.initializers) == {"w1", "b1", "w2"}
    for name, value in model.graph.initializers.items():
        assert upgraded.graph.initializers[name].const_value is value.const_value
    assert isinstance(upgraded.graph.initializers["w1"].const_value, ir.ExternalTensor)


def test_weights_inside_bodies_go_back_into_their_body(builders):
    model = load_model(builders.branches())
    model.graph.opset_imports[""] = 12
    upgraded = upgrade_opset(model, 21)
    then_branch = upgraded.graph.node(0).attributes["then_branch"].as_graph()
    assert "w" in then_branch.initializers and not upgraded.graph.initializers
    feeds = {"c": np.array(True), "x": RNG.standard_normal((2, 24)).astype(np.float32)}
    stamp_versions(upgraded)
    np.testing.assert_array_equal(
        Session(model).run(feeds)["y"],
        Session(upgraded).run(feeds)["y"],
    )


def test_a_model_that_is_new_enough_is_returned_as_it_is(builders):
    model = load_model(builders.mlp(opset=18))
    assert upgrade_opset(model, 17) is model and upgrade_opset(model, 18) is model


def test_an_opset_that_the_converter_does_not_know_is_refused(builders):
    # Without the scales that it needs; as a message it would be refused already.
    model = ir.from_proto(one_op(builders, "Upsample", 1, (1, 1, 2, 2), mode="nearest"))
    with pytest.raises(ModelError, match=r"cannot be moved from opset 1 to 13.*export it again"):
        upgrade_opset(model, 13)
    with pytest.raises(ModelError, match="newer than the installed onnxruntime"):
        upgrade_opset(load_model(builders.mlp()), runtime_limits().opset + 1)


def test_a_scan_with_a_batch_axis_is_refused(builders):
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "e"], ["t"]), helper.make_node("Identity", ["t"], ["o"])],
        "body",
        [builders.info("s", 1, [2]), builders.info("e", 1, [2])],
        [builders.info("t", 1, [2]), builders.info("o", 1, [2])],
    )
    scan = helper.make_node("Scan", ["", "i", "x"], ["y", "z"], num_scan_inputs=1, body=body)
    inputs = [builders.info("i", 1, [1, 2]), builders.info("x", 1, [1, 3, 2])]
    outputs = [builders.info("y", 1, [1, 2]), builders.info("z", 1, [1, 3, 2])]
    model = load_model(builders.build([scan], inputs, outputs, {}, opset=8))
    with pytest.raises(ModelError, match="its Scan has a batch axis"):
        upgrade_opset(model, 13)


def test_an_output_that_is_declared_with_a_wrong_rank_gets_the_right_one(builders):
    # As exporters wrote them: ONNX Runtime runs it, and only newer inference sees the mistake.
    proto = builders.build(
        [
            helper.make_node("Shape", ["x"], ["shape"], name="shape"),
            helper.make_node("Gather", ["shape", "first"], ["rows"], name="gather", axis=0),
            helper.make_node("Unsqueeze", ["rows"], ["row"], name="unsqueeze", axes=[0]),
            helper.make_node("Concat", ["row", "rest"], ["target"], name="concat", axis=0),
            helper.make_node("Reshape", ["x", "target"], ["y"], name="reshape"),
        ],
        [builders.info("x", TensorProto.FLOAT, ["n", 6])],
        [builders.info("y", TensorProto.FLOAT, [1, "length"])],
        {"first": np.array(0), "rest": np.array([2, 3])},
        opset=12,
        ir_version=7,
    )
    upgraded = upgrade_opset(load_model(proto), 21)
    check_model(upgraded)
    assert [len(value.shape) for value in upgraded.graph.outputs] == [3]


def test_the_mask_of_an_old_dropout_becomes_a_truth_value(builders):
    proto = builders.build(
        [helper.make_node("Dropout", ["x"], ["y", "mask"], name="dropout", ratio=0.5)],
        [builders.info("x", TensorProto.FLOAT, [2, 3])],
        [builders.info("y", TensorProto.FLOAT, [2, 3])],
        opset=9,
        ir_version=7,
    )
    proto.graph.value_info.append(builders.info("mask", TensorProto.FLOAT, [2, 3]))
    upgraded = upgrade_opset(load_model(proto), 13)
    dropout = upgraded.graph.node("dropout")
    assert [value.dtype.name for value in dropout.outputs] == ["FLOAT", "BOOL"]


def test_a_conversion_that_changes_the_numbers_is_refused(builders, monkeypatch):
    monkeypatch.setattr(opsets, "_pin_old_resize", lambda model: None)
    op, opset, shape, initializers, attributes = CASES["upsample-9 linear"]
    model = load_model(one_op(builders, op, opset, shape, initializers, **attributes))
    with pytest.raises(ModelError, match="changes output 'y'"):
        upgrade_opset(model, 13)


def test_images_with_channels_last_are_compared_at_a_size_that_they_can_have(builders):
    proto = builders.build(
        [
            helper.make_node("Transpose", ["x"], ["first"], name="t", perm=[0, 3, 1, 2]),
            helper.make_node("Conv", ["first", "w"], ["y"], name="conv", kernel_shape=[9, 9]),
        ],
        [builders.info("x", TensorProto.FLOAT, ["N", "H", "W", 3])],
        [builders.info("y")],
        {"w": np.ones((1, 3, 9, 9), np.float32)},
        opset=12,
        ir_version=7,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        upgrade_opset(load_model(proto), 13)


def test_a_model_that_does_not_run_on_random_inputs_gets_a_warning(builders):
    proto = builders.build(
        [helper.make_node("Gather", ["table", "i"], ["y"], name="look")],
        [builders.info("i", TensorProto.INT64, ["n"])],
        [builders.info("y")],
        {"table": np.zeros((1, 3), np.float32)},  # index 1 is out of range
        opset=12,
    )
    model = load_model(proto)
    with pytest.warns(UserWarning, match="was not compared numerically"):
        assert opset_of(upgrade_opset(model, 13)) == 13
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        upgrade_opset(model, 13, sample={"i": np.array([0])})


def test_real_models_move_to_opset_21_with_the_same_output(ocr_model):
    path, shape = ocr_model
    model = load_model(path)
    normalize(model)
    x = {model.graph.inputs[0].name: RNG.standard_normal(shape).astype(np.float32)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        upgraded = upgrade_opset(model, 21, sample=x)
    assert opset_of(upgraded) == 21
    check_model(upgraded)


def test_silero_moves_with_its_nested_bodies(silero):
    model = load_model(silero)
    normalize(model)
    sample = {
        "input": RNG.standard_normal((1, 576)).astype(np.float32),
        "state": np.zeros((2, 1, 128), np.float32),
        "sr": np.array(16000),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        upgraded = upgrade_opset(model, 21, sample=sample)
    kept = {v.name for g in upgraded.graphs() for v in g.initializers.values()}
    assert {v.name for g in model.graphs() for v in g.initializers.values()} <= kept


def test_what_runs_only_with_fusions_is_compared_so(builders, monkeypatch):
    levels = []

    def open_fused(model, *, level="all", providers=None):
        levels.append(level)
        if level == "disabled":
            raise ModelError("no kernel")
        return Session(model, level=level)

    monkeypatch.setattr("bitwright.run.session.Session", open_fused)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # none says that it was not compared
        assert opset_of(upgrade_opset(load_model(builders.mlp(opset=12)), 21)) == 21
    assert levels == ["disabled", "all"] * 2
