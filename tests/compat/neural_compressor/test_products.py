"""Products are quantized as their settings say: GPTQ first, then AWQ or RTN for the others."""

import onnx
import pytest
from support.models import make_samples, make_transformer, ops

from bitwright.compat.neural_compressor.op_settings import OpSetting
from bitwright.compat.neural_compressor.products import (
    TUNING_STEPS,
    product_types,
    quantize_products,
    weight_config_of,
)

NAMES = ["a", "b"]


def test_settings_become_a_weight_config():
    usual = {"bits": 4, "group_size": 32, "scheme": "sym", "algorithm": "RTN"}
    settings = {"b": OpSetting(keep_float=True)}
    assert weight_config_of(NAMES, {}) == {"a": usual, "b": usual}
    assert weight_config_of(NAMES, settings) == {"a": usual, "b": "fp32"}
    assert weight_config_of(NAMES, {}, last=False) == {"a": usual, "b": "fp32"}


def test_a_step_changes_all_and_keeps_bits():
    step, last = TUNING_STEPS[3]
    found = weight_config_of(["a"], {"a": OpSetting(bits=8)}, step, last=last)
    assert found == {"a": {"bits": 8, "group_size": 128, "scheme": "asym", "algorithm": "GPTQ"}}


def test_two_algorithms_share_a_model():
    model = make_transformer()
    types = product_types(model)
    first, *others = types
    settings = {name: OpSetting(algorithm="GPTQ" if name == first else "RTN") for name in types}
    config = weight_config_of(list(types), settings)
    made = quantize_products(model, config, {"GPTQ": {"actorder": True}}, make_samples(model, 4))
    assert others and ops(made.model)["MatMulNBits"] == len(types)


def test_an_unknown_argument_is_warned_of():
    with pytest.warns(UserWarning, match="option 'actordr' of GPTQ is unknown and ignored"):
        quantize_products(onnx.ModelProto(), {}, {"GPTQ": {"actordr": True}})
