"""Number types by Quark's names."""

import pytest

from bitwright.compat.quark.onnx.quantization.config import data_type
from bitwright.compat.quark.onnx.quantization.config.data_type import parse_data_type
from bitwright.errors import RecipeError
from bitwright.numerics.types import BFP16, UINT8


def test_types_are_found_by_name_and_stand_in_the_module():
    assert parse_data_type("UInt8") is data_type.UInt8 is UINT8
    assert parse_data_type("BFP16") is data_type.BFP16 is BFP16
    assert parse_data_type(None) is None
    with pytest.raises(RecipeError, match="unknown number type 'UInt9'"):
        parse_data_type("UInt9")
