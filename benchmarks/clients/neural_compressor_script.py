"""Neural Compressor 2.6 for an ONNX model, as its ONNX Runtime examples have it."""

import numpy as np
from neural_compressor import PostTrainingQuantConfig, quantization
from neural_compressor.data import DataLoader


class Dataset:
    """Images with a label that nothing reads."""

    def __init__(self) -> None:
        self.images = np.load("calibration.npy")

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple:
        return self.images[index], 0


loader = DataLoader(framework="onnxruntime", dataset=Dataset(), batch_size=1)
config = PostTrainingQuantConfig(approach="static", quant_format="QDQ")
q_model = quantization.fit("model.onnx", config, calib_dataloader=loader)
q_model.save("static.onnx")
