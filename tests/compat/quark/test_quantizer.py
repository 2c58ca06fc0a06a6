"""`ModelQuantizer`, from old and new configurations."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from support.models import (
    Reader,
    build,
    constants_of,
    dequantizer_before,
    make_cnn,
    make_mlp,
    make_samples,
    node,
    ops,
    quality,
)
from support.quark_configs import U8S8, quantize_config

from bitwright.compat import quark
from bitwright.compat.quark import (
    BiasCorrectionConfig,
    CalibMethod,
    CLEConfig,
    Config,
    Int8Spec,
    Int16Spec,
    Int32Spec,
    ModelQuantizer,
    QConfig,
    QLayerConfig,
    QuantGranularity,
    QuantizationConfig,
    ScaleType,
    SmoothQuantConfig,
    UInt8Spec,
    XInt8Spec,
)
from bitwright.compat.quark.flattening import flatten
from bitwright.errors import DataError, RecipeError
from bitwright.numerics.types import INT16


def test_the_old_configuration(tmp_path):
    config = QuantizationConfig(
        calibrate_method=quark.CalibrationMethod.Percentile,
        activation_type=quark.QuantType.QUInt8,
        per_channel=True,
        nodes_to_exclude=["fc"],
        print_summary=False,
    )
    model = make_cnn()
    quantizer = ModelQuantizer(Config(global_quant_config=config))
    path = tmp_path / "q.onnx"
    assert quantizer.quantize_model(model, path, Reader(make_samples(model))) is None
    made = onnx.load(path)
    assert constants_of(made)["w1_scale"].shape == (8,)
    assert dequantizer_before(made, "fc", 1) is None


def test_data_is_asked_for_unless_random_data_is():
    config = QConfig.get_default_config("U8S8_AAWS")
    config.global_quant_config.print_summary = False
    with pytest.raises(DataError, match="UseRandomData"):
        ModelQuantizer(config).quantize_model(make_cnn())
    config.global_quant_config.extra_options["UseRandomData"] = True
    with pytest.warns(UserWarning, match="random numbers"):
        assert ops(ModelQuantizer(config).quantize_model(make_cnn()))["QuantizeLinear"]


@pytest.mark.parametrize(
    ("layer", "check"),
    [
        (U8S8, lambda c: c["x_zero_point"].dtype == np.uint8 and c["w1_zero_point"] == 0),
        (
            QLayerConfig(activation=Int8Spec(), weight=Int8Spec()),
            lambda c: c["x_zero_point"].dtype == np.int8 and c["x_zero_point"] == 0,
        ),
        (
            QLayerConfig(
                input_tensors=UInt8Spec(),
                weight=Int8Spec(quant_granularity=QuantGranularity.Channel),
            ),
            lambda c: c["w1_scale"].shape == (8,),
        ),
        (
            QLayerConfig(input_tensors=XInt8Spec(), weight=XInt8Spec()),
            lambda c: all(np.frexp(v)[0] == 0.5 for n, v in c.items() if n.endswith("_scale")),
        ),
        (
            QLayerConfig(input_tensors=Int16Spec(), weight=Int8Spec()),
            lambda c: c["x_zero_point"].dtype == np.int16,
        ),
        (
            QLayerConfig(input_tensors=XInt8Spec(), weight=XInt8Spec(), bias=Int32Spec()),
            lambda c: c["b1_quantized"].dtype == np.int32,
        ),
        (
            QLayerConfig(input_tensors=UInt8Spec(scale_type=ScaleType.Int16), weight=Int8Spec()),
            lambda c: c["x_scale"] * 2**16 % 1 == 0,
        ),
    ],
)
def test_specs_become_types_and_scales(layer, check):
    made = quantize_config(QConfig(global_config=layer))
    assert check(constants_of(made))


def test_a_search_over_float_scales_stays_one():
    spec = UInt8Spec(calibration_method=CalibMethod.MinMSE)
    layer = QLayerConfig(input_tensors=spec, weight=Int8Spec(calibration_method=CalibMethod.MinMSE))
    made = constants_of(quantize_config(QConfig(global_config=layer)))
    plain = constants_of(quantize_config(QConfig(global_config=U8S8)))
    assert np.frexp(made["x_scale"])[0] != 0.5
    assert made["x_scale"] < plain["x_scale"] or made["w1_scale"] < plain["w1_scale"]


def test_layers_and_types_of_layers():
    wide = QLayerConfig(input_tensors=Int16Spec(), weight=Int16Spec())
    config = QConfig(
        global_config=U8S8,
        specific_layer_config={wide: ["conv2"]},
        layer_type_config={None: ["Gemm"]},
    )
    made = quantize_config(config)
    assert constants_of(made)["w2_quantized"].dtype == np.int16
    assert constants_of(made)["w1_quantized"].dtype == np.int8
    assert dequantizer_before(made, "fc", 0) is None
    by_type = QConfig(global_config=U8S8, layer_type_config={wide: ["Gemm"]})
    assert constants_of(quantize_config(by_type))["w3_quantized"].dtype == np.int16


def test_nodes_are_excluded_by_name_and_pattern():
    made = quantize_config(QConfig(global_config=U8S8, exclude=["fc", "^conv2.*"]))
    assert dequantizer_before(made, "conv1", 1) is not None
    assert dequantizer_before(made, "conv2", 1) is None
    assert dequantizer_before(made, "fc", 1) is None


def test_parts_of_the_graph_are_excluded():
    made = quantize_config(QConfig(global_config=U8S8, exclude=["fc", (["conv2"], ["residual"])]))
    assert dequantizer_before(made, "conv1", 1) is not None
    assert dequantizer_before(made, "conv2", 1) is None
    assert dequantizer_before(made, "fc", 1) is None


def test_steps():
    plain = constants_of(quantize_config(QConfig(global_config=U8S8)))
    step = CLEConfig(cle_steps=2, cle_scale_use_threshold=False)
    even = constants_of(quantize_config(QConfig(global_config=U8S8, algo_config=[step])))
    assert even.keys() == plain.keys()
    model = make_mlp()
    smooth = quantize_config(QConfig(global_config=U8S8, algo_config=[SmoothQuantConfig()]), model)
    assert quality(model, smooth, make_samples(model)) > 25


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (lambda: QConfig(global_config=QLayerConfig(weight=Int8Spec())), "both input_tensors and"),
        (
            lambda: QConfig(global_config=U8S8, specific_layer_config={U8S8: ["conv9"]}),
            "no node is called 'conv9'",
        ),
        (
            lambda: QConfig(
                global_config=QLayerConfig(input_tensors=XInt8Spec(), weight=Int8Spec())
            ),
            "same scale_type",
        ),
        (
            lambda: QConfig(
                global_config=QLayerConfig(
                    input_tensors=UInt8Spec(),
                    weight=Int8Spec(quant_granularity=QuantGranularity.Group),
                )
            ),
            "weights in groups",
        ),
        (lambda: QuantizationConfig(), "wrap a QuantizationConfig"),
    ],
)
def test_configurations_that_cannot_be(config, said):
    with pytest.raises(RecipeError) as caught:
        quantize_config(config())
    assert said in str(caught.value)


def test_what_a_layer_writes_may_have_another_type():
    model = make_cnn()
    first = next(node for node in model.graph.node if node.op_type == "Conv")
    layer = QLayerConfig(input_tensors=Int8Spec(), weight=Int8Spec(), output_tensors=Int16Spec())
    plain = QLayerConfig(input_tensors=Int8Spec(), weight=Int8Spec())
    config = QConfig(global_config=plain, specific_layer_config={layer: [first.name]})
    given = flatten(config, model).extra_options["TensorQuantOverrides"]
    assert given[first.output[0]] == [{"quant_type": INT16, "symmetric": True}]
    made = quantize_config(config)
    kinds = {t.data_type for t in made.graph.initializer if t.name.endswith("zero_point")}
    assert onnx.TensorProto.INT16 in kinds
    with pytest.warns(UserWarning, match="output_tensors of global_config is ignored"):
        flatten(QConfig(global_config=layer), model)


def test_arguments_of_older_configurations_are_options_of_the_new_one():
    layer = QLayerConfig(input_tensors=Int8Spec(), weight=Int8Spec())
    asked = {"OptimizeModel": False, "OpTypesToQuantize": ["Conv"], "ConvertFP16ToFP32": True}
    asked |= {"PrintSummary": False, "EnableNPUCnn": False, "Int32Bias": True}
    config = QConfig(layer, **asked)
    flat = flatten(config, make_cnn())
    assert not flat.optimize_model and flat.convert_fp16_to_fp32 and not flat.print_summary
    assert flat.op_types_to_quantize == ["Conv"] and "OptimizeModel" not in flat.extra_options
    assert config.extra_options == asked
    assert ops(quantize_config(config))["Gemm"] == 1


def test_single_layers_are_named_by_patterns_too():
    plain = QLayerConfig(input_tensors=Int8Spec(), weight=Int8Spec())
    wide = QLayerConfig(input_tensors=Int16Spec(), bias=Int8Spec())
    model = make_cnn()
    config = QConfig(global_config=plain, specific_layer_config={wide: ["^conv.*"]})
    with pytest.warns(UserWarning, match="bias of a single layer is ignored"):
        given = flatten(config, model).extra_options["TensorQuantOverrides"]
    convs = [node for node in model.graph.node if node.op_type == "Conv"]
    assert {node.input[0] for node in convs} == given.keys()


@pytest.mark.parametrize(
    ("preset", "options", "converted"),
    [
        ("BFP16", {}, True),
        ("BFP16", {"ConvertSplitToSlice": False}, False),
        ("BF16", {"BF16QDQToCast": True}, False),
        ("U8S8_AAWS", {}, False),
    ],
)
def test_models_in_the_vendor_s_format_are_converted_for_its_compiler(preset, options, converted):
    parts = node("Split", ["x"], ["a", "b"], name="split", axis=1)
    join = node("Mul", ["a", "b"], ["y"], name="mul")
    model = build([parts, join], {"x": [1, 4, 6]}, {"y": [1, 2, 6]})
    config = QConfig.get_default_config(preset)
    config.global_quant_config.extra_options |= options
    made = quantize_config(config, model)
    assert (ops(made)["Slice"] == 2) is converted


def test_the_step_of_a_configuration_is_the_option():
    layer = QLayerConfig(input_tensors=Int8Spec(), weight=Int8Spec())
    config = QConfig(global_config=layer, algo_config=[BiasCorrectionConfig()])
    assert flatten(config, make_cnn()).extra_options["BiasCorrection"] is True


def test_parameters_are_stored_where_scripts_read_them():
    made = quantize_config(QConfig.get_default_config("U8S8_AAWS"))
    stored = {tensor.name: tensor for tensor in made.graph.initializer}
    assert len(stored["x_scale"].float_data) == len(stored["x_zero_point"].int32_data) == 1
    assert list(stored["b1_quantized_scale"].dims) == [1]
    assert next(iter(stored)) == "x_zero_point"
