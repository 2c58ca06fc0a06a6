"""Static, dynamic and smoothed models as ONNX Neural Compressor's scripts ask for them."""

import importlib

import onnx
import onnxruntime
import pytest
from support.models import make_mlp, make_samples, ops

import bitwright
from bitwright.compat.neural_compressor import data_reader
from bitwright.compat.neural_compressor.quantization import (
    CalibrationMethod,
    QuantFormat,
    QuantType,
    config,
    quantize,
    tuning,
)
from bitwright.errors import RecipeError

DEMO = bitwright.load_demo()


class Reader(data_reader.CalibrationDataReader):
    """As in its README: it is rewound before it is read."""

    def __init__(self, count=16):
        self.encoded_list = [{"image": image[None]} for image in DEMO.calibration[:count]]
        self.iter_next = iter(())
        self.given = 0

    def get_next(self):
        self.given += 1
        return next(self.iter_next, None)

    def rewind(self):
        self.iter_next = iter(self.encoded_list)


def run(tmp_path, quant_config):
    quantize(str(DEMO.model_path), tmp_path / "q.onnx", quant_config)
    made = onnx.load(tmp_path / "q.onnx")
    found = bitwright.compare(DEMO.model_path, made, data=DEMO.images[:16])
    return made, found.outputs[0].sqnr


def test_static_as_the_readme_has_it(tmp_path):
    made, sqnr = run(tmp_path, config.StaticQuantConfig(calibration_data_reader=Reader()))
    assert ops(made)["QLinearConv"] and sqnr > 20


def test_static_takes_the_options_of_the_other_tool(tmp_path):
    reader = Reader()
    made, sqnr = run(
        tmp_path,
        config.StaticQuantConfig(
            reader,
            CalibrationMethod.MinMax,
            QuantFormat.QDQ,
            QuantType.QUInt8,
            QuantType.QInt8,
            per_channel=True,
            op_types_to_quantize=["Conv", "MatMul", "Gemm"],
            calibration_sampling_size=8,
            quant_last_matmul=False,
            extra_options={"ActivationSymmetric": False},
        ),
    )
    last = next(node for node in made.graph.node if node.name == "classify")
    assert last.input[1] in {tensor.name for tensor in made.graph.initializer}
    assert ops(made)["QuantizeLinear"] and sqnr > 20
    assert reader.given == 17  # all are read once, and half of them calibrate


def test_a_smoothed_model_has_what_it_is_asked_for(tmp_path):
    given = config.SmoothQuantConfig(
        alpha="auto", calibration_data_reader=Reader(), quant_format=QuantFormat.QDQ
    )
    made, sqnr = run(tmp_path, given)
    assert ops(made)["DequantizeLinear"] and sqnr > 20
    with pytest.warns(UserWarning, match="scales_per_op of SmoothQuantConfig is ignored"):
        config.SmoothQuantConfig(scales_per_op=False)


def test_batch_norms_are_folded_unless_optimizing_is_switched_off(tmp_path):
    level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    kept = config.StaticQuantConfig(Reader(), quant_format=QuantFormat.QDQ)
    quantize(DEMO.model_path, tmp_path / "kept.onnx", kept, level)
    assert ops(onnx.load(tmp_path / "kept.onnx"))["BatchNormalization"]
    made, _ = run(tmp_path, config.StaticQuantConfig(Reader(), quant_format=QuantFormat.QDQ))
    assert not ops(made)["BatchNormalization"]


def test_dynamic_quantizes_products(tmp_path):
    made, sqnr = run(tmp_path, config.DynamicQuantConfig())
    assert ops(made)["MatMulInteger"] and sqnr > 20


def test_what_has_no_form_is_told(tmp_path):
    with pytest.raises(TypeError, match="Invalid quantization config type"):
        quantize(DEMO.model_path, tmp_path / "q.onnx", config.RTNConfig())
    with pytest.raises(RecipeError, match="recipe with overrides"):
        config.StaticQuantConfig().set_local("Conv", None)
    with pytest.warns(UserWarning, match="execution_provider 'CUDAExecutionProvider' is ignored"):
        config.DynamicQuantConfig(execution_provider="CUDAExecutionProvider").write(
            DEMO.model_path, tmp_path / "q.onnx"
        )


def test_autotune_tries_static_models_in_turn():
    seen = []

    def score(path):
        seen.append(ops(onnx.load(path)))
        return 1.0 if len(seen) in (1, 3) else 0.5

    given = config.StaticQuantConfig(per_channel=[True, False], calibration_data_reader=Reader())
    best = tuning.autotune(
        DEMO.model_path, tuning.TuningConfig([given]), score, calibration_data_reader=Reader()
    )
    assert ops(best) == seen[2] and seen[1]["QLinearConv"] and len(seen) == 3


def test_each_algorithm_is_in_the_set_of_all():
    names = [one.name for one in tuning.get_all_config_set()]
    assert names == ["rtn", "gptq", "awq", "static_quant", "smooth_quant", "dynamic_quant"]


def test_entries_of_algorithms_return_the_message(tmp_path):
    path = "bitwright.compat.neural_compressor.quantization.algorithm_entry"
    entry = importlib.import_module(path)
    model = make_mlp()
    made = entry.gptq_quantize_entry(model, config.GPTQConfig(), make_samples(model, 4))
    assert isinstance(made, onnx.ModelProto) and ops(made)["MatMulNBits"]
    entry.dynamic_quantize_entry(model, config.DynamicQuantConfig(), model_output=tmp_path / "d")
    assert (tmp_path / "d").stat().st_size


def test_weights_alone_by_its_own_quantizer():
    path = "bitwright.compat.neural_compressor.quantization"
    nbits = importlib.import_module(f"{path}.matmul_nbits_quantizer")
    old = importlib.import_module(f"{path}.matmul_4bits_quantizer")
    model = make_mlp()
    names = [node.name for node in model.graph.node if node.op_type in ("MatMul", "Gemm")]
    algorithms = (
        nbits.RTNWeightOnlyQuantConfig(),
        nbits.GPTQWeightOnlyQuantConfig(make_samples(model, 4)),
        nbits.AWQWeightOnlyQuantConfig(make_samples(model, 4)),
    )
    for algorithm in algorithms:
        quantizer = nbits.MatMulNBitsQuantizer(
            model, n_bits=4, block_size=32, is_symmetric=True, algo_config=algorithm
        )
        quantizer.process()
        assert ops(quantizer.model)["MatMulNBits"], algorithm
    quantizer = old.MatMul4BitsQuantizer(model, block_size=32, nodes_to_exclude=names[:1])
    quantizer.process()
    kept = {node.name: node.op_type for node in quantizer.model.graph.node}
    assert kept[names[0]] != "MatMulNBits" and "MatMulNBits" in kept.values()
