"""Comparing two models, against plain numpy over activations that are all kept."""

import copy
import math

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from support.models import (
    build,
    make_cnn,
    make_samples,
    make_transformer,
    node,
    weight,
)
from support.peer_runs import PeerReader, peer

import bitwright
from bitwright import graph
from bitwright.assess.comparison import side_by_side
from bitwright.errors import DataError, MissingPackageError, ModelError
from bitwright.run import Session, part_runner

BUDGET = 1 << 28


def quantized_cnn(**recipe):
    model = make_cnn()
    samples = make_samples(model, 5)
    result = bitwright.quantize(
        model,
        data=samples,
        recipe={"base": "int8", **recipe},
        holdout=False,
        force_dynamic=recipe.get("base") == "int8-dynamic",
    )
    return model, result, samples


def all_values(model, names, samples, level="all"):
    """Return everything that tensors hold over all samples."""
    exposed = graph.expose(graph.load_model(model), names, keep_outputs=False)
    session = Session(exposed.model, level=level)
    runs = [session.run(sample) for sample in samples]
    return {name: np.stack([run[out] for run in runs]) for name, out in exposed.outputs.items()}


def sqnr(expected, actual):
    noise = ((expected.astype(np.float64) - actual) ** 2).sum()
    return 10 * math.log10((expected.astype(np.float64) ** 2).sum() / noise)


def parameters_of(result, tensor):
    found = result.plan.parameters(tensor)
    return float(np.float32(found.scale)), int(found.zero_point)


@pytest.mark.parametrize("written", ["qdq", "qoperator"])
def test_accumulated_errors_are_those_of_all_values_kept(written):
    model, result, samples = quantized_cnn(format=written)
    found = bitwright.compare(model, result.model, data=samples)
    names = ["r1", "p1", "c2", "r2", "g"]
    assert found.tensors.keys() == {*names, "f", "y"}
    expected = all_values(model, [*names, "y"], samples)
    actual = all_values(result.model, ["y"], samples)["y"]  # which is not rounded
    assert found.tensors["y"].sqnr == pytest.approx(sqnr(expected["y"], actual), abs=1e-3)
    suffix = "_quantized" if written == "qoperator" else "_QuantizeLinear_Output"
    known = dict(graph.iter_values(result.model))
    for name in names:
        stored = next(n for n in (f"{name}{suffix}", f"{name}_QuantizeLinear_Output") if n in known)
        codes = all_values(result.model, [stored], samples)[stored].astype(np.float64)
        scale, zero = parameters_of(result, name)
        actual = (codes - zero) * scale
        tensor = found.tensors[name]
        assert tensor.sqnr == pytest.approx(sqnr(expected[name], actual), abs=1e-3)
        assert tensor.max_error == pytest.approx(np.abs(expected[name] - actual).max(), rel=1e-4)
        assert tensor.used == (codes.max() - codes.min() + 1) / 256


def test_local_errors_are_those_of_each_node_fed_with_float_activations():
    model, result, samples = quantized_cnn()
    found = bitwright.compare(model, result.model, data=samples)
    expected = all_values(model, ["r1", "p1", "c2", "r2"], samples)
    units = {"c2": ["p1"], "r2": ["c2", "p1"], "p1": ["r1"]}
    for output, inputs in units.items():
        stored = f"{output}_QuantizeLinear_Output"
        part = ir.convenience.extract(result.model.graph, inputs, [stored])
        part.opset_imports.update(result.model.opset_imports)
        session = Session(ir.Model(part, ir_version=result.model.ir_version))
        codes = np.stack(
            [
                session.run({name: expected[name][i] for name in inputs})[stored]
                for i in range(len(samples))
            ]
        )
        scale, zero = parameters_of(result, output)
        actual = (codes.astype(np.float64) - zero) * scale
        tensor = found.tensors[output]
        assert tensor.local_sqnr == pytest.approx(sqnr(expected[output], actual), abs=1e-3)
        axes = (0, 1, 3, 4)
        noise = ((expected[output] - actual) ** 2).sum(axes)
        share = (noise / (expected[output].astype(np.float64) ** 2).sum(axes)).mean()
        assert tensor.channel_sqnr == pytest.approx(-10 * math.log10(share), abs=1e-3)


def test_what_is_cut_off_at_the_ends_of_the_range_is_counted():
    model, result, samples = quantized_cnn(ranges={"method": "percentile", "percentile": 98.0})
    found = bitwright.compare(model, result.model, data=samples)
    expected = all_values(model, ["c2"], samples)["c2"]
    scale, zero = parameters_of(result, "c2")
    beyond = (expected < (-zero - 0.5) * scale) | (expected > (255 - zero + 0.5) * scale)
    assert found.tensors["c2"].saturated == pytest.approx(beyond.mean())
    assert beyond.mean() > 0.01


def test_outputs_are_compared_as_after_quantizing():
    model, result, samples = quantized_cnn()
    found = bitwright.compare(model, result.model, data=samples[-len(result.outputs) :])
    again = bitwright.apply_plan(result.plan, model, data=samples[-1:])
    assert found.samples == 1
    [mine], [theirs] = found.outputs, again.outputs
    assert mine.sqnr == pytest.approx(theirs.sqnr, abs=1e-3)
    assert mine.agreement == theirs.agreement


@pytest.mark.parametrize(
    ("most_nodes", "budget"), [(1, 1000), (1, 4000), (10, 8000), (20, 24000), (400, 500)]
)
def test_a_small_memory_budget_changes_nothing_but_the_number_of_runs(
    monkeypatch, most_nodes, budget
):
    model, result, samples = quantized_cnn()
    wide = bitwright.compare(model, result.model, data=samples)
    # What a later stage reads is there by itself, too, in another group than what it is part of.
    monkeypatch.setattr("bitwright.assess.comparison.side_by_side._MOST_NODES", most_nodes)
    narrow = bitwright.compare(model, result.model, data=samples, memory_budget=budget)
    for name, tensor in wide.tensors.items():
        other = narrow.tensors[name]
        assert other.sqnr == pytest.approx(tensor.sqnr, abs=1e-3)
        assert other.local_sqnr == pytest.approx(tensor.local_sqnr, abs=1e-3)


@pytest.mark.parametrize("written", ["qdq", "qoperator"])
@pytest.mark.parametrize("per_channel", [False, True])
def test_weights_are_compared_too(written, per_channel):
    model, result, samples = quantized_cnn(format=written, per_channel=per_channel)
    found = bitwright.compare(model, result.model, data=samples[:1])
    assert found.weights.keys() == {"w1", "w2", "w3"}
    scale = np.float32(result.plan.parameters("w2").scale).reshape(-1, 1, 1, 1)
    original = onnx.numpy_helper.to_array(model.graph.initializer[2])
    stored = result.model.graph.initializers["w2_quantized"].const_value.numpy()
    assert found.weights["w2"] == pytest.approx(sqnr(original, stored * scale), abs=1e-3)


def test_a_node_has_the_errors_of_what_the_runtime_makes_with_it():
    model, result, samples = quantized_cnn()
    found = bitwright.compare(model, result.model, data=samples[:2], plan=result.plan)
    rows = {row.name: row for row in found.nodes}
    assert [row.index for row in found.nodes] == list(range(len(rows)))
    assert rows["conv1"].output == "r1"  # its Relu is the quantizer's work
    assert rows["conv1"].sqnr == found.tensors["r1"].sqnr
    assert rows["fc"].depth > rows["conv2"].depth > rows["conv1"].depth == 0
    assert {row.action for row in found.nodes} == {"quantized"}


def test_the_plan_says_why_a_node_is_float():
    model, result, samples = quantized_cnn(select={"exclude": ["conv2"]})
    found = bitwright.compare(model, result.model, data=samples[:2], plan=result.plan)
    row = next(row for row in found.nodes if row.name == "conv2")
    assert (row.action, row.reason) == ("float", result.plan.nodes["conv2"].reason)


def test_models_of_another_tool_are_matched_by_name(tmp_path):
    model = make_cnn()
    samples = make_samples(model, 4)
    for form in (peer.QuantFormat.QDQ, peer.QuantFormat.QOperator):
        out = tmp_path / f"{form}.onnx"
        peer.quantize_static(copy.deepcopy(model), str(out), PeerReader(samples), quant_format=form)
        found = bitwright.compare(model, out, data=samples)
        assert {"p1", "c2", "g", "y"} <= found.tensors.keys()
        # A Relu that its quantizer does is no error of what comes before it.
        assert min(tensor.sqnr for tensor in found.tensors.values()) > 25
        assert all(tensor.local_sqnr > 25 for tensor in found.tensors.values())


def test_renamed_tensors_are_matched_by_structure():
    model, result, samples = quantized_cnn()
    twin = graph.clone_model(result.model)
    twin.metadata_props.clear()
    kept = {value.name for value in (*twin.graph.inputs, *twin.graph.outputs)}
    for index, (name, value) in enumerate(list(graph.iter_values(twin))):
        if name not in kept:
            value.name = f"t{index}"
    for index, item in enumerate(twin.graph):
        item.name = f"n{index}"
    by_name = bitwright.compare(model, result.model, data=samples)
    by_structure = bitwright.compare(model, twin, data=samples)
    assert by_structure.tensors.keys() == by_name.tensors.keys()
    for name, tensor in by_name.tensors.items():
        assert by_structure.tensors[name].local_sqnr == pytest.approx(tensor.local_sqnr, abs=1e-3)
    assert [row.name for row in by_structure.nodes] == [row.name for row in by_name.nodes]


def test_three_products_of_one_input_are_told_apart_by_their_weights():
    model = make_transformer()
    samples = make_samples(model, 2)
    result = bitwright.quantize(model, data=samples, recipe="int8", holdout=False)
    twin = graph.clone_model(result.model)
    kept = {value.name for value in (*twin.graph.inputs, *twin.graph.outputs)}
    for index, (name, value) in enumerate(list(graph.iter_values(twin))):
        if name not in kept:
            value.name = f"t{index}"
    found = bitwright.compare(model, twin, data=samples)
    products = {name: error for name, error in found.weights.items() if name.startswith("w_")}
    assert len(products) >= 4
    assert min(products.values()) > 30


def test_a_model_that_is_quantized_at_run_time_is_compared():
    model = make_cnn()
    samples = make_samples(model, 2)
    result = bitwright.quantize(model, recipe="int8-dynamic", force_dynamic=True)
    found = bitwright.compare(model, result.model, data=samples)
    rows = {row.name: row for row in found.nodes}
    assert rows["conv2"].action == "quantized" and rows["pool1"].action == "float"
    assert rows["conv2"].local_sqnr > rows["conv2"].sqnr > 30
    assert rows["conv2"].used is None


def test_bodies_of_if_nodes_run_in_the_woven_graph():
    then = onnx.helper.make_graph(
        [node("Relu", ["c1"], ["t"])], "then", [], [onnx.helper.make_empty_tensor_value_info("t")]
    )
    other = onnx.helper.make_graph(
        [node("Neg", ["c1"], ["e"])], "else", [], [onnx.helper.make_empty_tensor_value_info("e")]
    )
    model = build(
        [
            node("MatMul", ["x", "w1"], ["c1"], name="first"),
            node("ReduceMax", ["c1"], ["m"], name="max", keepdims=0),
            node("Greater", ["m", "zero"], ["yes"], name="greater"),
            node("If", ["yes"], ["i"], name="if", then_branch=then, else_branch=other),
            node("MatMul", ["i", "w2"], ["y"], name="second"),
        ],
        {"x": [1, 16]},
        {"y": [1, 16]},
        {"w1": weight(16, 16), "w2": weight(16, 16, seed=1), "zero": np.float32(0)},
    )
    samples = make_samples(model, 3)
    result = bitwright.quantize(model, data=samples, recipe="int8", holdout=False)
    found = bitwright.compare(model, result.model, data=samples, plan=result.plan)
    assert {row.name for row in found.nodes} >= {"first", "second"}
    assert all(row.local_sqnr > 25 for row in found.nodes if row.local_sqnr is not None)
    # What is inside is not compared, and not passed over in silence.
    inside = next(rows for why, rows in found.left_out.items() if "body of If 'if'" in why)
    assert {row.op for row in inside} == {"Relu", "Neg"} and len(inside) == 2
    assert all(row.sqnr is None and row.action == "float" for row in inside)
    assert [row.index for row in found.nodes] == list(range(len(found.nodes)))


def test_every_node_is_compared_or_says_why_not():
    model, result, samples = quantized_cnn(base="int8-dynamic")
    found = bitwright.compare(model, result.model, data=samples)
    assert all((row.sqnr is None) == (row.unmeasured is not None) for row in found.nodes)
    assert sum(map(len, found.left_out.values())) == sum(row.sqnr is None for row in found.nodes)
    assert found.left_out


def test_equalized_models_are_compared_with_the_equalized_float_model():
    model = make_cnn()
    samples = make_samples(model, 2)
    result = bitwright.quantize(
        model, data=samples, recipe={"base": "int8", "equalize": {}}, holdout=False
    )
    found = bitwright.compare(model, result.model, data=samples)
    assert min(tensor.sqnr for tensor in found.tensors.values()) > 25


@pytest.mark.parametrize("layer", ["w1", "w2"])
def test_a_layer_with_one_huge_weight_channel_is_named_first(layer):
    model = make_cnn(channels=16)
    for tensor in model.graph.initializer:
        if tensor.name == layer:
            array = onnx.numpy_helper.to_array(tensor).copy()
            array[3] *= 1000
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    samples = make_samples(model, 4)
    result = bitwright.quantize(model, data=samples, recipe="int8", holdout=False)
    found = bitwright.compare(model, result.model, data=samples)
    assert found.worst(1)[0].name == f"conv{layer[1]}"


def test_parts_that_are_closed_behind_each_lot_of_samples_change_no_figure(monkeypatch):
    model, result, samples = quantized_cnn()
    monkeypatch.setattr(side_by_side, "_MOST_NODES", 3)  # of a part
    kept = bitwright.compare(model, result.model, data=samples)
    monkeypatch.setattr(part_runner, "OPEN_PARTS", 0)
    monkeypatch.setattr(part_runner, "LOT", 2)  # of five
    opened = []
    open_part = part_runner._open_part
    monkeypatch.setattr(
        part_runner, "_open_part", lambda *a, **k: opened.append(a[1]) or open_part(*a, **k)
    )
    assert bitwright.compare(model, result.model, data=samples).to_dict() == kept.to_dict()
    parts = len(set(opened))
    assert parts > 2 and len(opened) == 3 * parts


def test_what_is_found_is_plain_data():
    model, result, samples = quantized_cnn()
    found = bitwright.compare(model, result.model, data=samples[:1])
    document = found.to_dict()
    assert document["samples"] == 1
    assert [row["name"] for row in document["nodes"]] == [row.name for row in found.nodes]
    assert "Loses most: " in found.summary(1)
    try:
        frame = found.to_pandas()
    except MissingPackageError as error:
        assert "pip install pandas" in str(error)
    else:
        assert list(frame["name"]) == [row.name for row in found.nodes]


def test_models_that_take_other_samples_are_refused(tmp_path):
    model, result, samples = quantized_cnn()
    twin = graph.clone_model(result.model)
    twin.metadata_props.clear()
    twin.graph.inputs[0].shape = ir.Shape([1, 12, 12, 3])
    with pytest.raises(ModelError, match=r"'x' is float\[1,3,12,12\] in the float model and float"):
        bitwright.compare(model, twin, data=samples)
    twin.graph.inputs[0].name = "image"
    with pytest.raises(ModelError, match="the quantized model has no input 'x'"):
        bitwright.compare(model, twin, data=samples)


def test_no_data_and_no_budget_are_refused():
    model, result, samples = quantized_cnn()
    with pytest.raises(DataError, match="needs samples"):
        bitwright.compare(model, result.model, data=None)
    with pytest.raises(DataError, match="must be positive"):
        bitwright.compare(model, result.model, data=samples, memory_budget=0)


def test_models_without_a_common_tensor_are_refused():
    one = build([node("Relu", ["x"], ["y"], name="a")], {"x": [1, 3]}, {"y": [1, 3]})
    other = build([node("Neg", ["x"], ["z"], name="b")], {"x": [1, 3]}, {"z": [1, 3]})
    with pytest.raises(ModelError, match="no tensor in common"):
        bitwright.compare(one, other, data=np.zeros((1, 3), np.float32))


def test_both_opsets_are_brought_together(tmp_path):
    model = make_cnn(opset=11)
    samples = make_samples(model, 2)
    result = bitwright.quantize(model, data=samples, recipe="a16w8", holdout=False)
    assert graph.opset_of(result.model) == 21
    result.model.metadata_props.clear()
    found = bitwright.compare(model, result.model, data=samples)
    assert found.tensors["c2"].sqnr > 40


@pytest.mark.parametrize("written", ["qdq", "qoperator"])
def test_every_node_knows_the_nodes_whose_results_it_reads_through_pairs(written):
    model, result, samples = quantized_cnn(format=written)
    found = bitwright.compare(model, result.model, data=samples[:1]).nodes
    # A chain but for the residual Add, which also reads the pool.
    chain = [(), *((place,) for place in range(len(found) - 1))]
    assert [row.reads for row in found] == [*chain[:3], (1, 2), *chain[4:]]
    assert (found[1].op, found[3].op) == ("MaxPool", "Add")
