"""What `vai_q_onnx` offers, by the same names: change the import line and go on.

>>> import bitwright.compat.vai_q_onnx as vai_q_onnx
>>> vai_q_onnx.PowerOfTwoMethod.MinMSE, vai_q_onnx.VitisQuantFormat.QDQ.value
(<PowerOfTwoMethod.MinMSE: 1>, 2)
"""

import lazy_loader

from bitwright.compat.paths import add_paths, hand_on_names

_listed, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
_QUANTIZERS = ("ONNXQuantizer", "VitisONNXQuantizer")
_SHARED = ("quark.shared_types", "quark.library", "quark.presets", "quark.runtime_names")
__getattr__ = hand_on_names(
    "vai_q_onnx",
    _listed,
    {"get_library_path": "quark.library", **dict.fromkeys(_QUANTIZERS, "quark.onnx_quantizer")},
)
# Its tools live on in Quark, by the same names.
add_paths(
    __name__,
    {
        "calibrate": ("quark.data_readers", *_SHARED),
        "onnx_quantizer": ("quark.onnx_quantizer",),
        "operators.custom_ops": ("quark.library",),
        "quant_utils": _SHARED,
        "quantize": ("vai_q_onnx.static", "vai_q_onnx.runtime_functions"),
    },
    *("vai_q_onnx", "quark.onnx"),
)
