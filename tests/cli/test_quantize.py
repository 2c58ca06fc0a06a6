import json

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from support.models import make_cnn

import bitwright


def logits(path, images):
    return ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(
        None, {"image": images}
    )[0]


def test_it_writes_a_model_that_runs_and_says_so(run, model, data, out):
    answer = run("quantize", model, "-o", out, "--data", data, "--for", "size")
    assert answer.code == 0
    assert answer.err == ""
    onnx.checker.check_model(str(out), full_check=True)
    demo = bitwright.load_demo()
    right = np.mean(logits(out, demo.images[:100]).argmax(axis=1) == demo.labels[:100])
    assert right > 0.95
    assert f"Written to: {out}" in answer.out
    assert "Nodes: 20 of 20 quantized, 0 left float" in answer.out
    assert "Size: " in answer.out
    assert "Against float (2 holdout samples): output 'logits'" in answer.out
    assert "Note: folded 7 batch norms" in answer.out
    verdict, ship, time, following = answer.out.splitlines()[-4:]
    assert ship == "Ship it: not known: 2 samples alone were measured"
    faster = "Time: 2.0 × faster than the prepared float model"
    assert time == f"{faster}: 0.50 (0.48 to 0.52) of its time, one thread"
    assert verdict.startswith("Verdict: From 2 samples alone: Good: same answers on 100.0 % (")
    assert verdict.endswith(", 2.0 × faster than the prepared float model.")
    assert following == f"Next: bitwright check {model} {out} --data {data}"


@pytest.mark.parametrize(
    ("words", "level", "following"),
    [
        (["--random-data", "2"], "unknown", "quantize {model} -o {out} --data PATH"),
        (
            [
                *("--random-data", "2", "--target", "arm-cpu", "--exclude", "re:stem.*"),
                *("--effort", "low", "--no-holdout", "--set", "ranges=mse"),
            ],
            "unknown",
            "quantize {model} -o {out} --data PATH --target arm-cpu --exclude 're:stem.*' "
            "--set ranges=mse --no-holdout --effort low",
        ),
        (["--dynamic", "--force-dynamic"], "unknown", "compare {model} {out} --data PATH"),
        (
            ["--data", "{data}", "--set", "min_real_range=1000"],
            "poor",
            "report {model} {out} -o report.html --data {data}",
        ),
        (
            ["--data", "{data}", "--set", "min_real_range=1000", "--target", "arm-cpu"],
            "poor",
            "report {model} {out} -o report.html --data {data} --target arm-cpu",
        ),
    ],
)
def test_the_next_command_follows_from_the_verdict(run, model, data, out, words, level, following):
    paths = {"model": model, "data": data, "out": out}
    answer = run("quantize", model, "-o", out, "--json", *(word.format(**paths) for word in words))
    assert answer.json["verdict"]["level"] == level
    assert answer.json["next"] == f"bitwright {following.format(**paths)}"


def test_a_pipe_gets_plain_lines(run, model, data, out):
    answer = run("quantize", model, "-o", out, "--data", data)
    assert "\x1b" not in answer.out + answer.err
    assert not set("─│┃━╭╮") & set(answer.out)


def test_json_is_one_object_and_nothing_else(run, model, data, out):
    answer = run("quantize", model, "-o", out, "--data", data, "--for", "size", "--json")
    assert answer.code == 0
    assert answer.err == ""
    assert answer.json["output"] == str(out)
    assert answer.json["quantized"]["Conv"] == 7
    assert answer.json["skipped"] == []
    assert answer.json["outputs"][0]["name"] == "logits"
    assert answer.json["bytes"] == out.stat().st_size
    assert answer.json["float_bytes"] == model.stat().st_size


def test_the_format_qoperator_writes_integer_operators(run, model, data, out, tmp_path):
    answer = run("quantize", model, "-o", out, "--data", data, "--format", "qoperator")
    assert answer.code == 0
    assert {node.op_type for node in onnx.load(out).graph.node} >= {"QLinearConv", "QGemm"}
    plan = tmp_path / "plan.json"
    made = run("plan", model, "-o", plan, "--data", data, "--format", "qoperator")
    assert made.code == 0
    assert bitwright.QuantPlan.load(plan).recipe.format == "qoperator"
    wrong = run("quantize", model, "-o", out, "--data", data, "--format", "qoprator")
    assert wrong.code != 0
    assert "qoprator" in wrong.err


def test_quiet_prints_nothing(run, model, data, out):
    answer = run("quantize", model, "-o", out, "--data", data, "--quiet")
    assert (answer.code, answer.out, answer.err) == (0, "", "")
    assert out.exists()


def test_the_summary_names_what_was_skipped_and_why(run, model, data, out):
    answer = run("quantize", model, "-o", out, "--data", data, "--exclude", "classify")
    assert "Left float" in answer.out
    assert "it is excluded by name" in answer.out
    verbose = run(
        "quantize", model, "-o", out, "--data", data, "--exclude", "classify", "--verbose"
    )
    assert "classify" in verbose.out


def test_op_types_and_exclusions_reach_the_recipe(run, model, data, out):
    words = ("--op-types", "Conv,Gemm", "--exclude", "re:deep_.*", "--exclude", "classify")
    words += ("--for", "size")
    answer = run("quantize", model, "-o", out, "--data", data, *words, "--json")
    assert answer.json["quantized"] == {"Conv": 5}


def test_float16_keeps_what_it_is_told_to_keep(run, model, out):
    half = ["quantize", model, "-o", out, "--recipe", "float16"]
    first = bitwright.make_plan(model, recipe="float16").nodes
    name = next(name for name, one in first.items() if one.op == "Conv")
    answer = run(*half, "--no-keep-io", "--block-ops", "Relu,Gemm", "--block-nodes", name)
    assert answer.code == 0
    graph = onnx.load(out).graph
    types = {value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)}
    assert types == {onnx.TensorProto.FLOAT16}
    recipe = {"exclude_op_types": ["Relu", "Gemm"], "exclude": [name]}
    plan = bitwright.make_plan(model, recipe={"base": "float16", "select": recipe}).nodes
    kept = {name for name, one in plan.items() if not one.quantized}
    assert f"{len(plan) - len(kept)} of {len(plan)} converted to float16" in answer.out
    assert name in kept and {"Relu"} < {plan[one].op for one in kept}
    refused = run("quantize", model, "-o", out, "--no-keep-io", "--random-data", "2")
    assert refused.code == 1 and "float_io is for the mode cast" in refused.err


def test_a_folder_of_images_is_data(run, model, image_folder, out):
    answer = run("quantize", model, "-o", out, "--data", image_folder, "--limit", 8, "--json")
    assert answer.code == 0, answer.err
    assert "10 images" in answer.json["data"]
    assert answer.json["data"].startswith("7 samples")


def test_preprocessing_can_be_described(run, model, image_folder, out):
    words = ("--data", image_folder, "--transform", "resize=8x8,mean=0.5,std=0.5")
    assert run("quantize", model, "-o", out, *words).code == 0


def test_random_data_with_shapes(run, model, out):
    words = ("--random-data", 3, "--input-shape", "image=2x1x8x8")
    answer = run("quantize", model, "-o", out, *words, "--json")
    assert answer.code == 0, answer.err
    assert "random data" in answer.json["data"]
    assert (
        run("quantize", model, "-o", out, "--random-data", 2, "--input-shape", "batch=4").code == 0
    )


def test_the_plan_is_written_beside_it_and_gives_the_same_bytes(run, model, data, out, tmp_path):
    plan = tmp_path / "plan.json"
    answer = run("quantize", model, "-o", out, "--data", data, "--plan-out", plan, "--json")
    assert answer.json["plan"] == str(plan)
    again = tmp_path / "again.onnx"
    assert run("apply", plan, model, "-o", again, "--quiet").code == 0
    assert again.read_bytes() == out.read_bytes()


def test_sketches_save_the_second_pass(run, model, data, out, tmp_path):
    kept = tmp_path / "seen.safetensors"
    first = run("quantize", model, "-o", out, "--data", data, "--sketches", kept)
    assert first.code == 0
    second = tmp_path / "second.onnx"
    words = ("--sketches", kept, "--ranges", "percentile", "--json")
    answer = run("quantize", model, "-o", second, *words)
    assert answer.code == 0, answer.err
    assert answer.json["data"] == "sketches from seen.safetensors"
    fresh = tmp_path / "fresh.onnx"
    words = ("--data", data, "--ranges", "percentile", "--no-holdout", "--quiet")
    assert run("quantize", model, "-o", fresh, *words).code == 0


def test_recipes_by_name_by_file_and_by_target(run, model, data, out, tmp_path):
    by_name = run("quantize", model, "-o", out, "--data", data, "--recipe", "int8", "--json")
    assert by_name.json["recipe"] == "int8"
    recipe = tmp_path / "mine.json"
    recipe.write_text(json.dumps({"base": "int8", "name": "mine", "per_channel": True}))
    by_file = run("quantize", model, "-o", out, "--data", data, "--recipe", recipe, "--json")
    assert by_file.json["recipe"] == "mine"
    by_target = run("quantize", model, "-o", out, "--data", data, "--target", "cpu", "--json")
    assert by_target.json["recipe"] == "int8-per-channel"


def test_external_data_on_request(run, model, data, out):
    assert run("quantize", model, "-o", out, "--data", data, "--external-data").code == 0
    kept = out.parent / "out.onnx.data"
    assert kept.exists()


def test_memory_budget_and_provider_are_passed_on(run, model, data, out):
    words = ("--memory-budget", "64MB", "--provider", "CPUExecutionProvider")
    assert run("quantize", model, "-o", out, "--data", data, *words).code == 0
    answer = run("quantize", model, "-o", out, "--data", data, "--provider", "CPUExecutionProvidr")
    assert answer.code == 1
    assert "Did you mean 'CPUExecutionProvider'?" in answer.err


@pytest.mark.parametrize("method", ["minmax", "percentile", "entropy", "mse", "distribution"])
def test_every_range_method_has_a_name(run, model, data, out, method):
    activation = ("--set", "activation=float8e4m3fn", "--set", "weight=float8e4m3fn")
    extra = activation if method == "distribution" else ()
    answer = run("quantize", model, "-o", out, "--data", data, "--ranges", method, *extra, "--json")
    if method == "distribution":
        # Whether the runtime has float8 kernels for these ops is not the command's business.
        assert answer.code in (0, 1)
    else:
        assert answer.code == 0, answer.err


@pytest.mark.parametrize("method", ["non-overflow", "min-mse"])
def test_power_of_two_methods(run, model, data, out, method):
    words = ("--ranges", method, "--set", "scales=power-of-two")
    assert run("quantize", model, "-o", out, "--data", data, *words).code == 0


def test_a_tiny_model_may_grow_and_is_said_to(run, tmp_path, out):
    from onnx import TensorProto, helper, numpy_helper

    weight = numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy"]
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], [weight])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx"
    )
    answer = run("quantize", tmp_path / "m.onnx", "-o", out, "--random-data", 2)
    assert answer.code == 0, answer.err
    assert "x larger)" in answer.out


def test_layers_are_equalized_when_asked_for(run, model, data, out, tmp_path):
    answer = run("quantize", model, "-o", out, "--data", data, "--recipe", "int8", "--equalize")
    assert answer.code == 0
    assert "Note: equalized" in answer.out
    plan = tmp_path / "plan.json"
    options = ("--recipe", "int8", "--equalize", "--set", "equalize.steps=2")
    assert run("plan", model, "-o", plan, "--data", data, *options).code == 0
    assert bitwright.QuantPlan.load(plan).recipe.equalize.steps == 2
    applied = run("apply", plan, model, "-o", tmp_path / "applied.onnx")
    assert applied.code == 0
    assert "in 2 sweeps" in applied.out


def test_trained_scales_cannot_be_equalized(run, model, out):
    answer = run("quantize", model, "-o", out, "--qat", "--equalize")
    assert answer.code != 0
    assert "--equalize does not go with --qat" in answer.err


def test_open_dimensions_are_fixed(run, tmp_path, data, out):
    open_batch = tmp_path / "open.onnx"
    onnx.save(make_cnn(batch="batch"), open_batch)
    words = ("quantize", open_batch, "-o", out, "--random-data", "4", "--target", "npu-cnn")
    run(*words, "--input-shape", "batch=1")
    assert run("verify", out, "--target", "npu-cnn").code == 1
    out.unlink()
    answer = run(*words, "--fix-shape", "batch=1")
    assert answer.code == 0, answer.err
    assert run("verify", out, "--target", "npu-cnn").code == 0
    assert run(*words, "--fix-shape", "batch").code == 2


def test_the_verdict_of_an_accelerator_stands_beside_that_of_the_numbers(run, tmp_path, data, out):
    model = onnx.load(bitwright.load_demo().model_path)
    open_batch = tmp_path / "open.onnx"
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(model, open_batch)
    words = ("quantize", open_batch, "-o", out, "--data", data, "--target", "qualcomm-htp")
    answer = run(*words, "--effort", "low")
    *_, verdict, found, ship, time, following = answer.out.splitlines()
    assert ship == "Ship it: no, qualcomm-htp does not run it as it is"
    assert time == "Time: not measured: it is made for other hardware than this machine's CPU"
    assert verdict.startswith("Verdict: From 2 samples alone: Good")
    assert found.startswith(
        "Target: qualcomm-htp does not run it as it is: against it static_shapes (leaves); 0 of "
    )
    assert following == f"Next: bitwright verify {out} --target qualcomm-htp"
    fixed = run(*words, "--effort", "low", "--fix-shape", "batch=1", "--json").json
    assert fixed["verification"]["ok"] and not fixed["verification"]["findings"]


def test_shapes_are_fixed_for_low_bit_weights_as_well(run, tmp_path, out):
    from support.models import make_mlp

    path = tmp_path / "mlp.onnx"
    onnx.save(make_mlp(), path)
    words = ("quantize", path, "-o", out, "--recipe", "int4-rtn", "--target", "intel-openvino:npu")
    answer = run(*words)
    assert "has open sizes, and the target takes fixed shapes only" in answer.out
    answer = run(*words, "--fix-shape", "n=4")
    assert "intel-openvino:npu runs it" in answer.out


def test_data_may_stand_behind_the_model_and_the_result_beside_it(run, model, data, tmp_path):
    beside = tmp_path / "own" / "net.onnx"
    beside.parent.mkdir()
    beside.write_bytes(model.read_bytes())
    answer = run("quantize", beside, data, "--for", "size")
    written = beside.with_name("net-int8.onnx")
    assert answer.code == 0 and f"Written to: {written}" in answer.out
    first = written.read_bytes()
    again = run("quantize", beside, data)
    assert again.code == 2 and "net-int8.onnx is there already; say with -o" in again.err
    assert written.read_bytes() == first
    named = run("quantize", beside, "-o", tmp_path / "o.onnx", "--data", data, "--for", "size")
    assert named.code == 0 and (tmp_path / "o.onnx").read_bytes() == first
    both = run("quantize", beside, data, "--data", data, "-o", tmp_path / "p.onnx")
    assert both.code == 2 and "and --data are one thing; drop one" in both.err


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["--recipe", "int4-rtn"], "net-int4.onnx"),
        (["--recipe", "float16"], "net-float16.onnx"),
        (["--dynamic", "--force-dynamic"], "net-int8.onnx"),
    ],
)
def test_the_name_beside_the_model_says_what_is_in_it(run, model, tmp_path, words, name):
    beside = tmp_path / "net.onnx"
    beside.write_bytes(model.read_bytes())
    answer = run("quantize", beside, *words, "--json", "--no-timing")
    assert answer.code == 0, answer.err
    assert (tmp_path / name).is_file()


def test_a_report_of_what_is_in_memory_is_written_with_the_same_time(run, model, data, out):
    page = out.with_name("page.html")
    answer = run("quantize", model, "-o", out, "--data", data, "--report", page)
    assert answer.code == 0, answer.err
    time = answer.out.splitlines()[-2]
    assert time.startswith("Time: 2.0 ×") and time in page.read_text(encoding="utf-8")
    refused = run("quantize", model, "-o", out, "--dynamic", "--report", page)
    assert refused.code == 2 and "--report measures on samples; give --data" in refused.err
