"""Attributes of shared-exponent formats, as Quark's scripts give them."""

import onnx
import pytest
from support.models import make_cnn, ops, quality
from support.models import make_samples as samples_of

from bitwright.compat import quark
from bitwright.compat.quark import BFP16Spec, MXInt8Spec, QConfig, QLayerConfig
from bitwright.compat.vai_q_onnx.blocks import read_block_type
from bitwright.errors import RecipeError

PRIME = {"bfp_method": "to_bfp_prime", "block_size": 16}


def attributes(model):
    node = next(n for n in model.graph.node if n.op_type.endswith("QuantizeDequantize"))
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


def blocks(options=None, kind="QBFP"):
    config = quark.QuantizationConfig(
        quant_format=quark.VitisQuantFormat.QDQ,
        activation_type=quark.VitisQuantType[kind],
        weight_type=quark.VitisQuantType[kind],
        include_cle=False,
        print_summary=False,
        extra_options=options or {},
    )
    return quark.ModelQuantizer(quark.Config(config)).quantize_model(make_cnn())


def test_blocks_are_written_as_quark_writes_them():
    made = blocks({"BFPAttributes": {"rounding_mode": 2}})
    assert attributes(made) == {
        "bfp_method": b"to_bfp",
        "axis": attributes(made)["axis"],
        "bit_width": 16,
        "block_size": 8,
        "rounding_mode": 2,
        "sub_block_size": 2,
        "sub_block_shift_bits": 1,
        "convert_to_bfloat_before_bfp": 0,
    }
    named = {n.name: n for n in made.graph.node}
    # A node of its own between Conv and Relu, which pairs of other types do not have there.
    assert list(named["c1_DequantizeLinear"].output) == ["c1_DequantizeLinear_Output"]
    assert list(named["y_DequantizeLinear"].input) == ["y_QuantizeLinear_Input"]
    assert ops(made)["BFPQuantizeDequantize"] == 16
    assert quality(make_cnn(), made, samples_of(make_cnn())) > 30


@pytest.mark.parametrize(
    ("config", "mode"),
    [
        (lambda: QConfig.get_default_config("BFP16"), 2),
        (lambda: QConfig.get_default_config("MXINT8"), 2),
        (lambda: QConfig(QLayerConfig(input_tensors=BFP16Spec(), weight=BFP16Spec())), 0),
        (lambda: QConfig(QLayerConfig(input_tensors=MXInt8Spec(), weight=MXInt8Spec())), 2),
    ],
    ids=["preset BFP16", "preset MXINT8", "BFP16Spec", "MXInt8Spec"],
)
def test_halves_go_where_they_go_there(config, mode):
    made = quark.ModelQuantizer(config()).quantize_model(make_cnn())
    assert attributes(made)["rounding_mode"] == mode


@pytest.mark.parametrize(
    ("kind", "option", "given", "name"),
    [
        ("QBFP", "BFPAttributes", {}, None),
        ("QBFP", "BFPAttributes", {"bit_width": 16}, "bfp16"),
        ("QBFP", "BFPAttributes", {**PRIME, "bit_width": 11}, "mx4"),
        ("QMX", "MXAttributes", {"element_dtype": "fp6_e3m2"}, "mxfp6e3m2"),
        ("QInt8", "MXAttributes", {"element_dtype": "fp6_e3m2"}, None),
    ],
)
def test_attributes_say_which_format_is_meant(kind, option, given, name):
    found = read_block_type(kind, {option: given})
    assert found == kind if name is None else found.name == name


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"bit_width": 12}, "no format that is known"),
        ({"axis": 2}, "axis in BFPAttributes is 1 here, not 2"),
        ({"bitwidth": 16}, "Did you mean 'bit_width'"),
        ({"rounding_mode": 3}, "is 0, 1 or 2"),
    ],
)
def test_other_attributes_are_refused(given, said):
    with pytest.raises(RecipeError, match=said):
        blocks({"BFPAttributes": given})
