"""`quark.onnx.operators.custom_ops`."""

from bitwright.compat.quark.library import _COP_DOMAIN, _COP_VERSION, get_library_path

__all__ = ["_COP_DOMAIN", "_COP_VERSION", "get_library_path"]
