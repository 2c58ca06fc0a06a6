"""Fusions of nodes in a model proto, as `onnxruntime.quantization.fusions`."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
