"""ONNX Runtime's static quantization as its image classification example has it."""

import argparse

import numpy as np
import onnxruntime
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process


class ResNet50DataReader(CalibrationDataReader):
    """Gives the images of a file one by one."""

    def __init__(self, calibration_file: str, model_path: str) -> None:
        self.enum_data = None
        session = onnxruntime.InferenceSession(model_path, None)
        self.input_name = session.get_inputs()[0].name
        self.nhwc_data_list = np.load(calibration_file)

    def get_next(self) -> dict | None:
        """Return the next image."""
        if self.enum_data is None:
            self.enum_data = iter([{self.input_name: one[None]} for one in self.nhwc_data_list])
        return next(self.enum_data, None)


parser = argparse.ArgumentParser()
parser.add_argument("--input_model", default="model.onnx")
parser.add_argument("--output_model", default="static.onnx")
parser.add_argument("--calibrate_dataset", default="calibration.npy")
parser.add_argument("--quant_format", default=QuantFormat.QDQ, type=QuantFormat.from_string)
parser.add_argument("--per_channel", default=False, type=bool)
args = parser.parse_args()
quant_pre_process(args.input_model, "prepared.onnx")
quantize_static(
    "prepared.onnx",
    args.output_model,
    ResNet50DataReader(args.calibrate_dataset, "prepared.onnx"),
    quant_format=args.quant_format,
    per_channel=args.per_channel,
    weight_type=QuantType.QInt8,
)
