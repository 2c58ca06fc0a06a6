"""Weight-only quantization by the names of `onnxruntime.quantization.neural_compressor`."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
