"""Options about low-bit weights alone: what each changes in the model written."""

from __future__ import annotations

import pytest
from onnx import helper
from support.models import (
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
        ({"MatMulNBitsParams": {"Bits": 4}}, "goes with UseMatMulNBits=True"),
        ({"GPTQParams": {"MSE": True}}, "goes with UseMatMulNBits=True"),
        ({"UseMatMulNBits": True, "CLESteps": 2}, "'CLESteps' has no effect with UseMatMulNBits"),
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
