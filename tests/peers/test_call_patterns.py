"""Calls as people write them, by ONNX Runtime's tool and by ours: the same files, nodes and errors.

Each pattern is a piece of a script that takes the package as `q`, in the style of the tools'
examples and of projects that call them.
"""

from __future__ import annotations

import importlib
from collections import Counter

import numpy as np
import onnx
import onnxruntime.quantization as peer
import pytest
from support.models import make_cnn, make_mlp, make_samples, make_transformer, quality, retype
from support.peer_runs import quiet  # noqa: F401 (a fixture)

from bitwright.compat import onnxruntime as ours

MODELS = {
    "cnn": make_cnn,
    "mlp": lambda: make_mlp(width=32),
    "transformer": make_transformer,
    "old cnn": lambda: make_cnn(opset=11),
    "older cnn": lambda: make_cnn(opset=9),
    "old mlp": lambda: make_mlp(width=32, opset=11),
    "float16 transformer": lambda: retype(
        make_transformer(opset=21, ir_version=10), np.float16, onnx.TensorProto.FLOAT16
    ),
}
PATTERNS = {}


def pattern(model="cnn"):
    """Enter a piece of a script into the table, with the model that it is run on."""

    def enter(function):
        PATTERNS[function.__name__] = (model, function)
        return function

    return enter


def part(q, name):
    return importlib.import_module(f"{q.__name__}.{name}")


class Script:
    """What a script has around its call: a model file, samples, a place for results."""

    def __init__(self, q, folder, kind):
        self.folder = folder
        self.model = str(folder / "model.onnx")
        self.out = str(folder / "out.onnx")
        onnx.save(MODELS[kind](), self.model)
        self.samples = make_samples(MODELS[kind](), 4)
        samples = self.samples

        class Reader(q.CalibrationDataReader):
            def __init__(self):
                self.waiting = None

            def get_next(self):
                if self.waiting is None:
                    self.waiting = iter(samples)
                return next(self.waiting, None)

            def rewind(self):
                self.waiting = None

        self.reader = Reader


# Static -----------------------------------------------------------------------------------------


@pattern()
def static_with_defaults(q, s):
    q.quantize_static(s.model, s.out, s.reader())


@pattern()
def image_classification_example(q, s):
    q.quantize_static(
        s.model,
        s.out,
        s.reader(),
        quant_format=q.QuantFormat.QDQ,
        per_channel=False,
        weight_type=q.QuantType.QInt8,
    )


@pattern("transformer")
def preprocessed_first(q, s):
    ready = str(s.folder / "ready.onnx")
    part(q, "shape_inference").quant_pre_process(s.model, ready, skip_symbolic_shape=True)
    q.quantize_static(ready, s.out, s.reader())


@pattern()
def uint8_activations_per_channel(q, s):
    q.quantize_static(
        s.model, s.out, s.reader(), per_channel=True, activation_type=q.QuantType.QUInt8
    )


@pattern()
def reduced_range_for_old_processors(q, s):
    q.quantize_static(
        model_input=s.model,
        model_output=s.out,
        calibration_data_reader=s.reader(),
        per_channel=True,
        reduce_range=True,
        activation_type=q.QuantType.QUInt8,
        weight_type=q.QuantType.QInt8,
    )


@pattern()
def integer_operators(q, s):
    q.quantize_static(
        s.model,
        s.out,
        s.reader(),
        quant_format=q.QuantFormat.QOperator,
        activation_type=q.QuantType.QUInt8,
        weight_type=q.QuantType.QUInt8,
    )


@pattern()
def entropy_by_position(q, s):
    q.quantize_static(
        s.model,
        s.out,
        s.reader(),
        q.QuantFormat.QDQ,
        ["Conv"],
        calibrate_method=q.CalibrationMethod.Entropy,
    )


@pattern()
def percentile_with_options(q, s):
    q.quantize_static(
        s.model,
        s.out,
        s.reader(),
        activation_type=q.QuantType.QUInt8,
        calibrate_method=q.CalibrationMethod.Percentile,
        extra_options={"CalibPercentile": 99.99, "CalibTensorRangeSymmetric": False},
    )


@pattern()
def detection_model_with_excluded_head(q, s):
    q.quantize_static(
        s.model,
        s.out,
        s.reader(),
        activation_type=q.QuantType.QUInt8,
        nodes_to_exclude=["gemm", "/model.22/Concat_3", "/model.22/Split"],
    )


@pattern()
def symmetric_options_for_gpus(q, s):
    q.quantize_static(
        s.model,
        s.out,
        s.reader(),
        op_types_to_quantize=["Conv", "MatMul", "Add", "Gemm", "GlobalAveragePool", "FooBar"],
        extra_options={
            "ActivationSymmetric": True,
            "WeightSymmetric": True,
            "AddQDQPairToWeight": True,
            "DedicatedQDQPair": True,
            "QuantizeBias": False,
        },
    )


@pattern("transformer")
def a_projects_own_keys_in_the_options(q, s):
    q.quantize_static(
        s.model,
        s.out,
        s.reader(),
        extra_options={"MyProjectVersion": 3, "scenario": "same", "MatMulConstBOnly": True},
    )


@pattern()
def moving_average(q, s):
    q.quantize_static(
        s.model,
        s.out,
        s.reader(),
        extra_options={"CalibMovingAverage": True, "CalibMovingAverageConstant": 0.1},
    )


@pattern()
def sixteen_bits(q, s):
    q.quantize_static(
        s.model,
        s.out,
        s.reader(),
        activation_type=q.QuantType.QUInt16,
        weight_type=q.QuantType.QInt8,
        extra_options={"MinimumRealRange": 0.0001},
    )


@pattern()
def element_types_of_onnx(q, s):
    q.quantize_static(
        s.model,
        s.out,
        s.reader(),
        activation_type=onnx.TensorProto.UINT8,
        weight_type=onnx.TensorProto.INT8,
    )


@pattern()
def a_message_and_data_in_another_file(q, s):
    q.quantize_static(onnx.load(s.model), s.out, s.reader(), use_external_data_format=True)


@pattern()
def output_over_the_input(q, s):
    q.quantize_static(s.model, s.model, s.reader())


@pattern()
def only_some_nodes(q, s):
    q.quantize_static(s.model, s.out, s.reader(), nodes_to_quantize=["conv1", "conv7"])


@pattern()
def everything_excluded(q, s):
    names = [node.name for node in onnx.load(s.model).graph.node]
    q.quantize_static(s.model, s.out, s.reader(), nodes_to_exclude=names)


@pattern()
def mixed_precision_by_overrides(q, s):
    kind = q.QuantType
    q.quantize_static(
        s.model,
        s.out,
        s.reader(),
        activation_type=kind.QUInt8,
        per_channel=True,
        extra_options={
            "TensorQuantOverrides": {
                "p1": [{"quant_type": kind.QUInt16, "convert": {"quant_type": kind.QUInt8}}],
                "w1": [{"quant_type": kind.QInt8, "symmetric": True}],
                "w2": [{"axis": 0}],
            }
        },
    )


@pattern()
def a_range_that_is_known(q, s):
    q.quantize_static(
        s.model,
        s.out,
        s.reader(),
        activation_type=q.QuantType.QUInt8,
        extra_options={"TensorQuantOverrides": {"x": [{"rmin": np.float32(-8.0)}]}},
    )


@pattern("transformer")
def a_transformer_without_its_softmax(q, s):
    q.quantize_static(s.model, s.out, s.reader(), op_types_to_quantize=["MatMul", "Gather"])


@pattern()
def a_cache_between_two_runs(q, s):
    cache = s.folder / "cache.json"
    q.quantize_static(s.model, s.out, s.reader(), calibration_cache_path=cache)
    q.quantize_static(s.model, str(s.folder / "again.onnx"), None, calibration_cache_path=cache)


@pattern()
def a_static_configuration(q, s):
    config = q.StaticQuantConfig(
        s.reader(),
        calibrate_method=q.CalibrationMethod.MinMax,
        activation_type=q.QuantType.QUInt8,
        nodes_to_exclude=["gemm"],
        per_channel=True,
    )
    q.quantize(s.model, s.out, config)


@pattern()
def a_configuration_for_a_provider(q, s):
    config = q.get_qdq_config(
        s.model,
        s.reader(),
        activation_type=q.QuantType.QUInt16,
        weight_type=q.QuantType.QUInt8,
        keep_removable_activations=True,
    )
    q.quantize(s.model, s.out, config)


@pattern()
def all_but_some_by_a_function(q, s):
    config = q.get_qdq_config(
        s.model,
        s.reader(),
        calibrate_args={"percentile": 99.9, "unknown": 1},
        calibrate_method=q.CalibrationMethod.Percentile,
        nodes_to_exclude=lambda model, node: node.op_type == "Gemm",
    )
    q.quantize(s.model, s.out, config)


@pattern("mlp")
def four_bit_weights(q, s):
    q.quantize_static(
        s.model,
        s.out,
        s.reader(),
        activation_type=q.QuantType.QUInt8,
        weight_type=q.QuantType.QInt4,
    )


@pattern("old cnn")
def an_old_opset(q, s):
    q.quantize_static(s.model, s.out, s.reader())


@pattern("older cnn")
def an_opset_that_has_no_pairs(q, s):
    q.quantize_static(s.model, s.out, s.reader(), activation_type=q.QuantType.QUInt8)


@pattern("old cnn")
def integer_operators_at_an_old_opset(q, s):
    q.quantize_static(
        s.model,
        s.out,
        s.reader(),
        quant_format=q.QuantFormat.QOperator,
        activation_type=q.QuantType.QUInt8,
        per_channel=True,
    )


@pattern("float16 transformer")
def products_of_a_float16_model(q, s):
    q.quantize_static(s.model, s.out, s.reader(), op_types_to_quantize=["MatMul"])


# By parts ---------------------------------------------------------------------------------------


@pattern()
def calibrator_and_quantizer_by_hand(q, s):
    calibrator = q.create_calibrator(s.model, augmented_model_path=str(s.folder / "augmented.onnx"))
    calibrator.collect_data(s.reader())
    ranges = calibrator.compute_data()
    del calibrator
    (s.folder / "augmented.onnx").unlink(missing_ok=True)
    types = q.QuantType.QInt8, q.QuantType.QInt8
    nodes = [], [], ["Conv", "Gemm", "MaxPool"]
    quantizer = q.QDQQuantizer(onnx.load(s.model), True, False, *types, ranges, *nodes, {})
    quantizer.quantize_model()
    quantizer.model.save_model_to_file(s.out, False)


@pattern()
def parameters_read_from_typed_fields(q, s):
    q.quantize_static(s.model, s.out, s.reader(), activation_type=q.QuantType.QUInt8)
    stored = {tensor.name: tensor for tensor in onnx.load(s.out).graph.initializer}
    assert stored["x_scale"].float_data[0] > 0 and len(stored["x_zero_point"].int32_data) == 1


# Dynamic ----------------------------------------------------------------------------------------


@pattern("transformer")
def dynamic_with_defaults(q, s):
    q.quantize_dynamic(s.model, s.out)


@pattern("transformer")
def dynamic_as_transformers_export_does(q, s):
    q.quantize_dynamic(
        model_input=s.model,
        model_output=s.out,
        per_channel=True,
        reduce_range=True,
        weight_type=q.QuantType.QInt8,
        extra_options={"EnableSubgraph": True, "MatMulConstBOnly": True},
    )


@pattern("old mlp")
def dynamic_at_an_old_opset(q, s):
    q.quantize_dynamic(s.model, s.out, per_channel=True)


@pattern("mlp")
def dynamic_uint8_weights(q, s):
    q.quantize_dynamic(s.model, s.out, weight_type=q.QuantType.QUInt8)


@pattern("transformer")
def dynamic_of_listed_types(q, s):
    q.quantize_dynamic(s.model, s.out, op_types_to_quantize=["MatMul", "Attention", "LSTM"])


@pattern("mlp")
def dynamic_with_nothing_to_do(q, s):
    q.quantize_dynamic(s.model, s.out, op_types_to_quantize=["LSTM"], weight_type=q.QuantType.QInt8)


@pattern("mlp")
def dynamic_configuration(q, s):
    q.quantize(s.model, s.out, q.DynamicQuantConfig(weight_type=q.QuantType.QInt8))


@pattern("mlp")
def dynamic_with_data_in_another_file(q, s):
    q.quantize_dynamic(onnx.load(s.model), s.out, use_external_data_format=True)


# Weight-only ------------------------------------------------------------------------------------


@pattern("mlp")
def four_bit_products(q, s):
    nbits = part(q, "matmul_nbits_quantizer")
    quantizer = nbits.MatMulNBitsQuantizer(
        onnx.load(s.model), block_size=32, is_symmetric=True, accuracy_level=4
    )
    quantizer.process()
    quantizer.model.save_model_to_file(s.out, use_external_data_format=True)


@pattern("mlp")
def four_bit_pairs_with_an_excluded_node(q, s):
    nbits = part(q, "matmul_nbits_quantizer")
    config = nbits.DefaultWeightOnlyQuantConfig(
        block_size=16, is_symmetric=False, quant_format=q.QuantFormat.QDQ
    )
    quantizer = nbits.MatMulNBitsQuantizer(
        onnx.load(s.model), nodes_to_exclude=["second", "/lm_head/MatMul"], algo_config=config
    )
    quantizer.process()
    quantizer.model.save_model_to_file(s.out, False)


@pattern("mlp")
def a_weight_only_configuration(q, s):
    config = part(q, "matmul_nbits_quantizer").DefaultWeightOnlyQuantConfig(block_size=32)
    q.quantize(s.model, s.out, config)


# Mistakes ---------------------------------------------------------------------------------------


@pattern()
def a_reader_without_samples(q, s):
    s.samples.clear()
    q.quantize_static(s.model, s.out, s.reader())


@pattern()
def no_reader(q, s):
    q.quantize_static(s.model, s.out, None)


@pattern()
def int8_activations_with_uint8_weights(q, s):
    kind = q.QuantType
    q.quantize_static(
        s.model, s.out, s.reader(), activation_type=kind.QInt8, weight_type=kind.QUInt8
    )


@pattern()
def sixteen_bits_in_integer_operators(q, s):
    q.quantize_static(
        s.model,
        s.out,
        s.reader(),
        quant_format=q.QuantFormat.QOperator,
        activation_type=q.QuantType.QInt16,
    )


@pattern()
def float8_with_another_calibration(q, s):
    kind = q.QuantType.QFLOAT8E4M3FN
    q.quantize_static(s.model, s.out, s.reader(), activation_type=kind, weight_type=kind)


@pattern()
def an_override_of_nothing(q, s):
    options = {"TensorQuantOverrides": {"nothing": [{"symmetric": True}]}}
    q.quantize_static(s.model, s.out, s.reader(), extra_options=options)


@pattern()
def an_override_with_half_of_the_parameters(q, s):
    options = {"TensorQuantOverrides": {"x": [{"scale": np.array(0.1, np.float32)}]}}
    q.quantize_static(s.model, s.out, s.reader(), extra_options=options)


@pattern()
def something_else_for_a_configuration(q, s):
    q.quantize(s.model, s.out, {"per_channel": True})


@pattern()
def a_cache_of_another_method(q, s):
    cache = s.folder / "cache.json"
    q.quantize_static(s.model, s.out, s.reader(), calibration_cache_path=cache)
    q.quantize_static(
        s.model,
        s.out,
        None,
        calibrate_method=q.CalibrationMethod.Percentile,
        calibration_cache_path=cache,
    )


# A node that is left out reads and writes float here; there it reads dequantized values, and the
# runtime then stores its float weights in 8 bits.
OTHER_NODES = {"only_some_nodes", "all_but_some_by_a_function"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.sampled(26)
def test_both_tools_do_the_same(tmp_path, name):
    kind, call = PATTERNS[name]
    scripts, errors = {}, {}
    for q in (ours, peer):
        folder = tmp_path / q.__name__
        folder.mkdir()
        scripts[q] = Script(q, folder, kind)
        try:
            call(q, scripts[q])
        except Exception as error:  # noqa: BLE001 (its type is what is compared)
            errors[q] = error
    if peer in errors:
        assert isinstance(errors.get(ours), type(errors[peer])), errors
        return
    assert ours not in errors, errors
    written = [sorted(path.name for path in scripts[q].folder.iterdir()) for q in (ours, peer)]
    assert written[0] == written[1]
    model, samples = MODELS[kind](), make_samples(MODELS[kind](), 4)
    for file in written[0]:
        if not file.endswith(".onnx"):
            continue
        mine, theirs = (scripts[q].folder / file for q in (ours, peer))
        made = [onnx.load(path) for path in (mine, theirs)]
        counts = [Counter(node.op_type for node in one.graph.node) for one in made]
        assert counts[0] == counts[1] or name in OTHER_NODES
        opsets = [{item.domain: item.version for item in one.opset_import} for one in made]
        assert opsets[0] == opsets[1]
        found, wanted = (quality(model, path, samples) for path in (mine, theirs))
        assert found == wanted or found > wanted - 0.5
