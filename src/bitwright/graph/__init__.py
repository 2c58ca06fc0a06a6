"""ONNX models: load, check, normalize, edit, infer shapes, run and save (on onnx-ir)."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
