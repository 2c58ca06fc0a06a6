"""The same call of ONNX Runtime's own quantization tool and of ours."""

from __future__ import annotations

import logging

import onnx
import pytest

from bitwright.compat import onnxruntime as ours

peer = pytest.importorskip("onnxruntime.quantization")


class PeerReader(peer.CalibrationDataReader):
    def __init__(self, samples):
        self._samples = iter(samples)

    def get_next(self):
        return next(self._samples, None)


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def members(module, names):
    """Turn {"activation_type": "QUInt8"} into the enum members of one of the packages."""
    kinds = {
        "activation_type": module.QuantType,
        "weight_type": module.QuantType,
        "calibrate_method": module.CalibrationMethod,
        "quant_format": module.QuantFormat,
    }
    return {key: kinds[key][value] if key in kinds else value for key, value in names.items()}


def quantize_by(module, folder, model, samples, **options):
    """Return the model that one of the packages writes."""
    path = folder / f"{module.__name__}.onnx"
    # A copy: the peer moves the tensors of the model it is given to files of its own.
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    module.quantize_static(copy, path, PeerReader(samples), **members(module, options))
    return onnx.load(path)


def quantize_both(folder, model, samples, **options):
    """Return (ours, the peer's) for the same call."""
    return tuple(quantize_by(module, folder, model, samples, **options) for module in (ours, peer))
