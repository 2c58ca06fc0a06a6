"""Quark's configurations and presets, on Bitwright's recipes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from support.models import (
    Reader,
    constants_of,
    dequantizer_before,
    make_cnn,
    make_mlp,
    make_samples,
    ops,
    quality,
)

import bitwright
from bitwright.compat import quark
from bitwright.compat.quark import (
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
from bitwright.compat.quark.presets import PRESET_ARGUMENTS
from bitwright.compat.vai_q_onnx.options import read_options
from bitwright.compat.vai_q_onnx.translate import Request, to_recipe
from bitwright.errors import DataError, RecipeError
from bitwright.numerics.types import QTYPES
from bitwright.recipe import named_recipe
from bitwright.recipe.presets import PRESETS

U8S8 = QLayerConfig(input_tensors=UInt8Spec(), weight=Int8Spec())


def quantize(config, model=None, **arguments):
    model = make_cnn() if model is None else model
    quantizer = ModelQuantizer(config)
    quantizer.config.print_summary = False
    return quantizer.quantize_model(
        model, calibration_data_reader=Reader(make_samples(model)), **arguments
    )


# Presets ------------------------------------------------------------------------------------

# Quark's name -> the recipe, where that is not the same name.
OTHER_NAMES = {"A16W8": "s16s8-asws"}


CALIBRATED = [n for n in PRESET_ARGUMENTS if n not in ("UINT8_DYNAMIC_QUANT", "MATMUL_NBITS")]


@pytest.mark.parametrize("name", CALIBRATED)
def test_a_preset_is_the_recipe_of_its_name(name):
    config = quark.get_default_config(name)
    request = Request(
        quant_format=config.quant_format,
        calibrate_method=config.calibrate_method,
        activation_type=config.activation_type,
        weight_type=config.weight_type,
        hardware="npu-cnn"
        if config.enable_npu_cnn
        else "npu-transformer"
        if config.enable_npu_transformer
        else None,
        cle=config.include_cle,
        fine_tune=config.include_fast_ft,
    )
    plain, tail, method = name.partition("_ADA")
    expected = named_recipe(OTHER_NAMES.get(plain, plain) + tail + method)
    made = to_recipe(request, read_options(config.extra_options), expected.name)
    assert made.replace(fine_tune=None) == expected.replace(fine_tune=None)
    # How long, and on what, is the preset's own matter.
    assert type(made.fine_tune) is type(expected.fine_tune)


def test_every_recipe_of_amd_s_has_a_preset():
    names = [name for name in PRESET_ARGUMENTS if "_ADA" not in name]
    presets = {named_recipe(OTHER_NAMES.get(name, name)).name for name in names}
    # The one that only the older package recommends.
    assert presets | {"cpu-cnn"} == {recipe.name for recipe in PRESETS}


@pytest.mark.parametrize("name", ["XINT8", "A8W8", "S8S8_AAWS", "U8S8_AAWS", "U8U8_AAWA"])
def test_presets_of_8_bits_quantize(name):
    model = make_cnn()
    made = quantize(QConfig.get_default_config(name), model)
    onnx.checker.check_model(made, full_check=True)
    assert quality(model, made, make_samples(model)) > 25


@pytest.mark.parametrize("name", ["A16W8", "U16S8_AAWS", "INT16_CNN_DEFAULT"])
def test_presets_of_16_bits_quantize(name):
    model = make_cnn()
    made = quantize(QConfig.get_default_config(name), model)
    assert quality(model, made, make_samples(model)) > 35


# One of each family; the others differ from these in their number type alone.
@pytest.mark.parametrize("name", ["FP16", "BF16", "BFP16", "MXINT8", "MXFP4E2M1", "MX9"])
def test_presets_of_floats_and_blocks_quantize_without_data(name, recwarn):
    model = make_cnn()
    config = QConfig.get_default_config(name)
    config.global_quant_config.print_summary = False
    made = ModelQuantizer(config).quantize_model(model)
    onnx.checker.check_model(made)
    least = {"FP16": 60, "BF16": 40, "MXFP4E2M1": 8}.get(name, 20)
    assert quality(model, made, make_samples(model)) > least
    assert not [w for w in recwarn if "random" in str(w.message)]


def test_a_dynamic_preset_needs_no_data(tmp_path, capsys):
    model = make_mlp()
    quantizer = ModelQuantizer(QConfig.get_default_config("UINT8_DYNAMIC_QUANT"))
    assert quantizer.quantize_model(model, tmp_path / "dynamic.onnx") is None
    made = onnx.load(tmp_path / "dynamic.onnx")
    assert ops(made)["MatMulInteger"] == 2
    assert "nodes quantized" in capsys.readouterr().out


def test_a_preset_for_weights_alone_needs_no_data():
    model = make_mlp()
    config = QConfig.get_default_config("MATMUL_NBITS")
    config.global_quant_config.print_summary = False
    made = ModelQuantizer(config).quantize_model(model)
    assert ops(made)["MatMulNBits"] == 2
    expected = bitwright.quantize(model, recipe="MATMUL_NBITS").to_proto()
    assert made.graph == expected.graph
    config.global_quant_config.extra_options["MatMulNBitsParams"]["Algorithm"] = "GPTQ"
    with pytest.raises(DataError, match="needs a calibration_data_reader"):
        ModelQuantizer(config).quantize_model(model)


def test_a_preset_may_be_changed_and_the_next_one_is_as_it_was():
    config = quark.get_default_config("XINT8")
    config.extra_options["AlignConcat"] = False
    assert quark.get_default_config("XINT8").extra_options == {"ActivationSymmetric": True}
    assert ops(quantize(Config(global_quant_config=config)))["QuantizeLinear"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("BF16_ADAQUANT", "only integer weights learn"),
        ("MX9_ADAQUANT", "only integer weights learn"),
        ("BF16_MIXED_BFP16", "overrides"),
        ("XINT9", "Did you mean 'XINT8'?"),
    ],
)
def test_presets_that_do_not_exist(name, said):
    with pytest.raises(RecipeError) as caught:
        QConfig.get_default_config(name)
    assert said in str(caught.value)


def test_steps_that_do_not_exist_say_so():
    with pytest.raises(RecipeError, match="QuarotConfig is not supported"):
        from bitwright.compat.quark import QuarotConfig  # noqa: F401
    with pytest.raises(AttributeError):
        quark.NoSuchThing  # noqa: B018


# Configurations -----------------------------------------------------------------------------


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
    made = quantize(QConfig(global_config=layer))
    assert check(constants_of(made))


def test_a_search_over_float_scales_stays_one():
    spec = UInt8Spec(calibration_method=CalibMethod.MinMSE)
    layer = QLayerConfig(input_tensors=spec, weight=Int8Spec(calibration_method=CalibMethod.MinMSE))
    made = constants_of(quantize(QConfig(global_config=layer)))
    plain = constants_of(quantize(QConfig(global_config=U8S8)))
    assert np.frexp(made["x_scale"])[0] != 0.5
    assert made["x_scale"] < plain["x_scale"] or made["w1_scale"] < plain["w1_scale"]


def test_layers_and_types_of_layers():
    wide = QLayerConfig(input_tensors=Int16Spec(), weight=Int16Spec())
    config = QConfig(
        global_config=U8S8,
        specific_layer_config={wide: ["conv2"]},
        layer_type_config={None: ["Gemm"]},
    )
    made = quantize(config)
    assert constants_of(made)["w2_quantized"].dtype == np.int16
    assert constants_of(made)["w1_quantized"].dtype == np.int8
    assert dequantizer_before(made, "fc", 0) is None
    by_type = QConfig(global_config=U8S8, layer_type_config={wide: ["Gemm"]})
    assert constants_of(quantize(by_type))["w3_quantized"].dtype == np.int16


def test_nodes_are_excluded_by_name_and_pattern():
    made = quantize(QConfig(global_config=U8S8, exclude=["fc", "^conv2.*"]))
    assert dequantizer_before(made, "conv1", 1) is not None
    assert dequantizer_before(made, "conv2", 1) is None
    assert dequantizer_before(made, "fc", 1) is None


def test_parts_of_the_graph_are_excluded():
    made = quantize(QConfig(global_config=U8S8, exclude=["fc", (["conv2"], ["residual"])]))
    assert dequantizer_before(made, "conv1", 1) is not None
    assert dequantizer_before(made, "conv2", 1) is None
    assert dequantizer_before(made, "fc", 1) is None


def test_steps():
    plain = constants_of(quantize(QConfig(global_config=U8S8)))
    step = CLEConfig(cle_steps=2, cle_scale_use_threshold=False)
    even = constants_of(quantize(QConfig(global_config=U8S8, algo_config=[step])))
    assert even.keys() == plain.keys()
    model = make_mlp()
    smooth = quantize(QConfig(global_config=U8S8, algo_config=[SmoothQuantConfig()]), model)
    assert quality(model, smooth, make_samples(model)) > 25


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (lambda: QConfig(global_config=QLayerConfig(weight=Int8Spec())), "both input_tensors and"),
        (
            lambda: QConfig(global_config=U8S8, exclude=[(["conv1"], ["b"])]),
            "no node is called 'b'",
        ),
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
            lambda: QLayerConfig(input_tensors=Int8Spec(), output_tensors=Int16Spec()),
            "must be like input_tensors",
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
        (lambda: QConfig(global_config=U8S8, extra_options={"Percentil": 1}), "Did you mean"),
    ],
)
def test_configurations_that_cannot_be(config, said):
    with pytest.raises(RecipeError) as caught:
        quantize(config())
    assert said in str(caught.value)


def test_data_is_asked_for_unless_random_data_is():
    config = QConfig.get_default_config("U8S8_AAWS")
    config.global_quant_config.print_summary = False
    with pytest.raises(DataError, match="UseRandomData"):
        ModelQuantizer(config).quantize_model(make_cnn())
    config.global_quant_config.extra_options["UseRandomData"] = True
    with pytest.warns(UserWarning, match="random numbers"):
        assert ops(ModelQuantizer(config).quantize_model(make_cnn()))["QuantizeLinear"]


def test_every_spec_has_its_number_type():
    specs = [getattr(quark, name) for name in quark.__all__ if name.endswith("Spec")]
    types = {spec().data_type.name for spec in specs}
    assert types <= set(QTYPES) and len(types) == 18
