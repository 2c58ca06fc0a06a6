"""NNCF's post-training quantization and weight compression of ONNX models."""

import nncf
import numpy as np
import onnx

images = np.load("calibration.npy")
dataset = nncf.Dataset(images, lambda image: {"image": image[None]})
quantized = nncf.quantize(onnx.load("model.onnx"), dataset, subset_size=64)
onnx.save(quantized, "quantized.onnx")
compressed = nncf.compress_weights(
    onnx.load("text.onnx"),
    mode=nncf.CompressWeightsMode.INT4_SYM,
    group_size=32,
    ignored_scope=nncf.IgnoredScope(types=["LayerNormalization"]),
)
onnx.save(compressed, "compressed.onnx")
