from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from support.models import build, normal

from bitwright.errors import ModelError
from bitwright.graph import (
    SessionRunner,
    check_model,
    element_type,
    expose,
    infer_shapes,
    iter_values,
    load_model,
    normalize,
    open_session,
    run_session,
)
from bitwright.observe import observe


def conv_model(shape=(1, 3, 8, 8)):
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.normal(size=(4, 3, 3, 3)).astype(np.float32), "w1"),
        numpy_helper.from_array(rng.normal(size=(4, 4, 1, 1)).astype(np.float32), "w2"),
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c1"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2"], ["c2"]),
        helper.make_node("Add", ["c2", "r1"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


NAMES = ["x", "c1", "r1", "c2", "y"]


def samples(count, size=8):
    rng = np.random.default_rng(1)
    return [{"x": rng.normal(size=(1, 3, size, size)).astype(np.float32)} for _ in range(count)]


def reference(model, data):
    found = {name: [] for name in NAMES}
    for feeds in data:
        values = dict(feeds)
        for node in model.graph.node:
            weights = {w.name: numpy_helper.to_array(w) for w in model.graph.initializer}
            single = helper.make_model(
                helper.make_graph(
                    [node],
                    "n",
                    [helper.make_tensor_value_info(i, TensorProto.FLOAT, None) for i in node.input],
                    [helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None)],
                ),
                opset_imports=model.opset_import,
            )
            evaluator = ReferenceEvaluator(single)
            inputs = {i: values.get(i, weights.get(i)) for i in node.input}
            values[node.output[0]] = evaluator.run(None, inputs)[0]
        for name in NAMES:
            found[name].append(values[name])
    return found


def test_observed_extremes_are_those_of_the_reference_evaluator():
    data = samples(3)
    seen = observe(conv_model(), NAMES, data)
    for name, values in reference(conv_model(), data).items():
        values = np.stack(values)
        sketch = seen.sketches[name]
        np.testing.assert_allclose(
            [sketch.low, sketch.high], [values.min(), values.max()], rtol=1e-4, atol=1e-5
        )
        assert sketch.count == values.size
        assert seen.shapes[name] == values.shape[1:]


@pytest.mark.parametrize("shape", [(1, 3, 8, 8), ("n", 3, "h", "w")])
@pytest.mark.parametrize("budget", [1, 3000, 1 << 30])
def test_a_small_budget_means_groups_and_the_same_counts(shape, budget):
    model = load_model(conv_model(shape))
    infer_shapes(model)
    data = samples(2)
    runner = SessionRunner(model, NAMES, group_bytes=budget)
    groups = runner.groups(data[0])
    assert [name for group in groups for name in group] == NAMES
    assert len(groups) == {1: 4, 3000: 2, 1 << 30: 1}[budget]
    seen = observe(runner, NAMES, iter(data))
    for name, values in reference(conv_model(), data).items():
        assert seen.sketches[name].count == np.stack(values).size
        np.testing.assert_allclose(
            seen.sketches[name].batches[:, 1], [v.max() for v in values], rtol=1e-4
        )


def test_a_slightly_larger_sample_is_not_measured_again(monkeypatch):
    runner = SessionRunner(conv_model(("n", 3, "h", "w")), NAMES, group_bytes=1 << 20)
    runner.groups(samples(1, 8)[0])
    monkeypatch.setattr(runner, "_counted", None)
    assert len(runner.groups(samples(1, 12)[0])) == 1


def test_a_larger_sample_cuts_anew():
    runner = SessionRunner(conv_model(("n", 3, "h", "w")), NAMES, group_bytes=4 * 1024 * 3)
    assert len(runner.groups(samples(1, 8)[0])) == 1
    assert len(runner.groups(samples(1, 32)[0])) == 4
    assert len(runner.groups(samples(1, 8)[0])) == 4


def test_inputs_of_different_sizes_are_observed_together():
    data = samples(1, 8) + samples(1, 12) + samples(1, 5)
    seen = observe(conv_model(("n", 3, "h", "w")), NAMES, data)
    assert seen.sketches["y"].count == 4 * (8 * 8 + 12 * 12 + 5 * 5)
    assert seen.samples == 3


def test_shapes_that_are_known_are_not_inferred_again(monkeypatch):
    import bitwright.graph.inner_values as module

    model = load_model(conv_model())
    infer_shapes(model)
    monkeypatch.setattr(module, "infer_shapes", None)
    runner = SessionRunner(model, NAMES, group_bytes=4 * 256 * 2)
    assert runner.groups(samples(1)[0]) == [("x", "c1", "r1"), ("c2", "y")]


def test_nodes_out_of_order_are_observed_all_the_same():
    model = load_model(conv_model())
    first = model.graph[0]
    model.graph.remove(first)
    model.graph.append(first)
    seen = observe(model, NAMES, samples(2))
    assert model.graph[-1] is first
    expected = observe(conv_model(), NAMES, samples(2))
    assert seen.sketches["y"].high == expected.sketches["y"].high


def test_only_inputs_need_no_session(monkeypatch):
    import bitwright.graph.inner_values as module

    monkeypatch.setattr(module, "open_session", None)
    seen = observe(conv_model(), ["x"], samples(2))
    assert seen.sketches["x"].count == 2 * 192


def test_an_unknown_tensor_is_named_with_a_suggestion():
    with pytest.raises(ModelError, match=r"no tensor 'conv'\. Known: c1"):
        observe(conv_model(), ["conv"], samples(1))


def test_nan_in_the_data_is_found_in_every_tensor_it_reaches():
    data = samples(2)
    data[1]["x"][0, 0, 0, 0] = np.nan
    seen = observe(conv_model(), NAMES, data)
    # ONNX Runtime's Relu turns NaN into 0 on some machines, so what comes after may be clean.
    assert [p.split()[1] for p in seen.problems()][:2] == ["'x'", "'c1'"]


def test_a_model_that_fails_on_a_sample_says_so():
    with pytest.raises(ModelError, match="does not run"):
        observe(conv_model(), ["y"], [{"x": np.zeros((1, 5, 8, 8), np.float32)}])


def test_what_is_looked_at_side_by_side_stays_in_one_group():
    bundles = [("c1", "y"), ("r1", "c2")]
    size = 4 * 4 * 8 * 8
    runner = SessionRunner(conv_model(), NAMES, group_bytes=3 * size, bundles=bundles)
    assert runner.groups(samples(1)[0]) == [("x", "c1", "y"), ("r1", "c2")]


def observe_exposed(model, names, feeds, **options):
    infer_shapes(model)
    exposed = expose(model, names, **options)
    results = run_session(open_session(exposed.model, level="disabled"), feeds)
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
        seen["output"], run_session(open_session(silero, level="disabled"), feeds)["output"]
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


def test_tensors_come_out_of_a_pattern_that_the_runtime_fuses_wrongly():
    """ONNX Runtime's FastGeluFusion removes half of x although another node reads it."""
    constants = {
        "kept": np.array([True, True]),  # a size that depends on values has to be counted
        "half": np.float32(0.5),
        "three": np.float32(3),
        "cubic": np.float32(0.044715),
        "root": np.float32(np.sqrt(2 / np.pi)),
        "one": np.float32(1),
    }
    proto = build(
        [
            helper.make_node("Compress", ["given", "kept"], ["x"], axis=0),
            helper.make_node("Mul", ["x", "half"], ["halved"]),
            helper.make_node("Pow", ["x", "three"], ["cube"]),
            helper.make_node("Mul", ["cube", "cubic"], ["third"]),
            helper.make_node("Add", ["x", "third"], ["sum"]),
            helper.make_node("Mul", ["sum", "root"], ["inner"]),
            helper.make_node("Tanh", ["inner"], ["tanh"]),
            helper.make_node("Add", ["tanh", "one"], ["outer"]),
            helper.make_node("Mul", ["halved", "outer"], ["y"]),
        ],
        {"given": [2, 8]},
        {"y": None},
        constants,
    )
    runner = SessionRunner(load_model(proto), ["halved", "y"], group_bytes=1 << 20)
    feeds = {"given": normal(2, 8)}
    (group,) = runner.groups(feeds)
    found = runner.run(group, feeds)
    np.testing.assert_array_equal(found["halved"], feeds["given"] / 2)
