"""Reports about real pairs of models."""

import math

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.helper import make_node
from support.models import build, make_gate, make_mlp, make_samples
from support.peer_runs import PeerReader, peer

import bitwright
from bitwright import (
    DataError,
    FrontPoint,
    ModelError,
    OutputError,
    PlanError,
    TargetError,
    TuneResult,
)
from bitwright.assess.judge.sequential import Drop

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def demo():
    return bitwright.load_demo()


@pytest.fixture(scope="module")
def sabotaged(demo):
    """The demo's model with one channel of one weight a thousand times too large."""
    model = onnx.load(demo.model_path)
    for tensor in model.graph.initializer:
        if tensor.name == "deep_a_weight":
            array = numpy_helper.to_array(tensor).copy()
            array[3] *= 1000
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return model


@pytest.fixture(scope="module")
def result(demo):
    return bitwright.quantize(demo.model_path, data=demo.calibration[:32], recipe="int8")


def test_a_sabotaged_layer_is_named_first(sabotaged, demo):
    result = bitwright.quantize(sabotaged, data=demo.calibration[:32], recipe="int8")
    report = bitwright.write_report(
        sabotaged, result.model, data=demo.calibration[:8], latency=False
    )
    data = report.to_dict()
    assert data["nodes"][data["worst"][0]]["name"] == "deep_a_conv"
    assert "deep_a_conv" in report.verdict.sentence
    commands = {advice.title: advice.command for advice in report.advice}
    assert "Leave this node float" not in commands
    channels = commands["Give each channel of a weight its own scale"]
    assert channels.endswith("--set per_channel=true")


def test_following_the_advice_repairs_the_model(sabotaged, demo):
    recipe = {"base": "int8", "per_channel": True}
    before = bitwright.quantize(sabotaged, data=demo.calibration[:32], recipe="int8")
    after = bitwright.quantize(sabotaged, data=demo.calibration[:32], recipe=recipe)
    assert after.outputs[0].sqnr > before.outputs[0].sqnr + 3


@pytest.mark.slow
def test_a_page_has_everything_about_a_real_model(tmp_path, result, demo):
    path = tmp_path / "report.html"
    report = bitwright.write_report(
        demo.model_path, result.model, path, data=demo.calibration[:4], plan=result.plan
    )
    assert path.read_text(encoding="utf-8") == report.to_html()
    data = report.to_dict()
    assert data["samples"] == 4 and data["outputs"][0]["name"] == "logits"
    assert data["clock"]["float_ms"] > 0 and data["clock"]["ratio"] > 0
    assert data["coverage"]["nodes"] == len(result.plan.nodes)
    assert data["float"]["name"] == demo.model_path.name
    assert data["plan"]["json"] and data["settings"]["activation"] == "uint8"
    conv = next(node for node in data["nodes"] if node["name"] == "stem_conv")
    assert [label for label, _ in conv["tensors"]] == ["input", "weight", "output"]
    for label, place in conv["tensors"]:
        tensor = data["tensors"][place]
        assert tensor["histogram"]["values"] > 0 and tensor["range"], label
    # A batch norm was folded into it: the histogram is of the weight that was quantized.
    _, place = conv["tensors"][1]
    assert data["tensors"][place]["clipped"] == 0


def test_a_report_proposes_what_it_has_tried_out(sabotaged, demo, tmp_path):
    result = bitwright.quantize(sabotaged, data=demo.calibration[:32], recipe="int8")
    page = tmp_path / "report.html"
    report = bitwright.save_report(result, page, latency=False, sensitivity=True)
    found = report.to_dict()["sensitivity"]
    assert found["proposal"]["nodes"] and found["ranking"][0]["place"] is not None
    plan = tmp_path / "report.plan.json"
    assert report.advice[0].title.startswith("Fall back ") and str(plan) in report.advice[0].command
    better = bitwright.apply_plan(plan, sabotaged, data=demo.calibration[:8])
    assert better.outputs[0].sqnr > result.outputs[0].sqnr + 3
    assert report.advice[0].command.split(" -o ")[0] in page.read_text(encoding="utf-8")


def test_trying_out_needs_the_plan_and_overwrites_none(demo, result, tmp_path):
    with pytest.raises(PlanError, match="give that plan"):
        bitwright.write_report(
            demo.model_path, result.model, data=demo.calibration[:2], sensitivity=True
        )
    result.plan.save(tmp_path / "r.plan.json")
    with pytest.raises(OutputError, match="would overwrite"):
        bitwright.write_report(
            demo.model_path,
            result.model,
            tmp_path / "r.html",
            data=demo.calibration[:2],
            plan=tmp_path / "r.plan.json",
            sensitivity=True,
        )


def test_a_model_in_memory_has_its_own_name_and_size(demo, result):
    report = bitwright.write_report(
        demo.model_path, result.model, data=demo.calibration[:2], latency=False
    )
    assert report.subject.quantized_name == "quantized.onnx"
    assert report.subject.quantized_bytes < 0.5 * report.subject.float_bytes


def test_the_result_of_a_run_reports_on_the_samples_it_was_measured_on(tmp_path, result):
    path = tmp_path / "report.html"
    report = bitwright.save_report(result, path, latency=False)
    assert path.stat().st_size > 50_000
    assert report.subject.samples == result.samples
    [told], [again] = result.outputs, report.subject.outputs
    assert again.sqnr == pytest.approx(told.sqnr, abs=0.05)


@pytest.mark.parametrize("recipe", ["npu-cnn", "xint8", "int8-dynamic"])
@pytest.mark.sampled(1)
def test_every_kind_of_model_has_a_report(recipe, demo):
    data, force = demo.calibration[:16], recipe == "int8-dynamic"
    result = bitwright.quantize(demo.model_path, data=data, recipe=recipe, force_dynamic=force)
    report = bitwright.write_report(
        demo.model_path, result.model, data=demo.calibration[:4], plan=result.plan, latency=False
    )
    assert report.subject.outputs[0].sqnr > 20
    assert len(report.subject.tensors) >= 8
    assert "<h1>" in report.to_html()


def test_a_written_model_says_itself_why_nodes_are_float(demo, tmp_path):
    file = tmp_path / "q.onnx"
    options = {"data": demo.calibration[:8], "purpose": "size"}
    recipe = {"select": {"exclude": ["stem_conv", "re:deep.*"]}}
    made = bitwright.quantize(demo.model_path, file, recipe=recipe, **options)
    page = bitwright.write_report(
        demo.model_path, file, data=demo.calibration[:2], latency=False
    ).to_dict()
    told = {(one["reason"], one["op"]): one["nodes"] for one in page["coverage"]["reasons"]}
    assert told == {(why, op): count for (op, why), count in made.skipped.items()} and told
    stem = next(node for node in page["nodes"] if node["name"] == "stem_conv")
    assert stem["reason"] == made.plan.nodes["stem_conv"].reason
    for (op, why), count in made.skipped.items():
        assert f"Left float: {op} x{count} because {why}" in bitwright.inspect(file).summary()


def test_a_model_of_another_tool_has_a_report(tmp_path):
    model = make_mlp()
    samples = make_samples(model, 6)
    onnx.save(model, tmp_path / "m.onnx")
    paths = (str(tmp_path / name) for name in ("m.onnx", "q.onnx"))
    peer.quantize_static(*paths, PeerReader(samples))
    report = bitwright.write_report(
        tmp_path / "m.onnx", tmp_path / "q.onnx", data=samples, latency=False
    )
    data = report.to_dict()
    assert data["recipe"] is None
    assert any(t["role"] == "weight" and "histogram" in t for t in data["tensors"])
    assert any(t["role"] == "activation" and "histogram" in t for t in data["tensors"])


def test_a_page_has_the_verdict_of_the_target(demo, result, tmp_path):
    given = {"data": demo.calibration[:2], "latency": False}
    page = tmp_path / "r.html"
    report = bitwright.write_report(
        demo.model_path, result.model, page, target="nvidia-tensorrt", **given
    )
    found = bitwright.verify(result.model, "nvidia-tensorrt")
    assert not found.ok and report.subject.target == found.summarize()
    target = report.to_dict()["target"]
    assert target["sentence"] == found.describe() and target["level"] == "poor"
    # What is the same of several nodes is one row, and none of them is lost.
    named = [(row["rule"], node) for row in target["findings"] for node in row["nodes"]]
    assert sorted(named) == sorted((finding.rule, finding.node) for finding in found.findings)
    assert len(target["findings"]) < len(found.findings)
    text = page.read_text(encoding="utf-8")
    assert 'id="target-title"' in text and "uint8; allowed: int8" in text
    saved = bitwright.save_report(result, page, latency=False, target="arm-cpu")
    assert saved.to_dict()["target"]["level"] == "good"
    assert "Target</h2>" in page.read_text(encoding="utf-8")


def test_a_target_that_there_is_not_is_refused_before_the_work(demo, result):
    with pytest.raises(TargetError, match="Did you mean 'arm-cpu'"):
        bitwright.write_report(demo.model_path, result.model, data="no such", target="arm-cpus")


def test_data_can_be_read_only_once(demo, result):
    once = ({"image": image[np.newaxis]} for image in demo.calibration[:3])
    report = bitwright.write_report(demo.model_path, result.model, data=once, latency=False)
    assert report.subject.samples == 3


def test_without_data_it_is_refused_in_a_sentence(demo, result):
    with pytest.raises(DataError, match="a report runs both models and needs samples"):
        bitwright.write_report(demo.model_path, result.model)
    with pytest.raises(DataError, match="no samples to report on; give data"):
        forced = bitwright.quantize(demo.model_path, recipe="int8-dynamic", force_dynamic=True)
        bitwright.save_report(forced, "x.html")


def test_two_models_that_have_nothing_in_common_are_refused(result):
    with pytest.raises(ModelError, match="input"):
        bitwright.write_report(make_mlp(), result.model, data=make_samples(make_mlp(), 2))


def test_a_place_that_cannot_be_written_is_refused_before_the_work(demo, result, tmp_path):
    with pytest.raises(bitwright.OutputError):
        bitwright.write_report(
            demo.model_path, result.model, tmp_path / "no" / "such.html", data=demo.calibration[:2]
        )


def test_results_show_themselves_in_notebooks(result):
    html = result._repr_html_()
    assert "logits" in html and "Conv" in html and "<script" not in html


def test_results_become_data_frames(result):
    pandas = pytest.importorskip("pandas")
    frame = result.to_pandas()
    assert isinstance(frame, pandas.DataFrame) and len(frame) == len(result.plan.nodes)
    assert set(frame["action"]) <= {"quantize", "absorb", "float"}


def test_comparisons_show_themselves_in_notebooks(demo, result):
    found = bitwright.compare(demo.model_path, result.model, data=demo.calibration[:2])
    html = found._repr_html_()
    assert "logits" in html and found.worst(1)[0].name in html


@pytest.mark.parametrize(
    ("recipe", "kind"),
    [
        ({"base": "xint8", "format": "fix-neuron"}, "int8"),
        ("bfp16", "16 bits in blocks of 8 with an exponent"),
    ],
)
def test_tensors_that_one_op_rounds_are_drawn(recipe, kind):
    model = make_mlp()
    samples = make_samples(model, 4)
    result = bitwright.quantize(model, data=samples, recipe=recipe)
    report = bitwright.write_report(
        model, result.model, data=samples, plan=result.plan, latency=False
    )
    node = next(node for node in report.subject.nodes if node.measured.op in ("MatMul", "Gemm"))
    drawn = {label: report.subject.tensors[key] for label, key in node.tensors}
    assert {"input", "weight"} <= set(drawn)
    assert drawn["weight"].qtype == kind and drawn["weight"].histogram is not None
    assert (drawn["input"].range is None) == (recipe == "bfp16")
    assert "<html" in report.to_html()


def test_a_tuned_model_has_its_front_on_the_page(tmp_path):
    demo = bitwright.load_demo()
    made = bitwright.quantize(demo.model_path, data=demo.calibration[:8], progress=False)
    point = FrontPoint(cost=1.0, error=0.1, measured=Drop(40, 0.005, math.nan), verdict="pass")
    tuned = TuneResult(
        met=True, is_float=False, metric="top1", max_drop=0.01, purpose="speed", float_score=0.9,
        float_cost=2.0, points=(point,), chosen=0, final=None, probes=(), loss_units=(),
        evaluations=1, planned_evaluations=12, seconds=1.0, stopped=None, notes=(),
        model=made.model, plan=made.plan, source=demo.model_path,
        command="bitwright apply model.onnx plan.json -o out.onnx",
    )  # fmt: skip
    with pytest.raises(DataError, match="no samples to report on; give data"):
        bitwright.save_report(tuned, tmp_path / "page.html")
    page = tmp_path / "page.html"
    report = bitwright.save_report(tuned, page, data=demo.calibration[:2], latency=False)
    assert report.to_dict()["tuning"]["points"][0]["drop"] == 0.005
    assert "Cost and top1" in page.read_text(encoding="utf-8")


def test_rows_name_the_nodes_of_the_given_file(demo, result):
    report = bitwright.write_report(
        demo.model_path, result.model, data=demo.calibration[:1], latency=False
    )
    stem = report.to_dict()["nodes"][0]
    assert stem["file"] == [
        ["stem_conv", "Conv"], ["stem_norm", "BatchNormalization"], ["stem_relu", "Relu"]
    ]  # fmt: skip


def test_a_node_is_not_blamed_for_what_its_reader_does_not_tell_apart():
    """Far below and above, a hard-sigmoid gives the same: its input needs no levels there."""
    model = make_gate(RNG)
    samples = [{"x": RNG.normal(0, 1, (1, 4, 8, 8)).astype(np.float32)} for _ in range(8)]
    result = bitwright.quantize(model, data=samples, recipe="int8")
    report = bitwright.write_report(
        model, result.model, data=samples, plan=result.plan, latency=False
    )
    conv = next(node for node in report.subject.nodes if node.measured.name == "conv")
    assert conv.alone > 25 and conv.measured.unmeasured is None
    assert "most sensitive" not in report.verdict.sentence
    assert not any("varied data" in advice.title for advice in report.advice)
    assert dict(conv.facts)["output"] == "1x4x8x8" and dict(conv.facts)["pads"] == "[1, 1, 1, 1]"


def test_advice_on_random_data_has_the_shapes_that_were_given_and_no_verdict(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(
        build(
            [make_node("Conv", ["x", "w"], ["y"], name="conv")],
            {"x": ["n", 4, None, None]},
            {"y": ["n", 4, None, None]},
            {"w": RNG.normal(0, 1, (4, 4, 3, 3)).astype(np.float32)},
        ),
        path,
    )
    random = bitwright.RandomData(count=2, shapes={"x": (1, 4, 8, 8)})
    result = bitwright.quantize(path, data=random, purpose="size")
    report = bitwright.write_report(
        path, result.model, data=random, plan=result.plan, latency=False
    )
    assert report.verdict.level == "unknown" and report.verdict.sentence.startswith("Not judged")
    assert report.subject.data_option == "--random-data 2 --input-shape x=1x4x8x8"
