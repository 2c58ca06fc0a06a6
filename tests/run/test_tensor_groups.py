from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from support.models import build, normal

from bitwright.errors import ModelError
from bitwright.graph import (
    infer_shapes,
    load_model,
)
from bitwright.observe import observe
from bitwright.run import SessionRunner


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
    import bitwright.run.tensor_groups as module

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
    import bitwright.run.tensor_groups as module

    monkeypatch.setattr(module, "Session", None)
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
    assert [name for name, sketch in seen.sketches.items() if sketch.nan][:2] == ["x", "c1"]


def test_a_model_that_fails_on_a_sample_says_so():
    with pytest.raises(ModelError, match="does not run"):
        observe(conv_model(), ["y"], [{"x": np.zeros((1, 5, 8, 8), np.float32)}])


def test_what_is_looked_at_side_by_side_stays_in_one_group():
    bundles = [("c1", "y"), ("r1", "c2")]
    size = 4 * 4 * 8 * 8
    runner = SessionRunner(conv_model(), NAMES, group_bytes=3 * size, bundles=bundles)
    assert runner.groups(samples(1)[0]) == [("x", "c1", "y"), ("r1", "c2")]


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
