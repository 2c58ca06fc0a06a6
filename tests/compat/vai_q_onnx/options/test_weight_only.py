"""Options about low-bit weights alone: what each changes in the model written."""

from __future__ import annotations

import pytest
from onnx import helper
from support.models import (
    constants_of,
    make_mlp,
    make_samples,
    ops,
    quality,
)
from support.vai_q_onnx import (
    option,
)

from bitwright.compat import vai_q_onnx
from bitwright.errors import RecipeError


def n_bits(model, extra=None, **settings):
    options = {"UseMatMulNBits": True, "MatMulNBitsParams": settings, **(extra or {})}
    return vai_q_onnx.quantize_static(model, None, make_samples(model, 4), extra_options=options)


@option("UseMatMulNBits", "MatMulNBitsParams", "GPTQParams")
def test_weights_alone_in_few_bits():
    model = make_mlp()
    made = n_bits(model, GroupSize=16, Bits=8, Symmetric=False, AccuracyLevel=4)
    products = [n for n in made.graph.node if n.op_type == "MatMulNBits"]
    found = {a.name: helper.get_attribute_value(a) for a in products[0].attribute}
    assert (found["bits"], found["block_size"], found["accuracy_level"]) == (8, 16, 4)
    assert len(products[0].input) == 4  # a zero point
    assert quality(model, made, make_samples(model)) > 35
    errors = [
        quality(model, n_bits(model, extra, Algorithm=name, GroupSize=32), make_samples(model))
        for name, extra in (("DEFAULT", {}), ("HQQ", {}), ("GPTQ", {"GPTQParams": {"MSE": True}}))
    ]
    assert len({round(float(error), 3) for error in errors}) == 3
    assert min(errors) > 10
    no_data = vai_q_onnx.quantize_static(model, extra_options={"UseMatMulNBits": True})
    assert ops(no_data)["MatMulNBits"] == len(products)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"UseMatMulNBits": True, "MatMulNBitsParams": {"Bit": 4}}, "Did you mean 'Bits'?"),
        ({"UseMatMulNBits": True, "MatMulNBitsParams": {"Bits": True}}, "of the type int"),
        ({"UseMatMulNBits": True, "MatMulNBitsParams": 4}, "is a dict of settings, not 4"),
        (
            {"UseMatMulNBits": True, "MatMulNBitsParams": {"Algorithm": "GPTK"}},
            "Did you mean 'GPTQ'?",
        ),
    ],
)
def test_mistakes_about_weights_alone(options, said):
    model = make_mlp()
    with pytest.raises(RecipeError) as caught:
        vai_q_onnx.quantize_static(model, None, make_samples(model), extra_options=options)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"MatMulNBitsParams": {"Bits": 4}}, "no effect without UseMatMulNBits=True"),
        ({"GPTQParams": {"MSE": True}}, "no effect without UseGPTQ=True or UseMatMulNBits=True"),
        ({"UseMatMulNBits": True, "CLESteps": 2}, "'CLESteps' has no effect with UseMatMulNBits"),
    ],
)
def test_settings_of_another_mode_are_ignored_with_a_warning(options, said):
    model = make_mlp()
    with pytest.warns(UserWarning, match=said):
        vai_q_onnx.quantize_static(model, None, make_samples(model), extra_options=options)


@option("UseGPTQ")
def test_integers_are_rounded_for_the_data():
    model = make_mlp()
    made = [
        vai_q_onnx.quantize_static(
            model,
            None,
            make_samples(model, 8),
            per_channel=True,
            extra_options={"UseGPTQ": asked},
        )
        for asked in (True, False)
    ]
    codes = [constants_of(each)["w1_quantized"] for each in made]
    assert codes[0].dtype == codes[1].dtype and (codes[0] != codes[1]).any()
