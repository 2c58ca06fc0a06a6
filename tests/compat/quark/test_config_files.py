"""Configurations as JSON and back."""

from __future__ import annotations

import json

import pytest
from support.quark_configs import U8S8

from bitwright.compat.quark import (
    AdaRoundConfig,
    AutoMixprecisionConfig,
    CLEConfig,
    Int16Spec,
    QConfig,
    QLayerConfig,
    QuantGranularity,
    UInt16Spec,
)
from bitwright.errors import RecipeError

WIDE = QLayerConfig(
    input_tensors=UInt16Spec(), weight=Int16Spec(quant_granularity=QuantGranularity.Channel)
)


def test_a_configuration_survives_json():
    config = QConfig(
        global_config=U8S8,
        specific_layer_config={WIDE: ["conv1"]},
        layer_type_config={None: ["Softmax"], WIDE: ["Gemm"]},
        exclude=["head", [["a"], ["b"]]],
        algo_config=[
            CLEConfig(cle_steps=2),
            AdaRoundConfig(batch_size=4),
            AutoMixprecisionConfig(x=1),
        ],
        extra_options={"Percentile": 99.9},
    )
    assert QConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"global_config": {"weight": {"spec": "Int9Spec"}}}, "Did you mean 'Int8Spec'"),
        ({"algo_config": [{"name": "CLEConfigg"}]}, "Did you mean 'CLEConfig'"),
        (
            {"global_config": {"weight": {"spec": "Int8Spec", "scale_type": "Float"}}},
            "unknown scale_type 'Float'",
        ),
    ],
)
def test_an_unknown_name_is_refused(change, said):
    with pytest.raises(RecipeError, match=said):
        QConfig.from_dict(QConfig(global_config=U8S8).to_dict() | change)


def test_a_dict_needs_its_layer():
    with pytest.raises(RecipeError, match="global_config"):
        QConfig.from_dict({})
