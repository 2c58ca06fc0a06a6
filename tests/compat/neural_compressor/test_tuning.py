"""`fit` and `autotune`: their options become those of `tune`, and None is a missed goal."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import bitwright
from bitwright.compat.neural_compressor.tuning import (
    AccuracyCriterion,
    PostTrainingQuantConfig,
    TuningConfig,
    TuningCriterion,
    _Once,
    autotune,
    fit,
)
from bitwright.errors import DataError, RecipeError
from bitwright.jobs.tuning.latency import Timing

DEMO = bitwright.load_demo()
LOADER = [(image[None], 0) for image in DEMO.calibration[:6]]


@pytest.fixture
def asked(monkeypatch):
    """What `tune` is asked for, call by call, in place of the search."""
    calls = []

    def tune(model, **options):
        calls.append(options)
        point = SimpleNamespace(measured=SimpleNamespace(drop=0.25))
        made = ir.from_proto(onnx.load(DEMO.model_path))
        met = options["max_drop"] > 0.1
        return SimpleNamespace(met=met, is_float=False, point=point, model=made, plan=None)

    monkeypatch.setattr("bitwright.api.tune", tune)
    return calls


def test_criteria_become_a_drop_a_purpose_and_a_time(asked):
    config = PostTrainingQuantConfig(
        accuracy_criterion=AccuracyCriterion(False, "absolute", 0.5),
        tuning_criterion=TuningCriterion(timeout=60, objective=["modelsize"]),
        calibration_sampling_size=[4],
    )
    assert fit(DEMO.model_path, config, LOADER, eval_func=lambda model: 1.0) is not None
    found = asked[0]
    assert (found["max_drop"], found["relative"], found["lower_is_better"]) == (0.5, False, True)
    assert (found["purpose"], found["time"], len(found["data"])) == ("size", 60, 4)
    assert len(found["eval_data"]) == 16  # as many as there must be; the function has its own


def test_a_missed_goal_is_none_and_told(asked):
    with pytest.warns(UserWarning, match=r"falls by 0.25, is not returned: it is not within"):
        assert fit(DEMO.model_path, PostTrainingQuantConfig(), LOADER, eval_func=len) is None
    assert asked[0]["relative"] and asked[0]["time"] is None and asked[0]["purpose"] == "speed"


def test_autotune_tries_recipes_in_turn(asked):
    config = TuningConfig(["int8", "int8-per-channel"], tolerable_loss=0.01)
    with pytest.warns(UserWarning, match="is not returned"):
        assert autotune(DEMO.model_path, config, lambda m, k: k, (1,), LOADER) is None
    assert [call["recipe"] for call in asked] == ["int8", "int8-per-channel"]
    assert asked[0]["evaluate"](onnx.load(DEMO.model_path), []) == 1.0
    assert autotune(DEMO.model_path, TuningConfig(tolerable_loss=0.2), len, None, LOADER)


@pytest.fixture
def faster(monkeypatch):
    """Int8 is the faster one, whatever else the machine does."""
    meter = SimpleNamespace(measure=lambda model=None: (Timing(2, 2, 3), Timing(1, 1, 2)))
    monkeypatch.setattr("bitwright.jobs.tuning.job.LatencyMeter", lambda *_: meter)


def accuracy(model, images=DEMO.images[:200], labels=DEMO.labels[:200]):
    content = model.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    [logits] = session.run(None, {"image": images})
    return float(np.mean(logits.argmax(axis=1) == labels))


def test_a_model_that_keeps_the_metric_comes_back(faster):
    evaluated = []

    def evaluate(model, *given):
        evaluated.append(accuracy(model, *given))
        return evaluated[-1]

    loader = [(image[None], 0) for image in DEMO.calibration[:24]]
    criterion = AccuracyCriterion(tolerable_loss=0.02)
    config = PostTrainingQuantConfig(accuracy_criterion=criterion)
    made = [
        fit(DEMO.model_path, config, loader, eval_func=evaluate),
        autotune(
            DEMO.model_path,
            TuningConfig(["int8-per-channel"], tolerable_loss=0.02),
            evaluate,
            (DEMO.images[:100], DEMO.labels[:100]),
            loader,
        ),
    ]
    for one in made:
        assert any(node.op_type == "QuantizeLinear" for node in one.nodes())
        assert accuracy(one.model) >= 0.97 * accuracy(onnx.load(DEMO.model_path))
    assert len(evaluated) == 4  # float and one candidate, each


def test_a_loss_that_only_float_stays_within_is_missed(faster, monkeypatch):
    reference = onnx.load(DEMO.model_path).SerializeToString()
    [expected] = onnxruntime.InferenceSession(reference).run(None, {"image": DEMO.images[:4]})

    def closeness(model):
        session = onnxruntime.InferenceSession(model.SerializeToString())
        [logits] = session.run(None, {"image": DEMO.images[:4]})
        return 1 - float(np.abs(logits - expected).max())

    monkeypatch.setattr("bitwright.jobs.tuning.job.MIN_KEPT", 0.0)
    criterion = AccuracyCriterion(criterion="absolute", tolerable_loss=1e-4)
    config = PostTrainingQuantConfig(accuracy_criterion=criterion)
    with pytest.warns(UserWarning, match="a model with anything quantized is not returned: it is"):
        assert fit(DEMO.model_path, config, LOADER * 2, eval_func=closeness) is None


def test_a_model_is_evaluated_once():
    seen = []
    once = _Once(lambda model: seen.append(model) or 0.5)
    model = onnx.load(DEMO.model_path)
    assert once(model, []) == once(model, []) == 0.5 and len(seen) == 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"recipes": {"smooth_quant": True}}, "recipes has no form here"),
        ({"op_name_dict": {"fc": {}}}, "op_name_dict has no form here"),
        ({"approach": "dynamic"}, "tuning calibrates, and approach 'dynamic' does not"),
        ({"quant_format": "QOperator"}, "tuned in the format QDQ, not 'QOperator'"),
    ],
)
def test_what_has_no_form_here_is_refused(options, sentence):
    with pytest.raises(RecipeError, match=sentence):
        fit(DEMO.model_path, PostTrainingQuantConfig(**options), LOADER)


def test_other_wrong_arguments_are_refused_and_the_rest_is_warned_of(asked):
    plain = PostTrainingQuantConfig()
    with pytest.raises(DataError, match="give calib_dataloader"):
        fit(DEMO.model_path, plain)
    with pytest.raises(DataError, match="give calibration_data_reader"):
        autotune(DEMO.model_path, TuningConfig(), len)
    with pytest.raises(RecipeError, match="eval_metric has no form here"):
        fit(DEMO.model_path, plain, LOADER, eval_metric={"topk": 1})
    with pytest.raises(RecipeError, match="criterion is one of"):
        AccuracyCriterion(criterion="both")
    with pytest.raises(RecipeError, match="objective is one of"):
        str(TuningCriterion(objective="beauty").purpose)
    gpu = PostTrainingQuantConfig(
        device="gpu", accuracy_criterion=AccuracyCriterion(tolerable_loss=0.5)
    )
    with pytest.warns(UserWarning, match="device 'gpu' is ignored"):
        fit(DEMO.model_path, gpu, LOADER, eval_func=len)
