"""Quark's presets, beside the recipes of the same names."""

from __future__ import annotations

import onnx
import pytest
from support.models import (
    build,
    make_cnn,
    make_mlp,
    make_samples,
    node,
    ops,
    quality,
    weight,
)
from support.quark_configs import quantize_config

import bitwright
from bitwright.compat import quark
from bitwright.compat.quark import (
    ModelQuantizer,
    QConfig,
)
from bitwright.compat.quark.config import PRESET_ARGUMENTS
from bitwright.compat.quark.quantizer import fused_options
from bitwright.compat.vai_q_onnx.options import ARGUMENTS, read_request
from bitwright.compat.vai_q_onnx.translate import to_recipe
from bitwright.errors import DataError
from bitwright.recipe import MinMax, named_recipe
from bitwright.recipe.named import PRESETS

# Quark's name -> the recipe, where that is not the same name.
OTHER_NAMES = {"A16W8": "s16s8-asws"}


CALIBRATED = [n for n in PRESET_ARGUMENTS if n not in ("UINT8_DYNAMIC_QUANT", "MATMUL_NBITS")]


@pytest.mark.parametrize("name", CALIBRATED)
def test_a_preset_is_the_recipe_of_its_name(name):
    config = quark.get_default_config(name)
    plain, tail, method = name.partition("_ADA")
    expected = named_recipe(OTHER_NAMES.get(plain, plain) + tail + method)
    if plain == "A16W8":  # which is S16S8_ASWS but for its ranges
        expected = expected.replace(ranges=MinMax())
    options = {**dict.fromkeys(fused_options(config), True), **config.extra_options}
    arguments = {name: getattr(config, name) for name in ARGUMENTS if hasattr(config, name)}
    made = to_recipe(read_request(arguments, options), expected.name)
    # A recipe refuses names that no node has, as all of ours; scripts go on with a warning.
    made = made.replace(select=made.select.replace(unknown_names="refuse"))
    # Recipes write blocks as they are documented, Quark rounds halves to even.
    made = made.replace(emulate={"block_rounding": None})
    # How long they learn, and on what, is the preset's own matter.
    made_plain, plain = (r.replace(fine_tune=None) for r in (made, expected))
    assert made_plain.replace(emulate={"fine_tune": plain.emulate.fine_tune}) == plain
    assert type(made.fine_tune) is type(expected.fine_tune)


def test_every_recipe_of_amd_s_has_a_preset():
    names = [name for name in PRESET_ARGUMENTS if "_ADA" not in name]
    presets = {named_recipe(OTHER_NAMES.get(name, name)).name for name in names}
    # Those that only the older package recommends.
    assert presets | {"cpu-cnn", "npu-cnn", "npu-transformer"} == {
        recipe.name for recipe in PRESETS
    }


@pytest.mark.parametrize("name", ["XINT8", "A8W8", "S8S8_AAWS", "U8S8_AAWS", "U8U8_AAWA"])
def test_presets_of_8_bits_quantize(name):
    model = make_cnn()
    made = quantize_config(QConfig.get_default_config(name), model)
    onnx.checker.check_model(made, full_check=True)
    assert quality(model, made, make_samples(model)) > 25


@pytest.mark.parametrize("name", ["A16W8", "U16S8_AAWS", "INT16_CNN_DEFAULT"])
def test_presets_of_16_bits_quantize(name):
    model = make_cnn()
    made = quantize_config(QConfig.get_default_config(name), model)
    assert quality(model, made, make_samples(model)) > 35


# Counted in models that amd-quark 0.13 writes of the same network.
@pytest.mark.parametrize(
    ("name", "pairs", "relus"),
    [
        ("U8S8_AAWS", 8, 0),
        ("U16S8_AAWS", 8, 2),
        ("INT8_CNN_DEFAULT", 8, 0),
        ("INT16_CNN_DEFAULT", 8, 2),
        ("INT8_TRANSFORMER_DEFAULT", 2, 2),
    ],
)
def test_nodes_are_those_that_quark_writes(name, pairs, relus):
    made = quantize_config(QConfig.get_default_config(name))
    assert ops(made)["QuantizeLinear"] == pairs
    assert ops(made)["Relu"] == relus


# One of each family; the others differ from these in their number type alone.
@pytest.mark.parametrize("name", ["FP16", "BF16", "BFP16", "MXINT8", "MXFP4E2M1", "MX9"])
@pytest.mark.sampled(3)
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


@pytest.mark.parametrize("name", ["A8W8", "A16W8", "BF16", "XINT8"])
@pytest.mark.parametrize("activation", ["Relu", "LeakyRelu"])
def test_no_pair_stands_between_a_convolution_and_its_activation(name, activation):
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="conv", kernel_shape=[3, 3]),
        node(activation, ["c"], ["r"], name="act"),
        node("Conv", ["r", "v"], ["y"], name="last", kernel_shape=[1, 1]),
    ]
    constants = {"w": weight(4, 3, 3, 3), "v": weight(2, 4, 1, 1)}
    model = build(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 2, 6, 6]}, constants, opset=17)
    config = QConfig.get_default_config(name)
    made = quantize_config(config, model)
    (found,) = [each for each in made.graph.node if each.op_type == activation]
    (before,) = [each for each in made.graph.node if found.input[0] in each.output]
    assert before.op_type == "Conv"
    assert quality(model, made, make_samples(model)) > 20


@pytest.mark.parametrize(
    ("opset", "domain"), [(13, "com.microsoft"), (20, "com.microsoft"), (21, "")]
)
def test_pairs_of_16_bits_are_the_runtime_s_own_below_opset_21(opset, domain):
    model = make_cnn(opset=opset)
    made = quantize_config(QConfig.get_default_config("A16W8"), model)
    assert {o.version for o in made.opset_import if o.domain == ""} == {opset}
    pairs = [each for each in made.graph.node if each.op_type == "QuantizeLinear"]
    assert pairs and {each.domain for each in pairs} == {domain}


def test_bf16_keeps_float_weights_with_pairs_or_casts():
    config = QConfig.get_default_config("BF16")
    made = quantize_config(config)
    kinds = {tensor.name: tensor.data_type for tensor in made.graph.initializer}
    assert kinds["w1"] == kinds["b1"] == onnx.TensorProto.FLOAT
    config.global_quant_config.extra_options["BF16QDQToCast"] = True
    casts = quantize_config(config)
    assert ops(casts)["Cast"] and not casts.functions
    assert quality(make_cnn(), casts, make_samples(make_cnn())) > 40


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("BF16", {"ExtendedQuantizeLinear", "ExtendedDequantizeLinear"}),
        ("BFP16", {"BFPQuantizeDequantize"}),
        ("MXINT8", {"MXQuantizeDequantize"}),
    ],
)
def test_operators_have_quark_s_names_and_domain(name, found):
    made = quantize_config(QConfig.get_default_config(name))
    assert {n.op_type for n in made.graph.node if n.domain == "com.amd.quark"} == found
    assert {f.name for f in made.functions if f.domain == "com.amd.quark"} == found
    assert "com.vai.quantize" not in {o.domain for o in made.opset_import}
    onnx.checker.check_model(made)
    assert quality(make_cnn(), made, make_samples(make_cnn())) > 20


@pytest.mark.parametrize("name", ["MATMUL_NBITS", "INT8_TRANSFORMER_DEFAULT"])
def test_a_model_in_which_nothing_is_quantized_is_written_as_it_was(name, tmp_path):
    model = build([node("Relu", ["x"], ["y"], name="relu")], {"x": [1, 4]}, {"y": [1, 4]})
    with pytest.warns(UserWarning, match="is written as it was: "):
        made = quantize_config(QConfig.get_default_config(name), model)
    assert ops(made) == {"Relu": 1}
    with pytest.warns(UserWarning, match="is written as it was: "):
        quantize_config(
            QConfig.get_default_config(name), model, model_output=tmp_path / "written.onnx"
        )
    assert ops(tmp_path / "written.onnx") == {"Relu": 1}
