"""The names of `quark.onnx`."""

from __future__ import annotations

import pytest
from support.models import make_cnn
from support.quark_configs import U8S8, quantize_config

from bitwright.compat import quark
from bitwright.compat.quark import AutoMixprecisionConfig, QConfig, QuarotConfig
from bitwright.errors import RecipeError


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (QuarotConfig(r_matrix_dim=64), "no rotation"),
        (AutoMixprecisionConfig(data_size=100, target_op_type=["Conv"]), "find_sensitivity"),
    ],
)
def test_steps_that_do_not_exist_are_refused_when_they_are_used(step, said):
    with pytest.raises(RecipeError, match=said):
        quantize_config(QConfig(global_config=U8S8, algo_config=[step]))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError):
        quark.NoSuchThing  # noqa: B018


def test_functions_have_quark_s_defaults():
    with pytest.raises(RecipeError, match="Did you mean 'per_channel'"):
        quark.quantize_static(make_cnn(), per_chanel=True)
