"""What is timed beside what, and where the clock is shown; never how long anything takes."""

import onnx
import pytest
from support.language_models import make_decoder
from support.models import make_cnn, make_samples

import bitwright
from bitwright.assess.clock import read_clock
from bitwright.assess.verdict import LEFT_FLOAT
from bitwright.decide.left_float import leave_float
from bitwright.errors import ModelError
from bitwright.jobs import timing
from bitwright.jobs.opening import open_model
from bitwright.jobs.timing import is_for_cpu, prepare_yardstick, time_result
from bitwright.recipe import Recipe, named_recipe

SLOWER = read_clock([(1.0, 2.0)] * 5)


@pytest.fixture
def timed(monkeypatch):
    """What was timed: the yardstick and the models, in the order of the calls."""
    seen = []

    def time_models(models, samples, **options):
        seen.append((*models, samples[0]))
        return [SLOWER]

    monkeypatch.setattr(timing, "time_models", time_models)
    return seen


@pytest.fixture(scope="module")
def model():
    return make_cnn()


@pytest.fixture(scope="module")
def samples(model):
    return make_samples(model, 16)


def test_a_result_is_timed_only_where_that_is_asked_for(model, samples, timed):
    assert bitwright.quantize(model, data=samples, recipe="int8").clock is None
    assert not timed
    assert bitwright.quantize(model, data=samples, recipe="int8", timing=True).clock is SLOWER


def test_a_result_is_written_before_it_is_timed_and_is_the_same(
    model, samples, timed, tmp_path, monkeypatch
):
    first, second = tmp_path / "a.onnx", tmp_path / "b.onnx"
    plain = bitwright.quantize(model, first, data=samples, recipe="int8")
    monkeypatch.setattr(
        timing, "middle_sized", lambda drawn: timed.append(second.exists()) or drawn[0]
    )
    result = bitwright.quantize(model, second, data=samples, recipe="int8", timing=True)
    assert timed[0] is True
    assert first.read_bytes() == second.read_bytes()
    assert plain.plan == result.plan


def test_the_yardstick_is_the_prepare_yardstick(timed):
    demo = bitwright.load_demo()
    for recipe in ("int8", "int8-weights", {"base": "int8", "optimize": False}):
        result = bitwright.quantize(
            demo.model_path, data=demo.calibration[:8], recipe=recipe, timing=True
        )
        reference, model, _ = timed.pop()
        assert model is result.model
        ops = {one.op_type for one in reference.graph}
        assert "BatchNormalization" not in ops and "DequantizeLinear" not in ops
        found = {one.op_type for one in prepare_yardstick(demo.model_path).reference.graph}
        assert ops == found


def test_the_time_stands_in_the_summary_and_in_the_verdict(model, samples, timed):
    result = bitwright.quantize(model, data=samples, recipe="int8", timing=True)
    slower = "Time: 2.0 × slower than the prepared float model"
    line = f"{slower}: 2.00 (1.92 to 2.08) of its time, one thread"
    assert line in result.summary().splitlines()
    assert "(1.92 to 2.08)" in result._repr_html_()
    assert result.to_dict()["clock"]["ratio"] == 2.0
    level, sentence = result.verdict
    assert level == "slow"
    assert sentence.startswith("From 2 samples alone: Slower: ") and "--for balanced" in sentence


def test_the_advice_is_what_the_recipe_can_do(timed):
    demo = bitwright.load_demo()
    data = demo.calibration[:8]
    asked = {"int8": {"purpose": "balanced"}, "int8-dynamic": {"force_dynamic": True}}
    said = {
        recipe: bitwright.quantize(
            demo.model_path, data=data, recipe=recipe, timing=True, **options
        ).verdict.sentence
        for recipe, options in asked.items()
    }
    assert said["int8"].endswith("; quantize with --for speed, which leaves float all that "
                                     "gains no time.")  # fmt: skip
    assert said["int8-dynamic"].endswith("; keep the float model where time counts.")


def test_a_model_for_another_class_of_cpu_is_not_timed_here(timed, monkeypatch):
    demo = bitwright.load_demo()
    monkeypatch.setattr(timing, "detect_cpu_class", lambda: "arm")
    data, options = demo.calibration[:8], {"purpose": "balanced", "timing": True}
    for cpu, count in (("x86-vnni", 0), ("arm", 1)):
        bitwright.quantize(demo.model_path, data=data, recipe="int8", cpu=cpu, **options)
        assert len(timed) == count


def test_a_model_that_wholly_stayed_float_is_neither_good_nor_bad(model, samples, timed):
    plan = bitwright.make_plan(model, data=samples, recipe="int8")
    prepared = open_model(model, plan.recipe).model
    plan = leave_float(prepared, plan, dict.fromkeys(plan.nodes, "in a test"))
    result = bitwright.apply_plan(plan, model, data=samples)
    assert not result.quantized
    assert result.verdict == LEFT_FLOAT and result.verdict.level == "float"
    assert time_result(open_model(model, plan.recipe), result) == "it is the prepared float model"
    assert not timed and result.lines()[0] == "Ship it: no need: it is the prepared float model"


def test_models_for_accelerators_are_not_timed_here(timed):
    demo = bitwright.load_demo()
    for options in ({"recipe": "npu-cnn"}, {"target": "qualcomm-htp"}):
        data = demo.calibration[:8]
        made = bitwright.quantize(demo.model_path, data=data, timing=True, **options)
        assert made.clock is None
    assert not timed


def test_a_model_that_does_not_run_here_has_no_time(model, samples, monkeypatch):
    def refuse(*given, **options):
        raise ModelError("no kernel.")

    monkeypatch.setattr(timing, "time_models", refuse)
    assert bitwright.quantize(model, data=samples, recipe="int8", timing=True).clock is None


def test_large_models_are_not_opened_once_more(model, samples, timed, monkeypatch):
    monkeypatch.setattr(timing, "MAX_BYTES", 1000)
    assert bitwright.quantize(model, data=samples, recipe="int8", timing=True).clock is None
    assert not timed


def test_a_model_without_samples_is_timed_on_random_ones(timed):
    demo = bitwright.load_demo()
    bitwright.quantize(demo.model_path, recipe="int8-dynamic", force_dynamic=True, timing=True)
    [(_, _, sample)] = timed
    assert sample["image"].shape[1:] == (1, 8, 8)


def test_the_models_of_a_folder_are_timed(tmp_path, timed):
    onnx.save(make_cnn(), tmp_path / "m.onnx")
    result = bitwright.quantize(tmp_path, recipe="int8-dynamic", force_dynamic=True, timing=True)
    assert result.results["m.onnx"].clock is SLOWER


def test_the_clock_runs():
    """Whole, without fakes: what it says is not looked at."""
    demo = bitwright.load_demo()
    recipe = Recipe(mode="dynamic")
    result = bitwright.quantize(demo.model_path, recipe=recipe, force_dynamic=True)
    found = time_result(open_model(demo.model_path, recipe), result)
    assert found.low <= found.ratio <= found.high and found.float_ms > 0


def test_models_for_an_npu_are_not_for_the_cpu():
    assert is_for_cpu(named_recipe("int8")) and not is_for_cpu(named_recipe("npu-cnn"))


def test_a_language_model_is_timed_on_one_token_and_on_a_prompt(timed):
    model = make_decoder(width=32)
    result = bitwright.quantize(model, recipe="int4-rtn", timing=True)
    assert [sample["input_ids"].shape for *_, sample in timed] == [(1, 1), (1, 128)]
    assert result.clock.prompt is SLOWER
    sentence = "slower for one token and 2.0 × slower for a prompt of 128, beside the prepared"
    assert sentence in result.verdict.sentence
    both = "2.00 (1.92 to 2.08) and 2.00 (1.92 to 2.08) of its time, one thread"
    assert f"for a prompt of 128, beside the prepared float model: {both}" in result.summary()
