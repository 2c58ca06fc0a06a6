from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from bitwright.errors import ModelError
from bitwright.graph import (
    check_model,
    element_type,
    expose,
    infer_shapes,
    iter_values,
    load_model,
    normalize,
)
from bitwright.run import Session


def observe_exposed(model, names, feeds, **options):
    infer_shapes(model)
    exposed = expose(model, names, **options)
    results = Session(exposed.model, level="disabled").run(feeds)
    return {name: results[exposed.outputs[name]] for name in names}


def test_main_graph_tensors_are_returned_as_they_are(builders):
    model = load_model(builders.mlp())
    x = np.random.default_rng(0).standard_normal((2, 64)).astype(np.float32)
    w1 = model.graph.initializers["w1"].const_value.numpy()
    seen = observe_exposed(model, ["h", "y", "x", "w1"], {"x": x})
    np.testing.assert_allclose(seen["h"], x @ w1, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(seen["x"], x)
    np.testing.assert_array_equal(seen["w1"], w1)
    assert seen["y"].shape == (2, 4)


def test_the_model_is_not_touched_and_its_tensors_are_shared(builders):
    model = load_model(builders.mlp())
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    exposed = expose(model, ["h", "x"])
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before
    for name, value in model.graph.initializers.items():
        assert exposed.model.graph.initializers[name].const_value is value.const_value
    assert [v.name for v in exposed.model.graph.outputs] == ["y", "h", "x_exposed"]


def test_the_models_own_outputs_can_go(builders):
    model = load_model(builders.mlp())
    exposed = expose(model, ["h"], keep_outputs=False)
    assert [v.name for v in exposed.model.graph.outputs] == ["h"]
    assert list(
        observe_exposed(model, ["y"], {"x": np.ones((1, 64), np.float32)}, keep_outputs=False)
    ) == ["y"]


def test_an_unknown_tensor_gets_a_suggestion(builders):
    with pytest.raises(ModelError, match=r"no tensor 'b11'\. Did you mean 'b1'"):
        expose(load_model(builders.mlp()), ["b11"])


def test_both_branches_of_an_if_are_told_apart(builders):
    model = load_model(builders.branches())
    x = np.random.default_rng(0).standard_normal((2, 24)).astype(np.float32)
    names = ["choose/then_branch:t", "choose/else_branch:t", "choose/then_branch:then_out"]
    then = observe_exposed(model, names, {"c": np.array(True), "x": x})
    weight = next(
        iter(model.graph.node(0).attributes["then_branch"].as_graph().initializers.values())
    )
    np.testing.assert_allclose(
        then[names[0]], (x @ weight.const_value.numpy()).ravel(), rtol=1e-4, atol=1e-4
    )
    assert then[names[1]].shape == (0,) and then[names[2]].shape == (48,)
    other = observe_exposed(model, names, {"c": np.array(False), "x": x})
    np.testing.assert_array_equal(other[names[1]], -x.ravel())
    assert other[names[0]].shape == (0,)


def test_all_iterations_of_a_loop_come_after_each_other(builders):
    model = load_model(builders.loop())
    x = np.array([1, 2, 3], np.float32)
    seen = observe_exposed(model, ["loop/body:d", "loop/body:s"], {"x": x})
    np.testing.assert_array_equal(seen["loop/body:d"], np.concatenate([2 * x, 4 * x, 8 * x]))
    np.testing.assert_array_equal(seen["loop/body:s"], np.concatenate([x, 2 * x, 4 * x]))


def test_a_loop_tensor_whose_shape_changes_is_whole_too(builders):
    model = load_model(builders.loop(growing=True))
    x = np.array([1, 2, 3], np.float32)
    seen = observe_exposed(model, ["loop/body:d", "loop/body:s", "scan", "final"], {"x": x})
    expected, state = [], x
    for _ in range(3):
        expected.append(2 * state)
        state = np.concatenate([2 * state, 2 * state])
    np.testing.assert_array_equal(seen["loop/body:d"], np.concatenate(expected))
    np.testing.assert_array_equal(seen["final"], state)
    np.testing.assert_array_equal(seen["scan"], [part.sum() for part in expected])


def test_an_if_inside_a_loop_gives_only_what_ran(builders):
    model = load_model(builders.loop(inner_if=True))
    x = np.array([0.1, 0.2, 0.3], np.float32)
    names = ["loop/body/inner/then_branch:e", "loop/body/inner/else_branch:e2", "loop/body:d"]
    seen = observe_exposed(model, names, {"x": x})
    np.testing.assert_allclose(seen[names[0]], np.exp(4 * x), rtol=1e-6)
    np.testing.assert_allclose(seen[names[1]], np.concatenate([-2 * x, -8 * x]), rtol=1e-6)
    np.testing.assert_allclose(seen[names[2]], np.concatenate([2 * x, 4 * x, 8 * x]), rtol=1e-6)
    check_model(expose(model, names).model)


def make_scan(builders):
    body = helper.make_graph(
        [
            helper.make_node("Add", ["s", "v"], ["t"], name="add"),
            helper.make_node("Identity", ["t"], ["s_out"], name="state"),
            helper.make_node("Neg", ["t"], ["o"], name="neg"),
        ],
        "body",
        [builders.info("s", 1, [2]), builders.info("v", 1, [2])],
        [builders.info("s_out", 1, [2]), builders.info("o", 1, [2])],
    )
    scan = helper.make_node(
        "Scan",
        ["s0", "x"],
        ["s", "y"],
        name="scan",
        body=body,
        num_scan_inputs=1,
        scan_output_axes=[0],
    )
    return builders.build(
        [scan],
        [builders.info("s0", 1, [2]), builders.info("x", 1, [4, 2])],
        [builders.info("s"), builders.info("y")],
    )


def test_all_steps_of_a_scan_come_after_each_other(builders):
    model = load_model(make_scan(builders))
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    seen = observe_exposed(model, ["scan/body:t"], {"s0": np.zeros(2, np.float32), "x": x})
    np.testing.assert_array_equal(seen["scan/body:t"], np.cumsum(x, axis=0).ravel())


def test_a_body_tensor_of_unknown_type_is_refused(builders):
    body = helper.make_graph(
        [
            helper.make_node("Mystery", ["x"], ["t"], domain="mine", name="m"),
            helper.make_node("Identity", ["x"], ["o"], name="i"),
        ],
        "b",
        [],
        [builders.info("o")],
    )
    model = load_model(
        builders.build(
            [helper.make_node("If", ["c"], ["y"], name="if", then_branch=body, else_branch=body)],
            [builders.info("c", TensorProto.BOOL, []), builders.info("x", 1, [1])],
            [builders.info("y")],
            domains=["mine"],
        )
    )
    with pytest.raises(ModelError, match="type of tensor 'if/then_branch:t' is not known"):
        expose(model, ["if/then_branch:t"])


@pytest.mark.slow
def test_every_float_tensor_inside_silero_can_be_observed(silero):
    model = load_model(silero)
    normalize(model)
    feeds = {
        "input": np.random.default_rng(0).standard_normal((1, 576)).astype(np.float32),
        "state": np.zeros((2, 1, 128), np.float32),
        "sr": np.array(16000),
    }
    infer_shapes(model)
    names = [
        name
        for name, value in iter_values(model)
        if value.producer() is not None and element_type(value) == ir.DataType.FLOAT
    ]
    assert sum(":" in name for name in names) > 100
    seen = observe_exposed(model, names, feeds)
    sizes = {name: seen[name].size for name in names}
    # The 16 kHz half ran and the 8 kHz half did not.
    assert any(size for name, size in sizes.items() if "then_branch" in name)
    assert not any(size for name, size in sizes.items() if name.startswith("If_0/else_branch"))
    np.testing.assert_array_equal(
        seen["output"], Session(silero, level="disabled").run(feeds)["output"]
    )


def test_all_activations_of_a_real_model_match_the_plain_run(ocr_model):
    path, shape = ocr_model
    model = load_model(path)
    normalize(model)
    feeds = {model.graph.inputs[0].name: np.random.default_rng(0).random(shape, np.float32)}
    infer_shapes(model)
    names = [node.outputs[0].name for node in model.graph if node.op_type in {"Conv", "MatMul"}]
    seen = observe_exposed(model, names, feeds)
    assert all(np.isfinite(array).all() and array.size for array in seen.values())
