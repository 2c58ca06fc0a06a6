"""`autotune`: configurations and recipes in turn, judged by a function that reads a file."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import bitwright
from bitwright.compat.neural_compressor.quantization.config import (
    AWQConfig,
    GPTQConfig,
    RTNConfig,
)
from bitwright.compat.neural_compressor.quantization.tuning import TuningConfig, autotune
from bitwright.errors import DataError

DEMO = bitwright.load_demo()
SAMPLES = [{"image": image[None]} for image in DEMO.calibration[:6]]


def in_turn(*scores):
    """A function that gives these, and the nodes of the models that it was given."""
    left, seen = iter(scores), []

    def evaluate(path, *given):
        seen.append([node.op_type for node in onnx.load(path).graph.node])
        return next(left)

    return evaluate, seen


def test_the_first_configuration_within_the_loss_comes_back():
    evaluate, seen = in_turn(1.0, 0.9, 0.995)
    config = TuningConfig([RTNConfig(weight_bits=[4, 8]), GPTQConfig()])
    made = autotune(DEMO.model_path, config, evaluate, (), SAMPLES)
    assert isinstance(made, onnx.ModelProto) and made.graph.node[-1].op_type == "MatMulNBits"
    bits = [one.i for one in made.graph.node[-1].attribute if one.name == "bits"]
    assert bits == [8] and "MatMulNBits" not in seen[0] and len(seen) == 3


def test_trials_are_limited_and_a_missed_goal_is_told():
    evaluate, seen = in_turn(1.0, 0.5)
    config = TuningConfig([RTNConfig(), AWQConfig()], max_trials=1)
    with pytest.warns(UserWarning, match=r"falls by 0.5, is not returned"):
        assert autotune(DEMO.model_path, config, evaluate) is None
    assert len(seen) == 2


def test_algorithms_that_need_data_say_so():
    evaluate, _ = in_turn(1.0)
    with pytest.raises(DataError, match="there is no calibration data"):
        autotune(DEMO.model_path, TuningConfig(GPTQConfig()), evaluate)
    with pytest.raises(DataError, match="give calibration_data_reader"):
        autotune(DEMO.model_path, TuningConfig(), evaluate)


def test_recipes_are_searched_along_in_turn(asked):
    config = TuningConfig(["int8", "int8-per-channel"], tolerable_loss=0.01)
    with pytest.warns(UserWarning, match="is not returned"):
        assert autotune(DEMO.model_path, config, lambda path, k: k, (1,), SAMPLES) is None
    assert [call["recipe"] for call in asked] == ["int8", "int8-per-channel"]
    assert asked[0]["evaluate"](onnx.load(DEMO.model_path), []) == 1.0
    assert autotune(DEMO.model_path, TuningConfig(tolerable_loss=0.2), len, None, SAMPLES)


def test_what_stands_beside_the_model_stands_beside_the_file(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(Path(DEMO.model_path).read_bytes())
    (tmp_path / "config.json").write_text("{}")
    config = TuningConfig(RTNConfig())
    found = autotune(path, config, lambda p: float(Path(p).with_name("config.json").exists()))
    assert found is not None


def test_samplers_and_levels_are_warned_of():
    level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    with pytest.warns(UserWarning, match="is ignored") as caught:
        autotune(
            DEMO.model_path,
            TuningConfig(RTNConfig(), sampler=object()),
            lambda path: 1.0,
            optimization_level=level,
        )
    assert [str(one.message).split()[0] for one in caught] == ["sampler", "optimization_level"]


def test_a_script_of_its_examples_runs_with_other_import_lines(tmp_path):
    """As its examples for weight-only tuning are written."""
    from bitwright.compat.neural_compressor import data_reader
    from bitwright.compat.neural_compressor.quantization import config, tuning

    class DataReader(data_reader.CalibrationDataReader):
        def __init__(self, images):
            self.images = images
            self.rewind()

        def get_next(self):
            return next(self.left, None)

        def rewind(self):
            self.left = iter([{"image": image[None]} for image in self.images])

    def eval_func(model_path, images, labels):
        session = onnxruntime.InferenceSession(model_path, providers=["CPUExecutionProvider"])
        return float(np.mean(session.run(None, {"image": images})[0].argmax(1) == labels))

    best_model = tuning.autotune(
        model_input=str(DEMO.model_path),
        tune_config=tuning.TuningConfig(
            config_set=config.get_woq_tuning_config(), tolerable_loss=0.02
        ),
        eval_fn=eval_func,
        eval_args=(DEMO.images[:200], DEMO.labels[:200]),
        calibration_data_reader=DataReader(DEMO.calibration[:16]),
    )
    onnx.save(best_model, tmp_path / "best.onnx")
    score = eval_func(str(tmp_path / "best.onnx"), DEMO.images, DEMO.labels)
    assert score > 0.97 * eval_func(str(DEMO.model_path), DEMO.images, DEMO.labels)
