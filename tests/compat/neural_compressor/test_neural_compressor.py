"""Scripts for Neural Compressor 2.6 beyond quantization: mixed precision, timing, dummy data."""

import numpy as np
import onnx
import pytest
from support.models import make_mlp, ops

import bitwright
from bitwright.compat import neural_compressor
from bitwright.compat.neural_compressor import (
    BenchmarkConfig,
    MixedPrecisionConfig,
    PostTrainingQuantConfig,
    benchmark,
    mix_precision,
    quantization,
)
from bitwright.compat.neural_compressor.data import DataLoader, Datasets
from bitwright.compat.neural_compressor.model import Model
from bitwright.compat.neural_compressor.utils import logger
from bitwright.errors import DataError, RecipeError

DEMO = bitwright.load_demo()


def test_dummy_data_calibrates_as_their_examples_have_it():
    data = Datasets("onnxrt_qdq")["dummy"](shape=(10, 1, 8, 8), low=0.0, high=1.0)
    loader = DataLoader("onnxrt_qdq", data)
    config = PostTrainingQuantConfig(approach="static")
    small = quantization.fit(Model(DEMO.model_path), config, calib_dataloader=loader)
    assert ops(small.model)["QuantizeLinear"]


def test_dummy_data_is_that_of_the_other_tool():
    data = Datasets("onnxruntime")["dummy"]([(3, 2), (3, 1)], dtype=["float32", "int64"])
    (first, second), label = data[0]
    random = np.random.RandomState(9527)
    assert np.array_equal(first, random.uniform(-128, 127, (3, 2)).astype(np.float32)[0])
    assert second.dtype == np.int64 and label == 0 and len(data) == 3
    with pytest.raises(DataError, match=r"no dataset 'ImagenetRaw'; .* bitwright.open_data"):
        Datasets("onnxrt_qdq")["ImagenetRaw"]
    with pytest.raises(DataError, match="not 'tensorflow'"):
        Datasets("tensorflow")


def test_mixed_precision_converts_all_but_what_is_named():
    fp32 = {"activation": {"dtype": ["fp32"]}, "weight": {"dtype": ["fp32"]}}
    config = MixedPrecisionConfig(precisions=["fp16"], op_name_dict={"classify": fp32})
    made = mix_precision.fit(DEMO.model_path, config, eval_func=lambda model: 1.0)
    assert not made.plan.nodes["classify"].quantized
    assert ops(made.model)["Cast"] >= 2
    kinds = {tensor.data_type for tensor in made.model.graph.initializer}
    assert onnx.TensorProto.FLOAT16 in kinds and onnx.TensorProto.FLOAT in kinds
    scores = iter((1.0, 0.5))
    with pytest.warns(UserWarning, match="is not within"):
        assert mix_precision.fit(DEMO.model_path, config, lambda model: next(scores)) is None
    with pytest.raises(RecipeError, match="leaves none"):
        mix_precision.fit(make_mlp(), MixedPrecisionConfig(excluded_precisions=["bf16"]))


def test_a_model_is_timed_on_the_batches_of_a_loader(capsys):
    data = Datasets("onnxrt_qdq")["dummy"](shape=(4, 1, 8, 8))
    config = BenchmarkConfig(iteration=2, warmup=1, cores_per_instance=1)
    found = benchmark.fit(DEMO.model_path, config, DataLoader("onnxruntime", data, batch_size=2))
    assert len(found.times) == 2 and found.items == 2
    assert "Throughput: " in capsys.readouterr().out
    assert benchmark.fit(DEMO.model_path, config, b_func=lambda model: model) == DEMO.model_path
    with pytest.warns(UserWarning, match="num_of_instance is ignored"):
        benchmark.fit(DEMO.model_path, BenchmarkConfig(iteration=1, num_of_instance=2))


def test_settings_without_an_effect_say_so():
    with pytest.warns(UserWarning, match="'there' stays empty"):
        neural_compressor.set_workspace("there")
    with pytest.warns(UserWarning, match="seed 7 is ignored"):
        neural_compressor.set_random_seed(7)
    assert neural_compressor.__version__ == "2.6" and logger is neural_compressor.logger
