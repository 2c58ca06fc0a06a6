"""`ModelQuantizer`, from old and new configurations."""

from __future__ import annotations

import onnx
import pytest
from support.models import (
    Reader,
    constants_of,
    dequantizer_before,
    make_cnn,
    make_samples,
    ops,
)

from bitwright.compat import quark
from bitwright.compat.quark import (
    Config,
    ModelQuantizer,
    QConfig,
    QuantizationConfig,
)
from bitwright.errors import DataError


def test_the_old_configuration(tmp_path):
    config = QuantizationConfig(
        calibrate_method=quark.CalibrationMethod.Percentile,
        activation_type=quark.QuantType.QUInt8,
        per_channel=True,
        nodes_to_exclude=["fc"],
        print_summary=False,
    )
    model = make_cnn()
    quantizer = ModelQuantizer(Config(global_quant_config=config))
    path = tmp_path / "q.onnx"
    assert quantizer.quantize_model(model, path, Reader(make_samples(model))) is None
    made = onnx.load(path)
    assert constants_of(made)["w1_scale"].shape == (8,)
    assert dequantizer_before(made, "fc", 1) is None


def test_data_is_asked_for_unless_random_data_is():
    config = QConfig.get_default_config("U8S8_AAWS")
    config.global_quant_config.print_summary = False
    with pytest.raises(DataError, match="UseRandomData"):
        ModelQuantizer(config).quantize_model(make_cnn())
    config.global_quant_config.extra_options["UseRandomData"] = True
    with pytest.warns(UserWarning, match="random numbers"):
        assert ops(ModelQuantizer(config).quantize_model(make_cnn()))["QuantizeLinear"]
