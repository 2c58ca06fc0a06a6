"""`fit`: its config becomes a recipe and the options of `tune`, and None is a missed goal."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import onnx
import onnxruntime
import pytest

import bitwright
from bitwright import graph
from bitwright.assess.clock import read_clock
from bitwright.compat.neural_compressor.config import (
    AccuracyCriterion,
    PostTrainingQuantConfig,
    TuningCriterion,
)
from bitwright.compat.neural_compressor.quantization import fit
from bitwright.compat.neural_compressor.quantization.fitting import recipe_of
from bitwright.compat.neural_compressor.quantization.within_loss import Once
from bitwright.compat.neural_compressor.utils.constant import FP32
from bitwright.errors import DataError, RecipeError

DEMO = bitwright.load_demo()
LOADER = [(image[None], 0) for image in DEMO.calibration[:6]]


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


@pytest.fixture
def faster(monkeypatch):
    """Int8 is the faster one, whatever else the machine does."""
    clock = read_clock([(2.0, 1.0)] * 5)
    monkeypatch.setattr("bitwright.jobs.tuning.job.time_models", lambda *_, **__: [clock])


def accuracy(model, images=DEMO.images[:200], labels=DEMO.labels[:200]):
    content = model.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    [logits] = session.run(None, {"image": images})
    return float(np.mean(logits.argmax(axis=1) == labels))


def test_a_model_that_keeps_the_metric_comes_back(faster):
    evaluated = []

    def evaluate(model):
        evaluated.append(accuracy(model))
        return evaluated[-1]

    loader = [(image[None], 0) for image in DEMO.calibration[:24]]
    criterion = AccuracyCriterion(tolerable_loss=0.02)
    config = PostTrainingQuantConfig(accuracy_criterion=criterion)
    made = fit(DEMO.model_path, config, loader, eval_func=evaluate)
    assert any(node.op_type == "QuantizeLinear" for node in made.nodes())
    assert accuracy(made.model) >= 0.97 * accuracy(onnx.load(DEMO.model_path))
    assert len(evaluated) == 2  # float and one candidate


def test_a_loss_that_only_float_stays_within_is_missed(faster, monkeypatch):
    reference = onnx.load(DEMO.model_path).SerializeToString()
    [expected] = onnxruntime.InferenceSession(reference).run(None, {"image": DEMO.images[:4]})

    def closeness(model):
        session = onnxruntime.InferenceSession(model.SerializeToString())
        [logits] = session.run(None, {"image": DEMO.images[:4]})
        return 1 - float(np.abs(logits - expected).max())

    monkeypatch.setattr("bitwright.jobs.tuning.purposes.MIN_KEPT", 0.0)
    criterion = AccuracyCriterion(criterion="absolute", tolerable_loss=1e-4)
    config = PostTrainingQuantConfig(accuracy_criterion=criterion)
    with pytest.warns(UserWarning, match="a model with anything quantized is not returned: it is"):
        assert fit(DEMO.model_path, config, LOADER * 2, eval_func=closeness) is None


def test_a_model_is_evaluated_once():
    seen = []
    once = Once(lambda model: seen.append(model) or 0.5)
    model = onnx.load(DEMO.model_path)
    assert once(model, []) == once(model, []) == 0.5 and len(seen) == 1


def recipe(**options):
    return recipe_of(PostTrainingQuantConfig(**options), graph.load_model(DEMO.model_path))


def test_a_config_becomes_a_recipe():
    plain = recipe()
    assert plain.per_channel and plain.format == "qdq" and not plain.reduce_range
    found = recipe(
        quant_format="QOperator",
        reduce_range=True,
        op_type_dict={"Add": FP32},
        op_name_dict={"classify": FP32},
        recipes={"smooth_quant": True, "last_conv_or_matmul_quantization": False},
    )
    assert found.format == "qoperator" and found.reduce_range and found.smooth.alpha == 0.5
    assert found.select.exclude_op_types == ("Add", "Gemm")
    assert found.select.exclude == ("re:deep_b_conv",)
    assert found.select.unknown_names == "warn"
    with pytest.warns(UserWarning, match="smooth_quant of recipes is ignored: a dynamic model"):
        dynamic = recipe(approach="dynamic", recipes={"smooth_quant": True})
    assert dynamic.mode == "dynamic" and dynamic.per_channel


def kinds(model):
    return {node.op_type for node in model.nodes()}


def test_the_recipe_is_what_is_tuned_along(asked):
    criterion = AccuracyCriterion(tolerable_loss=0.5)
    config = PostTrainingQuantConfig(op_type_dict={"Add": FP32}, accuracy_criterion=criterion)
    loader = [(DEMO.images[:20], DEMO.labels[:20])]
    assert fit(DEMO.model_path, config, LOADER, eval_dataloader=loader, eval_metric={"topk": 1})
    assert asked[0]["recipe"].select.exclude_op_types == ("Add",)
    assert 0.9 < asked[0]["evaluate"](onnx.load(DEMO.model_path), []) <= 1.0


def test_a_dynamic_model_needs_no_data_and_may_be_missed():
    config = PostTrainingQuantConfig(approach="dynamic", op_type_dict={"Conv": FP32})
    assert "MatMulInteger" in kinds(fit(DEMO.model_path, config))
    # Float first, then the model.
    for scores, met in (([0.9, 0.895], True), ([0.9, 0.88], False)):
        left = iter(scores)
        with nullcontext() if met else pytest.warns(UserWarning, match="falls by 0.02, is not"):
            made = fit(DEMO.model_path, config, eval_func=lambda model, left=left: next(left))
        assert (made is not None) == met


def test_weights_alone_are_quantized_as_asked_for():
    weight = {"bits": 8, "group_size": 32, "scheme": "asym", "algorithm": "GPTQ"}
    config = PostTrainingQuantConfig(
        approach="weight_only",
        op_type_dict={".*": {"weight": weight}},
        recipes={"gptq_args": {"percdamp": 0.1}},
    )
    made = fit(DEMO.model_path, config, LOADER)
    assert made.plan.weights["classify_weight"].bits == 8
    assert "MatMulNBits" in kinds(made)
    with pytest.raises(DataError, match="there is no calibration data"):
        fit(DEMO.model_path, config)


def test_steps_are_tried_where_no_algorithm_is_named():
    scores = iter([1.0, 0.5, 0.6, 1.0])
    config = PostTrainingQuantConfig(approach="weight_only")
    made = fit(DEMO.model_path, config, LOADER, eval_func=lambda model: next(scores))
    assert "MatMulNBits" not in kinds(made)  # the third one leaves the last product float
    assert list(scores) == []
    left = iter([1.0, 0.5])
    with pytest.warns(UserWarning, match="falls by 0.5, is not returned"):
        assert fit(DEMO.model_path, config, eval_func=lambda model: next(left)) is None


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"approach": "sttic"}, "approach is one of static, .* not 'sttic'. Did you mean 'static'"),
        ({"quant_format": "TFLite"}, "quant_format is one of default, QDQ, QOperator, not"),
    ],
)
def test_unknown_words_are_refused(options, sentence):
    with pytest.raises(RecipeError, match=sentence):
        fit(DEMO.model_path, PostTrainingQuantConfig(**options), LOADER)


def test_other_wrong_arguments_are_refused_and_the_rest_is_warned_of(asked):
    plain = PostTrainingQuantConfig()
    with pytest.raises(DataError, match="give calib_dataloader"):
        fit(DEMO.model_path, plain)
    with pytest.raises(RecipeError, match="calib_func has no form for ONNX models"):
        fit(DEMO.model_path, plain, LOADER, calib_func=len)
    with pytest.raises(DataError, match="give both"):
        fit(DEMO.model_path, plain, LOADER, eval_metric={"topk": 1})
    with pytest.raises(RecipeError, match="criterion is one of"):
        AccuracyCriterion(criterion="both")
    with pytest.raises(RecipeError, match="objective is one of"):
        str(TuningCriterion(objective="beauty").purpose)
    gpu = PostTrainingQuantConfig(
        device="gpu",
        excluded_precisions=["bf16"],
        accuracy_criterion=AccuracyCriterion(tolerable_loss=0.5),
    )
    with pytest.warns(UserWarning, match="device 'gpu' is ignored"):
        fit(DEMO.model_path, gpu, LOADER, eval_func=len)


def test_a_script_of_its_examples_runs_with_other_import_lines(faster, tmp_path):
    """As its examples for image recognition with ONNX models are written."""
    from bitwright.compat.neural_compressor import PostTrainingQuantConfig, quantization
    from bitwright.compat.neural_compressor.config import AccuracyCriterion, TuningCriterion
    from bitwright.compat.neural_compressor.utils.constant import FP32

    class Dataloader:
        def __init__(self, images, labels, batch_size=1):
            self.batch_size = batch_size
            self.images, self.labels = images, labels

        def __iter__(self):
            for start in range(0, len(self.images), self.batch_size):
                part = slice(start, start + self.batch_size)
                yield self.images[part], self.labels[part]

    dataloader = Dataloader(DEMO.images[:200], DEMO.labels[:200], batch_size=10)

    def eval_func(model):
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), providers=onnxruntime.get_available_providers()
        )
        name = session.get_inputs()[0].name
        right = [
            np.mean(session.run(None, {name: images})[0].argmax(1) == labels)
            for images, labels in dataloader
        ]
        return float(np.mean(right))

    config = PostTrainingQuantConfig(
        approach="static",
        quant_format="QOperator",
        calibration_sampling_size=[50, 100],
        recipes={"first_conv_or_matmul_quantization": False},
        op_type_dict={"MaxPool": FP32},
        op_name_dict={"deep_.*": FP32},
        accuracy_criterion=AccuracyCriterion(criterion="absolute", tolerable_loss=0.02),
        tuning_criterion=TuningCriterion(timeout=60, max_trials=10),
    )
    q_model = quantization.fit(
        str(DEMO.model_path), config, eval_func=eval_func, calib_dataloader=dataloader
    )
    q_model.save(str(tmp_path / "quantized.onnx"))
    saved = onnx.load(tmp_path / "quantized.onnx")
    assert eval_func(saved) >= eval_func(onnx.load(DEMO.model_path)) - 0.02
    kinds = {node.op_type for node in saved.graph.node}
    assert {"Conv", "QLinearConv", "MaxPool"} <= kinds
