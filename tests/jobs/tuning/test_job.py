"""Tuning keeps the user's metric, loses no work, and reports what the search has not seen."""

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bitwright
from bitwright import MSE, MeanExtremes
from bitwright.assess.clock import read_clock
from bitwright.decide.left_float import leave_float
from bitwright.errors import ArgumentError, DataError, RecipeError, TargetError
from bitwright.jobs import static
from bitwright.jobs.improve.journal import Journal
from bitwright.jobs.tuning import job, mixtures, plans, purposes, units
from bitwright.jobs.tuning.request import Goal
from bitwright.targets.host import detect_cpu_class

UNEVEN = Path(__file__).parents[2] / "fixtures" / "uneven_digits.onnx"


@pytest.fixture(autouse=True, scope="module")
def quick():
    """Time nothing, place for one class of CPU, and with the two states that all purposes have."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mixtures, "SIZE_STATES", ("int8", "float"))
        patch.setattr(job, "detect_cpu_class", lambda: "x86-vnni")
        patch.setattr(job, "time_models", timed(0.5))
        yield


def timed(*ratios):
    """Return a clock by which models take so many times what float does, one after the other."""
    left = list(ratios)

    def time_models(models, samples, **options):
        same = models[0] is models[1]
        ratio = 1.0 if same else left.pop(0) if len(left) > 1 else left[0]
        return [read_clock([(0.002, 0.002 * ratio)] * 5)]

    return time_models


def of_units(in_integers, in_float):
    """Return estimates by which each unit takes this long."""

    def estimate(prepared, plan, units, samples):
        times = {"int8": in_integers, "float": in_float}
        of_each = {s: dict.fromkeys([unit.node for unit in units], t) for s, t in times.items()}
        return mixtures.UnitCosts(costs=of_each, fixed=1.0)

    return estimate


@pytest.fixture
def unplaced(monkeypatch):
    """Plans with all in integers that can be, whatever that costs."""
    monkeypatch.setattr(static, "place_by_cost", lambda prepared, layout, plan, samples: plan)
    monkeypatch.setattr(static, "plan_all_float", lambda *_: None)


class Counting:
    """Top-1 accuracy that counts its calls, and fails after so many of them."""

    __name__ = "counting"

    def __init__(self, calls=None):
        self.calls, self.left = 0, calls

    def __call__(self, outputs, sample):
        self.calls += 1
        if self.left is not None and self.calls > self.left:
            raise KeyboardInterrupt
        return float(outputs["logits"].argmax() == sample["label"])


def tuned(model=UNEVEN, evaluate="top1", **options):
    demo = bitwright.load_demo()
    given = {"effort": "low", "recipe": "int8", "max_drop": "3%"} | options
    return bitwright.tune(
        model,
        data=demo.calibration[:32],
        eval_data={"image": demo.images[:160], "label": demo.labels[:160]},
        evaluate=evaluate,
        **given,
    )


def accuracy(path):
    demo = bitwright.load_demo()
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    [logits] = session.run(None, {"image": demo.images})
    return float(np.mean(np.argmax(logits, axis=1) == demo.labels))


@pytest.fixture(scope="module")
def worked(tmp_path_factory):
    """A model that plain int8 destroys, tuned for size, with its folder."""
    folder = tmp_path_factory.mktemp("tune")
    counting, lines = Counting(), []
    result = tuned(
        evaluate=counting,
        purpose="size",
        work=folder / "work",
        output=folder / "out.onnx",
        log=lines.append,
    )
    return result, folder, counting.calls, lines


def test_a_model_that_plain_int8_destroys_keeps_the_metric(worked):
    result, folder, _, _ = worked
    assert result.met
    assert accuracy(UNEVEN) - accuracy(folder / "out.onnx") < 0.08
    assert accuracy(UNEVEN) - 0.5 > accuracy_of_plain_int8()
    assert result.point.measured_cost == (folder / "out.onnx").stat().st_size
    assert result.point.measured_cost < result.float_cost


def accuracy_of_plain_int8():
    demo = bitwright.load_demo()
    plain = bitwright.quantize(UNEVEN, data=demo.calibration[:32], recipe="int8", effort="low")
    return accuracy(plain.to_proto().SerializeToString())


def test_the_search_says_how_long_it_can_take_before_it_starts(worked):
    result, _, _, lines = worked
    assert f"at most {result.planned_evaluations} evaluations of 110 samples" in lines[0]
    assert result.evaluations <= result.planned_evaluations


def test_the_reported_drop_is_of_samples_that_the_search_never_saw(worked):
    result, _, _, _ = worked
    assert result.final.samples == 50
    assert result.point.measured.samples <= 110
    assert result.interval.low <= result.drop <= result.interval.high


def test_probes_and_units_tell_what_carries_the_loss(worked):
    result, _, _, _ = worked
    assert [probe.name for probe in result.probes] == ["W8A32", "A8W32"]
    assert not result.probes[0].passes
    assert result.loss_units
    assert sum(share for _, share in result.loss_units) <= 1.0001
    assert {unit.state for unit in result.fallen} == {"float"}
    assert all(unit.reason for unit in result.fallen)


def test_the_command_makes_the_same_model_again(worked):
    result, folder, _, _ = worked
    plan = folder / "work" / "best-plan.json"
    assert str(plan) in result.command
    again = bitwright.apply_plan(plan, UNEVEN)
    assert again.to_proto() == onnx.load(folder / "out.onnx")


def test_the_same_command_again_evaluates_nothing(worked):
    result, folder, _, _ = worked
    counting = Counting()
    again = tuned(evaluate=counting, purpose="size", work=folder / "work")
    assert counting.calls == 0
    assert again.evaluations == 0
    assert again.to_dict()["points"] == result.to_dict()["points"]


@pytest.mark.parametrize("name", ["best.onnx", "best-plan.json"])
def test_a_damaged_best_model_is_made_again(worked, tmp_path, name):
    _, folder, *_ = worked
    work, out = tmp_path / "work", tmp_path / "out.onnx"
    shutil.copytree(folder / "work", work)
    content = bytearray((work / name).read_bytes())
    place = content.rindex(b"3")  # a digit of a number: the file can still be read
    content[place : place + 1] = b"4"
    (work / name).write_bytes(content)
    tuned(evaluate=Counting(), purpose="size", work=work, output=out)
    assert out.read_bytes() == (folder / "out.onnx").read_bytes()
    assert (work / name).read_bytes() == (folder / "work" / name).read_bytes()


def test_another_drop_replays_the_journal(worked):
    result, folder, calls, _ = worked
    counting = Counting()
    looser = tuned(evaluate=counting, purpose="size", work=folder / "work", max_drop="12%")
    assert looser.met
    assert looser.point.measured_cost <= result.point.measured_cost
    assert counting.calls < 0.6 * calls


def test_a_run_that_was_killed_loses_one_evaluation_at_most(worked, tmp_path):
    result, _, calls, _ = worked
    first = Counting(calls=calls // 2)
    with pytest.raises(KeyboardInterrupt):
        tuned(evaluate=first, purpose="size", work=tmp_path, output=tmp_path / "out.onnx")
    onnx.checker.check_model(onnx.load(tmp_path / "out.onnx"))  # the best so far
    second = Counting()
    again = tuned(evaluate=second, purpose="size", work=tmp_path)
    assert again.point == result.point
    assert first.calls + second.calls <= calls + 110


def test_another_model_or_metric_in_the_same_folder_is_refused(worked):
    _, folder, _, _ = worked
    with pytest.raises(DataError, match="holds what was finished of another metric"):
        tuned(purpose="size", work=folder / "work")
    demo = bitwright.load_demo()
    with pytest.raises(DataError, match="holds what was finished of another model"):
        tuned(demo.model_path, Counting(), work=folder / "work")


def test_a_goal_that_int8_meets_needs_one_evaluation():
    result = tuned(bitwright.load_demo().model_path, purpose="speed")
    assert result.met
    assert result.evaluations == 1
    assert result.fallen == ()
    assert result.point.measured_cost == 1.0 and result.point.cost_spread == (0.96, 1.04)
    faster = "Time: 2.0 × faster than the prepared float model"
    lines = result.summary().splitlines()
    assert f"{faster}: 0.50 (0.48 to 0.52) of its time, one thread" in lines
    assert "Milliseconds: 2 -> 1" in lines


@pytest.mark.parametrize(
    ("least", "changes", "efforts", "bases"),
    [
        (0.0, True, ["standard"], 1),
        (1.1, True, ["standard", "medium"], 2),
        (1.1, False, ["standard", "medium"], 1),
    ],
)
@pytest.mark.sampled(1)
def test_more_effort_is_for_plans_that_give_up_much(monkeypatch, least, changes, efforts, bases):
    """And where it changes nothing about the plan, nothing is evaluated again."""
    monkeypatch.setattr(purposes, "MIN_KEPT", least)
    asked, original = [], plans.plan_with_effort

    def plan_plainly(prepared, effort, calibration):
        asked.append(effort)
        if effort == "medium" and changes:
            prepared = replace(prepared, recipe=prepared.recipe.replace(ranges=MSE()))
        return original(prepared, "low", calibration)

    monkeypatch.setattr(plans, "plan_with_effort", plan_plainly)
    monkeypatch.setattr(purposes, "search_front", nothing_of)
    result = tuned(effort=None, purpose="size")
    assert asked == efforts
    assert len(result.points) == bases
    assert [probe.name for probe in result.probes] == ["W8A32", "A8W32"]
    assert result.evaluations <= result.planned_evaluations == 19


def nothing_of(maker, mixtures, trail):
    """Try no mixture of a plan."""
    return trail
    yield


def nothing():
    """Try nothing, and end."""
    return True
    yield


def good_and_bad_plan(factor=30):
    """Return a plan, and the same with ranges that are so many times as wide."""
    demo = bitwright.load_demo()
    good = bitwright.make_plan(demo.model_path, data=demo.calibration[:32], recipe="int8")
    wide = {
        key: msgspec.structs.replace(entry, scale=factor * entry.scale)
        if entry.role == "activation" and isinstance(entry.scale, float)
        else entry
        for key, entry in good.tensors.items()
    }
    return good, msgspec.structs.replace(good, tensors=wide)


def with_ranges(plan, method):
    return msgspec.structs.replace(plan, recipe=plan.recipe.replace(ranges=method))


def test_of_other_range_methods_the_one_that_loses_least_at_first_is_taken(monkeypatch):
    """Whatever its outputs' error is; nothing is measured of units, and nothing probed."""
    good, bad = good_and_bad_plan(100)
    _, other = good_and_bad_plan(60)
    made = [bad, with_ranges(other, MSE()), with_ranges(good, MeanExtremes())]
    monkeypatch.setattr(plans, "plans_by_ranges", lambda *_, **__: iter(made))
    monkeypatch.delattr(mixtures, "measure_errors")
    lines = []
    model = bitwright.load_demo().model_path
    result = tuned(model, effort=None, purpose="speed", log=lines.append)
    assert result.met
    assert result.plan.recipe.ranges == MeanExtremes()
    assert result.fallen == ()
    assert result.probes == ()  # what cannot be met need not be told
    assert result.evaluations == 3
    assert [line.split(":")[0] for line in lines if line.startswith(("low", "ranges-"))] == [
        "low-speed", "ranges-mse-speed", "ranges-mean-extremes-speed",
    ]  # fmt: skip


def test_a_range_method_that_a_function_of_models_accepts_is_the_last(monkeypatch):
    """Such a function evaluates all of its samples at once."""
    good, bad = good_and_bad_plan(100)
    made = [bad, with_ranges(good, MeanExtremes()), with_ranges(good, MSE())]
    monkeypatch.setattr(plans, "plans_by_ranges", lambda *_, **__: iter(made))
    calls = []

    def score(model, samples):
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        calls.append(1)
        found = [session.run(None, {"image": s["image"]})[0].argmax() for s in samples]
        return float(np.mean([a == s["label"] for a, s in zip(found, samples, strict=True)]))

    model = bitwright.load_demo().model_path
    result = tuned(model, score, evaluate_on="model", effort=None, max_drop=0.05)
    assert result.met
    assert result.plan.recipe.ranges == MeanExtremes()
    assert len(calls) == 3 + 2  # float, two models, and in the end float and one


def test_plans_with_other_ranges_are_made_once(monkeypatch, tmp_path):
    good, bad = good_and_bad_plan()
    asked = []

    def make(*_, **__):
        asked.append(1)
        return iter([bad, with_ranges(good, MSE())])

    monkeypatch.setattr(plans, "plans_by_ranges", make)
    options = {"effort": None, "purpose": "speed", "work": tmp_path}
    first, again = (tuned(bitwright.load_demo().model_path, **options) for _ in range(2))
    assert len(asked) == 1
    assert again.evaluations == 0
    assert again.point == first.point


def test_the_result_is_the_same_whatever_the_work_folder_holds(monkeypatch, tmp_path):
    """An earlier run with a smaller drop took other ranges: they stay its own."""
    good, bad = good_and_bad_plan(100)
    made = [bad, with_ranges(good, MSE())]
    monkeypatch.setattr(plans, "plans_by_ranges", lambda *_, **__: iter(made))
    options = {"effort": None, "purpose": "speed"}
    model = bitwright.load_demo().model_path
    first = tuned(model, max_drop=0.03, work=tmp_path, **options)
    again = tuned(model, max_drop=1.0, work=tmp_path, **options)
    alone = tuned(model, max_drop=1.0, **options)
    assert first.plan.recipe.ranges == MSE()
    assert again.plan.to_json() == alone.plan.to_json() != first.plan.to_json()
    assert again.evaluations <= 1  # of the first plan, if its first samples left it open


def test_where_next_to_no_error_is_within_the_drop_no_more_effort_is_taken(monkeypatch):
    asked = []

    def plan(prepared, effort, calibration):
        asked.append(effort)
        return original(prepared, "low", calibration)

    original = plans.plan_with_effort
    monkeypatch.setattr(plans, "plan_with_effort", plan)
    result = tuned(effort=None, purpose="size", evaluate="cosine", max_drop=0.0)
    assert result.is_float
    assert asked == ["standard"]


def test_smaller_ranges_come_before_units_fall_back_to_float(monkeypatch):
    """A plan that misses the goal, with ranges that mend it, is the result as it is."""
    demo = bitwright.load_demo()
    mended, bad = good_and_bad_plan()
    monkeypatch.setattr(plans, "plans_by_ranges", lambda *_, **__: iter([bad]))
    monkeypatch.setattr(plans, "trim_ranges", lambda *_, **__: mended)
    monkeypatch.setattr(purposes, "search_front", lambda *_: pytest.fail("it is met already"))
    result = tuned(demo.model_path, effort=None, purpose="speed")
    assert result.met
    assert result.fallen == ()
    assert [probe.name for probe in result.probes] == ["W8A32", "A8W32"]
    assert result.evaluations == 2 + len(result.probes)


def test_where_the_plan_is_slower_than_float_the_result_is_float(monkeypatch, tmp_path):
    """Whatever the costs say: the times of the whole models decide, and none is evaluated."""
    monkeypatch.setattr(job, "time_models", timed(2.0))
    monkeypatch.delattr(mixtures, "measure_errors")
    result = tuned(bitwright.load_demo().model_path, purpose="speed", output=tmp_path / "out.onnx")
    assert result.is_float and not result.met
    assert result.evaluations == 0
    assert result.final.drop == 0
    assert "no model within the allowed drop is cheaper" in " ".join(result.notes)
    operators = {node.op_type for node in onnx.load(tmp_path / "out.onnx").graph.node}
    assert "QuantizeLinear" not in operators


def test_a_quantized_model_that_is_asked_for_may_be_slower_than_float(monkeypatch):
    """Its first plan is within the drop, and nothing of it becomes float for its time."""
    monkeypatch.setattr(job, "time_models", timed(2.0))
    model = bitwright.load_demo().model_path
    result = tuned(model, purpose="speed", keep_quantized=True)
    assert result.met and not result.is_float
    assert result.evaluations == 1
    assert result.fallen == ()
    said = "the model is 2.0 × slower than the prepared float model: quantizing it saves no time"
    assert said in " ".join(result.notes)


def test_units_that_are_slower_in_integers_stay_quantized_where_that_is_asked_for(monkeypatch):
    monkeypatch.setattr(mixtures, "estimate_times", of_units(2.0, 1.0))
    monkeypatch.setattr(job, "time_models", timed(2.0))
    result = tuned(purpose="speed", keep_quantized=True)  # a model that plain int8 destroys
    assert result.met and not result.is_float
    assert 0 < len(result.fallen) < len(result.plan.nodes)


def test_a_budget_in_bytes_goes_with_size_and_what_is_quantized_with_speed():
    with pytest.raises(ArgumentError, match="max_size is a number of bytes: tune for size"):
        tuned(max_size="1MB")
    with pytest.raises(ArgumentError, match="'lots' is no size"):
        tuned(max_size="lots", purpose="size")
    with pytest.raises(ArgumentError, match="keep_quantized is about speed"):
        tuned(keep_quantized=True, purpose="size")


def test_what_int8_loses_is_regained_within_a_budget(worked):
    """Half of what float takes more is spent on the units that lose most."""
    first, folder, _, _ = worked
    small = first.points[0].cost
    most = int((small + first.float_cost) / 2)
    options = {"evaluate": Counting(), "purpose": "size", "work": folder / "work"}
    result = tuned(max_size=most, **options)
    assert result.met
    assert small < result.point.measured_cost <= most
    assert result.evaluations <= 1


def test_a_mixture_that_is_slower_than_float_is_not_kept(unplaced, monkeypatch):
    """The plan is fast and loses too much; with units in float it loses less, and gains nothing."""
    monkeypatch.setattr(mixtures, "estimate_times", of_units(1.0, 2.0))
    monkeypatch.setattr(job, "time_models", timed(0.5, 1.5))
    result = tuned(purpose="speed")  # a model that plain int8 destroys
    slow = [point for point in result.points if point.verdict == "pass" and point.clock.is_slower]
    assert slow and result.is_float and not result.met
    assert result.point.measured_cost == result.float_cost == 2.0


@settings(deadline=None, max_examples=10)
@given(
    ratios=st.lists(st.floats(0.2, 3.0), min_size=1, max_size=6),
    purpose=st.sampled_from(["speed", "balanced"]),
    max_drop=st.sampled_from([0.0, 0.03, 1.0]),
)
def test_no_goal_is_met_by_a_slower_model_and_a_cost_is_within_its_interval(
    ratios, purpose, max_drop
):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job, "time_models", timed(*ratios))
        patch.setattr(purposes.PurposeProposals, "_mixtures_of", lambda *_: nothing())
        result = tuned(bitwright.load_demo().model_path, purpose=purpose, max_drop=max_drop)
    for point in result.points:
        if point.clock is not None:
            low, high = point.cost_spread
            assert low <= point.measured_cost <= high
    assert result.is_float or not result.point.clock.is_slower
    if result.is_float:
        assert not result.met and result.point.measured_cost == result.float_cost


def test_the_float_model_has_one_time_for_all_models():
    """Which are told by their ratios: it was slower when the second one ran beside it."""
    clocks = iter([read_clock([(0.002, 0.001)] * 5), read_clock([(0.004, 0.001)] * 5)])
    one = SimpleNamespace(
        _request=SimpleNamespace(goal=Goal()),
        _journal=Journal(None, {}),
        _time=lambda model: next(clocks),
    )
    made = SimpleNamespace(plan=SimpleNamespace(nodes={}), model=None)
    first, second = (job._Job._price(one, made) for _ in range(2))
    assert (first.value, second.value) == (1.0, 0.5)
    assert first.clock.float_ms == second.clock.float_ms == 2.0
    assert second.clock.interval_ms == (0.48, 0.52)


def test_plans_are_placed_by_the_purpose(monkeypatch):
    """And of another purpose in the same folder nothing is taken that would differ."""
    placed = [
        tuned(bitwright.load_demo().model_path, purpose=purpose).plan.recipe.place
        for purpose in ("speed", "balanced", "size")
    ]
    assert [one.purpose for one in placed] == ["speed", "balanced", "size"]
    assert [one.cpu for one in placed] == [detect_cpu_class(), detect_cpu_class(), None]


def test_a_plan_that_is_float_by_its_costs_is_float(monkeypatch):
    def leave_all(prepared, layout, plan, samples):
        return leave_float(prepared.model, plan, dict.fromkeys(plan.nodes, "too slow"))

    monkeypatch.setattr(static, "place_by_cost", leave_all)
    monkeypatch.setattr(static, "plan_all_float", lambda *_: None)
    result = tuned(bitwright.load_demo().model_path, purpose="speed")
    assert result.is_float and not result.met and result.evaluations == 0


def test_a_model_with_more_nodes_than_are_measured_can_still_be_float(monkeypatch, tmp_path):
    """Where nothing quantized is within the drop, nothing stays quantized."""
    monkeypatch.setattr(units, "MAX_UNITS", 3)
    result = tuned(purpose="size", max_drop=0.0, output=tmp_path / "out.onnx")
    assert result.is_float and not result.met
    assert result.point.verdict == "pass" and result.point.measured.drop == 0
    assert accuracy(tmp_path / "out.onnx") == accuracy(UNEVEN)


def test_without_time_the_best_so_far_is_the_result(unplaced, tmp_path):
    result = tuned(purpose="speed", time=1e-3, output=tmp_path / "out.onnx", max_drop=0.0)
    assert not result.met
    assert "is used up" in result.stopped
    assert (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize("slow", [False, True])
def test_without_time_nothing_else_is_begun(unplaced, monkeypatch, slow):
    if slow:
        monkeypatch.setattr(job, "time_models", timed(2.0, 0.5))
    monkeypatch.setattr(plans, "trim_ranges", lambda *_, **__: pytest.fail("there is no time"))
    monkeypatch.delattr(mixtures, "measure_errors")
    result = tuned(effort=None, purpose="speed", time=1e-3, max_drop=0.0)
    assert result.evaluations <= 1  # none, where it is slower than float
    assert result.probes == ()


def test_a_metric_of_the_whole_set_is_kept_too():
    def accuracy_of_all(outputs, samples):
        right = [o["logits"].argmax() == s["label"] for o, s in zip(outputs, samples, strict=True)]
        return float(np.mean(right))

    demo = bitwright.load_demo()
    result = tuned(demo.model_path, accuracy_of_all, evaluate_on="set", max_drop=0.05)
    assert result.met
    assert result.interval is not None


def test_a_function_of_models_gets_the_model_itself():
    seen = []

    def score(model, samples):
        seen.append(model)
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        right = [
            session.run(None, {"image": s["image"]})[0].argmax() == s["label"] for s in samples
        ]
        return np.array(right, float)

    result = tuned(bitwright.load_demo().model_path, score, evaluate_on="model", max_drop=0.05)
    assert result.met
    assert all(isinstance(model, onnx.ModelProto) for model in seen)


def test_without_labels_the_model_agrees_with_float():
    demo = bitwright.load_demo()
    result = bitwright.tune(
        demo.model_path, data=demo.calibration[:96], effort="low", max_drop="10%"
    )
    assert result.metric == "agreement"
    assert result.float_score == 1
    assert result.met


def test_an_error_that_must_not_grow_is_a_metric(unplaced):
    def wrong(outputs, sample):
        return float(outputs["logits"].argmax() != sample["label"])

    result = tuned(evaluate=wrong, lower_is_better=True, time=1e-3, max_drop=0.01)
    assert result.float_score == 0  # in the terms of the function
    assert result.point.measured.drop > 0.3
    assert not result.met


def test_what_cannot_be_tuned_is_refused_in_one_sentence():
    demo = bitwright.load_demo()
    with pytest.raises(RecipeError, match="is dynamic; take a static one"):
        tuned(recipe="int8-dynamic")
    with pytest.raises(RecipeError, match=r"rewrite\.channels_last changes their inputs"):
        tuned(recipe={"base": "int8", "rewrite": {"channels_last": True}})
    with pytest.raises(RecipeError, match="unknown effort 'maximal'"):
        tuned(effort="maximal", log=pytest.fail)  # before anything is done
    with pytest.raises(TargetError, match="says nothing of npu-cnn"):
        tuned(recipe=None, target="npu-cnn")
    with pytest.raises(DataError, match="the metric 'top1' needs labels"):
        bitwright.tune(demo.model_path, data=demo.calibration, evaluate="top1")
    with pytest.raises(DataError, match="tuning needs 16 samples"):
        bitwright.tune(demo.model_path, data=demo.calibration, eval_data=demo.images[:8])
    with pytest.raises(RecipeError, match="a drop in percent is of a metric between 0 and 1"):
        tuned(evaluate=lambda outputs, sample: 70.0, max_drop="1%")
