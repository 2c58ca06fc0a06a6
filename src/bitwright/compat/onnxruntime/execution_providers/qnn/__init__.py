"""Quantization for the QNN execution provider, by ONNX Runtime's names.

>>> import bitwright
>>> from bitwright.compat.onnxruntime import quantize
>>> from bitwright.compat.onnxruntime.execution_providers.qnn import get_qnn_qdq_config
>>> demo = bitwright.load_demo()
>>> get_qnn_qdq_config(demo.model_path, demo.calibration[:8]).weight_type
<QuantType.QUInt8: 1>
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
