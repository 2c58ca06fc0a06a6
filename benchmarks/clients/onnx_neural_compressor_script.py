"""ONNX Neural Compressor as its README has it: weights alone, static, and tuned."""

import numpy as np
import onnx
from onnx_neural_compressor import data_reader
from onnx_neural_compressor.quantization import (
    QuantFormat,
    config,
    matmul_nbits_quantizer,
    quantize,
)


class DataReader(data_reader.CalibrationDataReader):
    """Gives the images of a file one by one."""

    def __init__(self) -> None:
        self.encoded_list = [{"image": one[None]} for one in np.load("calibration.npy")]
        self.iter_next = iter(self.encoded_list)

    def get_next(self) -> dict | None:
        """Return the next image."""
        return next(self.iter_next, None)

    def rewind(self) -> None:
        """Begin again."""
        self.iter_next = iter(self.encoded_list)


algo_config = matmul_nbits_quantizer.RTNWeightOnlyQuantConfig()
quant = matmul_nbits_quantizer.MatMulNBitsQuantizer(
    "text.onnx", n_bits=4, block_size=32, is_symmetric=True, algo_config=algo_config
)
quant.process()
onnx.save(quant.model, "rtn.onnx")
qconfig = config.StaticQuantConfig(
    calibration_data_reader=DataReader(), quant_format=QuantFormat.QDQ, per_channel=True
)
quantize("model.onnx", "static.onnx", qconfig)
