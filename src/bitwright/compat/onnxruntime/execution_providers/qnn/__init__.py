"""Quantization for the QNN execution provider, by ONNX Runtime's names."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
