"""Sensitivities, against models that are written for each node one by one."""

import math

import numpy as np
import pytest
from support import language_models
from support.elsewhere import Elsewhere
from support.models import build, make_cnn, make_samples, make_transformer, weight
from support.models import node as make_node

import bitwright
from bitwright.decide import left_float
from bitwright.errors import DataError, PlanError
from bitwright.graph import load_model, opset_of
from bitwright.jobs.qat import open_for_plan
from bitwright.plan import QuantPlan
from bitwright.run import Session


def fall_back(model, plan, names, to="float"):
    return left_float.fall_back(open_for_plan(model, plan).model, plan, names, to)


def error_of(plan, model, samples):
    """Return noise over signal of what a plan gives, from outputs that are all kept."""
    outputs = bitwright.apply_plan(plan, model, data=samples, limit=len(samples)).outputs
    return np.mean([10 ** (-output.sqnr / 10) for output in outputs])


def planned_cnn(**recipe):
    model = make_cnn()
    samples = make_samples(model, 4)
    plan = bitwright.make_plan(model, data=samples, recipe={"base": "int8", **recipe})
    return model, plan, samples


@pytest.fixture(scope="module")
def cnn():
    model, plan, samples = planned_cnn()
    return model, plan, samples, bitwright.find_sensitivity(model, plan, data=samples)


def test_without_a_node_is_what_the_plan_without_it_gives(cnn):
    model, plan, samples, found = cnn
    assert [node.name for node in found.nodes] == [
        name for name, node in plan.nodes.items() if node.action == "quantize"
    ]
    assert found.quantized == pytest.approx(error_of(plan, model, samples), rel=1e-4)
    for node in found.nodes:
        changed = fall_back(model, plan, [node.name])
        assert node.without == pytest.approx(error_of(changed, model, samples), rel=1e-4)


def test_alone_a_node_is_what_the_plan_with_only_it_gives(cnn):
    model, plan, samples, found = cnn
    # Its result leaves the model, so all of it shows: inputs, weight and output are rounded.
    last = found.nodes[-1]
    others = [node.name for node in found.nodes[:-1]]
    assert last.alone == pytest.approx(
        error_of(fall_back(model, plan, others), model, samples), rel=1e-4
    )
    for node in found.nodes[:-1]:
        others = [other.name for other in found.nodes if other is not node]
        # The plan does not round a result that only float nodes read; the measure does.
        assert node.alone > 0.5 * error_of(fall_back(model, plan, others), model, samples)


def test_small_groups_of_variants_give_the_same(cnn):
    model, plan, samples, found = cnn
    again = bitwright.find_sensitivity(model, plan, data=samples, memory_budget=1)
    for one, other in zip(found.nodes, again.nodes, strict=True):
        assert other.alone == pytest.approx(one.alone, rel=1e-3)
        assert other.without == pytest.approx(one.without, rel=1e-3)


def test_an_engine_gives_the_same_to_the_bit(cnn):
    model, plan, samples, found = cnn
    seen = []
    again = bitwright.find_sensitivity(
        model,
        plan,
        data=samples,
        engine=Elsewhere(),
        progress=lambda done, total: seen.append((done, total)),
    )
    assert again.nodes == found.nodes and again.quantized == found.quantized
    assert seen[-1] == (2 * len(found.nodes), 2 * len(found.nodes)) and seen == sorted(seen)


def test_only_the_worst_nodes_are_measured_on_request(cnn):
    model, plan, samples, found = cnn
    few = bitwright.find_sensitivity(model, plan, data=samples, candidates=2)
    assert len(few.nodes) == 2
    known = {node.name: node for node in found.nodes}
    for node in few.nodes:
        assert node.without == pytest.approx(known[node.name].without, rel=1e-3)


def test_integer_operators_are_measured_too():
    model, plan, samples = planned_cnn(format="qoperator")
    found = bitwright.find_sensitivity(model, plan, data=samples)
    assert found.quantized == pytest.approx(error_of(plan, model, samples), rel=1e-4)
    last = found.nodes[-1]
    changed = fall_back(model, plan, [last.name])
    assert last.without == pytest.approx(error_of(changed, model, samples), rel=1e-4)


@pytest.mark.parametrize("format", ["qdq", "qoperator"])
def test_a_node_that_is_float_between_integers_is_measured_with_float_weights(format):
    """ONNX Runtime would store them in 8 bits, with one scale: far worse than what falls back."""
    first, wide = weight(8, 3, 3, 3, seed=1), weight(8, 8, 3, 3, seed=2)
    first[0], wide[:, 0] = 0, 100  # large weights for a channel that is always zero
    model = build(
        [
            make_node("Conv", ["x", "w1"], ["a"], name="first"),
            make_node("MaxPool", ["a"], ["p"], name="pool", kernel_shape=[2, 2]),
            make_node("Conv", ["p", "w2"], ["b"], name="wide"),
            make_node("Conv", ["b", "w3"], ["y"], name="last"),
        ],
        {"x": [1, 3, 10, 10]},
        {"y": [1, 8, 3, 3]},
        {"w1": first, "w2": wide, "w3": weight(8, 8, 3, 3, seed=3)},
    )
    samples = make_samples(model, 2)
    recipe = {"base": "int8", "format": format}
    plan = bitwright.make_plan(model, data=samples, recipe=recipe)
    found = {n.name: n for n in bitwright.find_sensitivity(model, plan, data=samples).nodes}

    written = bitwright.apply_plan(fall_back(model, plan, ["wide"]), model).model
    exact = Session(written, level="disabled")
    float_session = Session(load_model(model))
    noise = signal = 0.0
    for sample in samples:
        (expected,) = float_session.run(sample).values()
        (actual,) = exact.run(sample).values()
        noise += float(np.square(expected - actual).sum())
        signal += float(np.square(expected).sum())
    assert found["wide"].without == pytest.approx(noise / signal, rel=0.15)


def test_models_that_are_quantized_at_run_time_are_measured_too():
    model = make_transformer()
    samples = make_samples(model, 2)
    plan = bitwright.make_plan(model, recipe="int8-dynamic")
    found = bitwright.find_sensitivity(model, plan, data=samples)
    assert len(found.nodes) >= 4
    for node in found.nodes[:2]:
        changed = fall_back(model, plan, [node.name])
        assert node.without == pytest.approx(error_of(changed, model, samples), rel=1e-3)


def test_the_proposed_plan_regains_what_it_says_and_can_be_applied(cnn, tmp_path):
    model, plan, samples, found = cnn
    better = found.proposal(0.5, most=0.3)
    assert better.reached and better.regained >= 0.5
    assert len(better.nodes) <= 0.3 * len(plan.nodes)
    better.plan.save(tmp_path / "better.json")
    again = QuantPlan.load(tmp_path / "better.json")
    assert error_of(again, model, samples) == pytest.approx(better.after, rel=1e-6)
    assert better.sqnr == pytest.approx(-10 * math.log10(better.after))
    assert f"{len(better.nodes)} node" in better.describe()
    for name in better.nodes:
        assert again.nodes[name].action == "float"
        assert again.nodes[name].reason.startswith("fell back")


def test_what_is_regained_has_an_interval_from_eight_samples_on():
    demo = bitwright.load_demo()
    plan = bitwright.make_plan(demo.model_path, data=demo.calibration[:8])
    for samples in (7, 8):
        data = demo.calibration[:samples]
        found = bitwright.find_sensitivity(demo.model_path, plan, data=data, candidates=2)
        better = found.proposal(0.2, most=0.3)
        if samples < 8:
            assert better.interval is None and "% of the loss" in better.describe()
        else:
            low, high = better.to_dict()["interval"]
            assert low <= better.regained <= high
            assert f"({100 * low:.0f} to {100 * high:.0f}) of the loss" in better.describe()


def test_what_cannot_be_reached_is_said(cnn):
    *_, found = cnn
    best = found.proposal(0.9999, most=0.12)
    assert not best.reached
    assert len(best.nodes) == 1


def test_nothing_falls_back_where_nothing_helps():
    model = build(
        [make_node("MatMul", ["x", "w"], ["y"], name="product")],
        {"x": [1, 4]},
        {"y": [1, 4]},
        {"w": np.eye(4, dtype=np.float32)},
    )
    samples = [{"x": np.array([[0, 1, 2, 255]], np.float32)}]
    plan = bitwright.make_plan(model, data=samples, recipe="int8")
    found = bitwright.find_sensitivity(model, plan, data=samples)
    best = found.proposal()
    assert best.nodes == () and best.plan == plan
    assert best.describe().startswith("no fallback")


def test_sixteen_bits_keep_the_range_and_raise_the_opset(cnn):
    model, plan, samples, found = cnn
    wide = fall_back(model, plan, ["fc"], "uint16")
    for name in ("f", "g"):
        before, after = plan.parameters(name), wide.parameters(name)
        assert after.qtype.name == "uint16"
        for code, wider in ((before.qtype.lowest, 0), (before.qtype.highest, 65535)):
            assert (wider - after.zero_point) * after.scale == pytest.approx(
                (code - before.zero_point) * before.scale
            )
    better = found.proposal(0.3, most=0.5, to="uint16")
    assert better.loss < better.loss_before
    result = bitwright.apply_plan(better.plan, model, data=samples, limit=len(samples))
    assert opset_of(result.model) >= 21
    assert result.outputs[0].sqnr == pytest.approx(better.sqnr, abs=1e-6)


def test_integer_operators_have_no_sixteen_bits():
    model, plan, _ = planned_cnn(format="qoperator")
    with pytest.raises(PlanError, match="no 16-bit activations"):
        fall_back(model, plan, ["fc"], "uint16")


def test_a_relu_that_its_quantizer_did_is_done_again_only_behind_a_float_node(cnn):
    model, plan, samples, _ = cnn
    assert plan.nodes["relu2"].action == "absorb"
    behind, before = fall_back(model, plan, ["average"]), fall_back(model, plan, ["residual"])
    assert behind.nodes["relu2"].action == "absorb"
    assert before.nodes["relu2"].action == "float"
    for changed in (behind, before):
        assert error_of(changed, model, samples) < 2 * error_of(plan, model, samples)


def test_a_fallback_of_everything_gives_the_float_model(cnn):
    model, plan, samples, _ = cnn
    names = [name for name, node in plan.nodes.items() if node.action == "quantize"]
    empty = fall_back(model, plan, names)
    assert not empty.tensors
    assert error_of(empty, model, samples) < 1e-12


def normalized_chain(layers=4, channels=16):
    """Convolutions, each with a norm behind it that makes up for the size of its channels."""
    constants = {"scale": np.ones(channels, np.float32), "shift": np.zeros(channels, np.float32)}
    nodes, value = [], "x"
    for index in range(layers):
        constants[f"w{index}"] = weight(channels, 3 if index == 0 else channels, 3, 3, seed=index)
        nodes += [
            make_node("Conv", [value, f"w{index}"], [f"c{index}"], name=f"conv{index}"),
            make_node(
                "InstanceNormalization",
                [f"c{index}", "scale", "shift"],
                [f"n{index}"],
                name=f"norm{index}",
            ),
            make_node("Relu", [f"n{index}"], [f"r{index}"], name=f"relu{index}"),
        ]
        value = f"r{index}"
    nodes.append(make_node("GlobalAveragePool", [value], ["y"], name="average"))
    return nodes, constants


@pytest.mark.parametrize("layer", [0, 2, 3])
def test_a_sabotaged_layer_is_named_first(layer):
    nodes, constants = normalized_chain()
    constants[f"w{layer}"][3] *= 1000
    model = build(nodes, {"x": [1, 3, 20, 20]}, {"y": [1, 16, 1, 1]}, constants)
    samples = make_samples(model, 4)
    plan = bitwright.make_plan(model, data=samples, recipe="int8")
    found = bitwright.find_sensitivity(model, plan, data=samples)
    assert found.ranking[0].name == f"conv{layer}"
    better = found.proposal(0.8, most=0.1)
    assert better.reached
    assert better.nodes == (f"conv{layer}",)


@pytest.mark.parametrize("recipe", ["int4-rtn", "int4-gptq", "int4-awq"])
@pytest.mark.sampled(1)
def test_weight_only_plans_are_measured_node_by_node(recipe):
    model, samples = language_models.make_block(depth=1), language_models.make_samples(4)
    plan = bitwright.make_plan(model, data=samples, recipe=recipe)
    found = bitwright.find_sensitivity(model, plan, data=samples)
    quantized = {name for name, node in plan.nodes.items() if node.action == "quantize"}
    assert {node.name for node in found.nodes} == quantized
    # Data is used for rounding, and `apply_plan` holds some of it back to measure on.
    close = 0.25
    assert found.quantized == pytest.approx(error_of(plan, model, samples), rel=close)
    worst = found.ranking[0]
    changed = fall_back(model, plan, [worst.name])
    assert worst.without == pytest.approx(error_of(changed, model, samples), rel=close)


@pytest.mark.parametrize("to", ["float", "int8"])
def test_weights_fall_back_to_float_or_to_eight_bits(to, tmp_path):
    model, samples = language_models.make_block(), language_models.make_samples(4)
    recipe = {"base": "int4-rtn", "weights": {"embeddings": True}}
    plan = bitwright.make_plan(model, recipe=recipe)
    found = bitwright.find_sensitivity(model, plan, data=samples)
    assert "embed" in {node.name for node in found.nodes}
    better = found.proposal(0.5, most=0.5, to=to)
    assert better.reached and 0 < len(better.nodes) <= 4
    better.plan.save(tmp_path / "plan.json")
    applied = bitwright.apply_plan(tmp_path / "plan.json", model, data=samples)
    assert applied.outputs[0].sqnr == pytest.approx(better.sqnr, abs=0.1)
    bits = {node: w.bits for w in applied.plan.weights.values() for node in w.nodes}
    assert all(bits.get(name) == (None if to == "float" else 8) for name in better.nodes)
    with pytest.raises(PlanError, match="float already"):
        fall_back(model, plan, ["embed"], "uint16")


def test_eight_bit_weights_are_for_weight_only_plans(cnn):
    model, plan, *_ = cnn
    with pytest.raises(PlanError, match="weight-only"):
        fall_back(model, plan, ["conv1"], "int8")


def test_what_is_found_is_plain_data(cnn):
    *_, found = cnn
    document = found.to_dict()
    assert [row["name"] for row in document["ranking"]] == [n.name for n in found.ranking]
    assert document["samples"] == 4


def test_bad_input_is_told_in_a_sentence(cnn):
    model, plan, samples, found = cnn
    with pytest.raises(DataError, match="runs every node and needs samples"):
        bitwright.find_sensitivity(model, plan, data=None)
    with pytest.raises(DataError, match="at least one sample"):
        bitwright.find_sensitivity(model, plan, data=samples, limit=0)
    with pytest.raises(PlanError, match="made for another model"):
        bitwright.find_sensitivity(make_cnn(channels=4), plan, data=samples)
    with pytest.raises(PlanError, match=r"no node 'conv3'\. Did you mean"):
        fall_back(model, plan, ["conv3"])
    with pytest.raises(PlanError, match="between 0 and 1"):
        found.proposal(80)
    assert load_model(model).graph.inputs[0].name == "x"
