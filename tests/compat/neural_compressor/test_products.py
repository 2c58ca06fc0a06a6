"""Products are quantized as their settings say: GPTQ first, then AWQ or RTN for the others."""

import onnx
import pytest
from support.models import make_samples, make_transformer, ops

from bitwright.compat.neural_compressor.op_settings import OpSetting
from bitwright.compat.neural_compressor.products import product_types, quantize_products
from bitwright.compat.neural_compressor.quantization.config import (
    RTNConfig,
    get_woq_tuning_config,
)


def test_a_setting_becomes_an_entry_of_a_weight_config():
    usual = {"bits": 4, "group_size": 32, "scheme": "sym", "algorithm": "RTN"}
    assert OpSetting().of_weight() == usual
    assert OpSetting(keep_float=True).of_weight() == "fp32"
    config = {"a": usual, "b": usual}
    step = RTNConfig(quant_last_matmul=False)
    assert step.over(config) == {"a": usual, "b": "fp32"}


def test_a_step_changes_all_and_keeps_bits():
    step = get_woq_tuning_config()[3]
    found = step.over({"a": OpSetting(bits=8).of_weight()})
    assert found == {"a": {"bits": 8, "group_size": 128, "scheme": "asym", "algorithm": "GPTQ"}}


def test_two_algorithms_share_a_model():
    model = make_transformer()
    types = product_types(model)
    first, *others = types
    settings = {name: OpSetting(algorithm="GPTQ" if name == first else "RTN") for name in types}
    config = {name: setting.of_weight() for name, setting in settings.items()}
    made = quantize_products(model, config, {"GPTQ": {"actorder": True}}, make_samples(model, 4))
    assert others and ops(made.model)["MatMulNBits"] == len(types)


def test_an_unknown_argument_is_warned_of():
    with pytest.warns(UserWarning, match="option 'actordr' of GPTQ is unknown and ignored"):
        quantize_products(onnx.ModelProto(), {}, {"GPTQ": {"actordr": True}})
