"""The enumerations."""

from __future__ import annotations

import pytest

from bitwright.compat.onnxruntime import (
    CalibrationMethod,
    QuantFormat,
    QuantType,
)
from bitwright.errors import RecipeError


def test_enums_read_their_names():
    assert QuantType.from_string("QUInt4") is QuantType.QUInt4
    assert QuantFormat.from_string("QDQ") is QuantFormat.QDQ
    assert str(QuantType.QInt8) == "QInt8"
    assert str(CalibrationMethod.MinMax) == "CalibrationMethod.MinMax"
    with pytest.raises(RecipeError, match="unknown quantization type 'int8'") as error:
        QuantType.from_string("int8")
    assert isinstance(error.value, ValueError)
