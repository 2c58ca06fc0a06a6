"""Steps of a configuration as options."""

from __future__ import annotations

import warnings

import pytest
from support.models import constants_of, make_mlp, make_samples, ops, quality
from support.quark_configs import U8S8, quantize_config

from bitwright.compat.quark import (
    AlgoConfig,
    CLEConfig,
    Config,
    GPTQConfig,
    Int8Spec,
    QConfig,
    QLayerConfig,
    QuantGranularity,
    QuantizationConfig,
    UInt8Spec,
)
from bitwright.errors import RecipeError


def test_gptq_rounds_the_weights_of_matmul():
    step = GPTQConfig(bits=4, group_size=32, act_order=True)
    config = QConfig(global_config=U8S8, algo_config=[step], extra_options={"UseMatMulNBits": True})
    made = quantize_config(config, make_mlp())
    assert ops(made)["MatMulNBits"] == 2
    assert not ops(made)["QuantizeLinear"]


def test_gptq_beside_quantized_activations_rounds_integers_for_the_data():
    model, samples = make_mlp(), make_samples(make_mlp(), 32)
    errors = {}
    for name, steps in {"nearest": [], "gptq": [GPTQConfig(per_channel=True)]}.items():
        weight = Int8Spec(quant_granularity=QuantGranularity.Channel)
        layer = QLayerConfig(input_tensors=UInt8Spec(), weight=weight)
        made = quantize_config(QConfig(global_config=layer, algo_config=steps), model)
        # A product with a bias is a Gemm before it is quantized.
        assert ops(made)["MatMul"] + ops(made)["Gemm"] == 2 and ops(made)["QuantizeLinear"]
        stored = constants_of(made)
        [first, *_] = [name for name in stored if name.endswith("_quantized") and name[0] != "b"]
        errors[name] = quality(model, made, samples), stored[first]
    assert (errors["gptq"][1] != errors["nearest"][1]).any()
    assert errors["gptq"][0] > errors["nearest"][0]


def test_gptq_warns_of_what_counts_for_nothing_beside_quantized_activations():
    config = QConfig(global_config=U8S8, algo_config=[GPTQConfig(bits=4, block_size=64)])
    with pytest.warns(UserWarning, match="Bits in GPTQParams has no effect") as seen:
        quantize_config(config, make_mlp())
    assert not any("BlockSize" in str(each.message) for each in seen)


def test_a_step_of_another_s_own_is_refused():
    class Own(AlgoConfig):
        pass

    with pytest.raises(RecipeError, match="Own in algo_config"):
        quantize_config(QConfig(global_config=U8S8, algo_config=[Own()]))


@pytest.mark.parametrize(
    "quiet", [{"ignore_warnings": True}, {"extra_options": {"IgnoreWarnings": True}}]
)
def test_warnings_are_ignored_on_request(quiet):
    loud = {"Unknown": 1, **quiet.get("extra_options", {})}
    config = QuantizationConfig(**{**quiet, "extra_options": loud})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quantize_config(Config(config))
    with pytest.warns(UserWarning, match="'Unknown' is unknown and ignored"):
        quantize_config(Config(QuantizationConfig(extra_options={"Unknown": 1})))


def test_a_step_can_be_changed_before_it_is_used():
    step = CLEConfig()
    step.cle_steps = 4
    assert step.options()["CLESteps"] == 4
    with pytest.raises(AttributeError, match="CLEConfig has no setting 'cle_step'"):
        step.cle_step = 4
