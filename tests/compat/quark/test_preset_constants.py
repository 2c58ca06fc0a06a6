"""Presets as constants."""

from __future__ import annotations

import pytest

from bitwright.compat.quark.onnx.quantization.config import custom_config
from bitwright.compat.quark.onnx.quantization.config.custom_config import DefaultConfigMapping


@pytest.mark.parametrize("name", DefaultConfigMapping)
def test_every_preset_has_its_constant(name):
    constant = getattr(custom_config, f"{name}_CONFIG")
    assert constant is DefaultConfigMapping[name]
    assert constant == custom_config.get_default_config(name)
    assert constant is not custom_config.get_default_config(name)


def test_an_unknown_constant_has_a_suggestion():
    with pytest.raises(AttributeError, match="Did you mean 'XINT8_CONFIG'"):
        custom_config.XINT9_CONFIG  # noqa: B018
