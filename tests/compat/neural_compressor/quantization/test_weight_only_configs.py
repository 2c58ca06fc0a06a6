"""Configurations of weight-only algorithms: combinations, single products, and what stays float."""

import pytest
from support.models import make_samples, make_transformer, ops

from bitwright.compat.neural_compressor.products import product_types
from bitwright.compat.neural_compressor.quantization.weight_only_configs import (
    AWQConfig,
    GPTQConfig,
    RTNConfig,
)

MODEL = make_transformer(width=32)
PRODUCTS = product_types(MODEL)
FIRST, *_, LAST = PRODUCTS


def quantized(config, samples=None):
    return config.quantize(MODEL, samples)


def test_lists_stand_for_all_combinations_once_each():
    configs = RTNConfig(weight_bits=[4, 8], weight_sym=[True, False, True]).expand()
    assert [(one.weight_bits, one.weight_sym) for one in configs] == [
        (4, True),
        (8, True),
        (4, False),
        (8, False),
    ]
    assert GPTQConfig(percdamp=0.1).expand() == [GPTQConfig(percdamp=0.1)]


@pytest.mark.parametrize("config", [RTNConfig(), GPTQConfig(), AWQConfig()])
def test_all_products_are_quantized(config):
    found = quantized(config, make_samples(MODEL, 3))
    assert ops(found.model)["MatMulNBits"] == len(PRODUCTS)


def test_the_last_product_may_stay_float():
    plan = quantized(RTNConfig(quant_last_matmul=False)).plan
    assert not plan.nodes[LAST].quantized and plan.nodes[FIRST].quantized


def test_single_products_have_their_own_by_name_and_pattern():
    config = RTNConfig().set_local(FIRST, RTNConfig(weight_dtype="fp32"))
    config = config.set_local(f"{LAST[:3]}.*", RTNConfig(weight_bits=8))
    plan = quantized(config.expand()[0]).plan
    assert not plan.nodes[FIRST].quantized
    bits = {weight.nodes[0]: weight.bits for weight in plan.weights.values()}
    assert bits[LAST] == 8 and 4 in bits.values()


def test_a_white_list_names_all_that_is_quantized():
    plan = quantized(RTNConfig(white_list=[FIRST])).plan
    assert [weight.nodes for weight in plan.weights.values()] == [(FIRST,)]


def test_layers_one_by_one_is_what_happens_anyway():
    with pytest.warns(UserWarning, match="layer_wise_quant is ignored: weights are read one after"):
        quantized(RTNConfig(layer_wise_quant=True))


def test_a_configuration_is_plain_data_and_back():
    config = GPTQConfig(actorder=True).set_local(FIRST, GPTQConfig(weight_bits=8))
    found = GPTQConfig.from_dict(config.to_dict())
    assert found == config and found.local_config == config.local_config
    assert config.to_dict()["local"][FIRST]["weight_bits"] == 8
    assert RTNConfig().to_dict()["weight_group_size"] == 32


def test_settings_of_single_products_are_added():
    config = RTNConfig() + RTNConfig().set_local(FIRST, RTNConfig(weight_dtype="fp32"))
    assert not quantized(config).plan.nodes[FIRST].quantized
    with pytest.raises(TypeError):
        RTNConfig() + GPTQConfig()
