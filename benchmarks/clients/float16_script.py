"""Float16 by onnxconverter-common and by ONNX Runtime's transformers."""

import onnx
from onnxconverter_common import float16
from onnxruntime.transformers.float16 import convert_float_to_float16

half = float16.convert_float_to_float16(onnx.load("model.onnx"), keep_io_types=True)
onnx.save(half, "half.onnx")
text = convert_float_to_float16(
    onnx.load("text.onnx"), keep_io_types=True, op_block_list=["LayerNormalization"]
)
onnx.save(text, "half_text.onnx")
