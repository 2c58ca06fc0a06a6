"""Models quantized by configurations of Quark."""

from __future__ import annotations

from bitwright.compat.quark import (
    Int8Spec,
    ModelQuantizer,
    QLayerConfig,
    UInt8Spec,
)
from support.models import (
    Reader,
    make_cnn,
    make_samples,
)

U8S8 = QLayerConfig(input_tensors=UInt8Spec(), weight=Int8Spec())


def quantize_config(config, model=None, **arguments):
    model = make_cnn() if model is None else model
    quantizer = ModelQuantizer(config)
    quantizer.config.print_summary = False
    return quantizer.quantize_model(
        model, calibration_data_reader=Reader(make_samples(model)), **arguments
    )
