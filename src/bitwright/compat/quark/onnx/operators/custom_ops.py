"""`quark.onnx.operators.custom_ops`."""

from bitwright.compat.quark.library import get_library_path

__all__ = ["get_library_path"]
