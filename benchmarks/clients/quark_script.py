"""Quark's quantization of an ONNX model for the NPU, as its documentation begins."""

import numpy as np
from onnxruntime.quantization import CalibrationDataReader
from quark.onnx import ModelQuantizer
from quark.onnx.quantization.config import Config, get_default_config


class ImageDataReader(CalibrationDataReader):
    """Gives the images of a file one by one."""

    def __init__(self) -> None:
        self.data = iter([{"image": one[None]} for one in np.load("calibration.npy")])

    def get_next(self) -> dict | None:
        """Return the next image."""
        return next(self.data, None)


for name in ("XINT8", "A8W8", "S8S8_AAWS"):
    quantizer = ModelQuantizer(Config(global_quant_config=get_default_config(name)))
    quantizer.quantize_model("fixed.onnx", f"{name}.onnx", ImageDataReader())
