"""Number types by Quark's names."""

from __future__ import annotations

import pytest

from bitwright.compat import quark
from bitwright.compat.quark import CalibMethod, QLayerConfig, QuantGranularity, ScaleType, Spec
from bitwright.compat.quark.onnx.quantization.config.spec import QTensorConfig
from bitwright.errors import RecipeError
from bitwright.numerics.types import BFLOAT16, QTYPES, UINT8


def test_every_spec_has_its_number_type():
    specs = [getattr(quark, name) for name in quark.__all__ if name.endswith("Spec")]
    types = {spec().data_type.name for spec in specs}
    assert types <= set(QTYPES) and len(types) == 18


def test_layers_come_from_plain_names_as_olive_writes_them():
    plain = {
        "symmetric": False,
        "scale_type": "ScaleType.Float32",
        "calibration_method": "CalibMethod.MinMax",
        "quant_granularity": "QuantGranularity.Channel",
        "data_type": "UInt8",
    }
    layer = QLayerConfig.from_dict(
        {"activation": plain, "input_tensors": plain, "weight": {**plain, "data_type": "BFloat16"}}
    )
    assert layer.input_tensors == QTensorConfig(
        False, ScaleType.Float32, CalibMethod.MinMax, QuantGranularity.Channel, UINT8
    )
    assert layer.activation is None and layer.weight.data_type is BFLOAT16
    with pytest.raises(RecipeError, match=r"unknown scale_type 'Float33'\. Did you mean"):
        Spec.from_dict({"scale_type": "ScaleType.Float33"})
    with pytest.raises(RecipeError, match=r"no 'wieght'\. Did you mean 'weight'"):
        QLayerConfig.from_dict({"wieght": plain})
