"""`--dynamic`: no data, and integer operators."""

import onnx
from support.models import ops

import bitwright

FORCED = ["--force-dynamic"]


def test_a_model_is_quantized_without_data(run, model, out):
    answer = run("quantize", model, "-o", out, "--dynamic", *FORCED)
    assert answer.code == 0
    assert answer.err == ""
    assert "Recipe: int8-dynamic" in answer.out
    assert "each run measures its own activations" in answer.out
    counts = ops(onnx.load(out))
    assert counts["ConvInteger"]
    # Each row of what the last layer reads has a scale of its own, or the activation has one.
    assert counts["QuantizeLinear"] == 1
    command = ("quantize", model, "-o", out, "--dynamic", *FORCED, "--dynamic-scale", "tensor")
    assert run(*command).code == 0
    assert not ops(onnx.load(out))["QuantizeLinear"]


def test_data_only_measures(run, model, data, out):
    answer = run("quantize", model, "-o", out, "--dynamic", *FORCED, "--data", data, "--json")
    assert answer.json["samples"] == 8
    assert answer.json["outputs"][0]["top1_agreement"] > 0.9
    without = out.with_name("without.onnx")
    assert run("quantize", model, "-o", without, "--dynamic", *FORCED).code == 0
    assert without.read_bytes() == out.read_bytes()


def test_another_recipe_is_made_dynamic(run, model, out):
    answer = run("quantize", model, "-o", out, "--dynamic", *FORCED, "--recipe", "int8", "--json")
    assert answer.code == 0
    answer = run("quantize", model, "-o", out, "--dynamic", "--recipe", "a8w4")
    assert answer.code != 0
    assert "dynamic models have weights in int8 or uint8, not int4" in answer.err


def test_convolutions_are_refused_with_the_command_that_is_better(run, model, out):
    answer = run("quantize", model, "-o", out, "--dynamic")
    assert answer.code == 1
    assert "leave out --dynamic and give --data PATH" in answer.err
    assert not out.exists()
    answer = run("quantize", model, "-o", out, "--random-data", "4", "--force-dynamic")
    assert answer.code == 1
    assert "force_dynamic is for dynamic recipes" in answer.err


def test_what_has_no_effect_is_refused(run, model, out):
    answer = run("quantize", model, "-o", out, "--dynamic", "--ranges", "percentile")
    assert answer.code != 0
    assert "ranges has no effect in dynamic mode" in answer.err


def test_a_plan_is_made_without_data_and_applied(run, model, tmp_path):
    plan, out = tmp_path / "plan.json", tmp_path / "out.onnx"
    assert run("plan", model, "-o", plan, "--dynamic", *FORCED).code == 0
    assert bitwright.QuantPlan.load(plan).recipe.mode == "dynamic"
    assert run("apply", plan, model, "-o", out).code == 0
    assert ops(onnx.load(out))["ConvInteger"]
