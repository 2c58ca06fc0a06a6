"""What `onnxruntime.quantization` offers, by the same names: change the import line and go on.

>>> from bitwright.compat.onnxruntime import QuantType, quantize_static
>>> QuantType.QInt8.value
0
"""

import lazy_loader

from bitwright.compat.paths import add_paths

_FUSIONS = ("onnxruntime.fusions.mended",)

add_paths(
    __name__,
    {
        "execution_providers.qnn.fusion_lpnorm": _FUSIONS,
        "execution_providers.qnn.fusion_spacetodepth": _FUSIONS,
        "fusions.fusion_gelu": _FUSIONS,
        "fusions.fusion_layernorm": _FUSIONS,
        "fusions.replace_upsample_with_resize": _FUSIONS,
    },
    "onnxruntime.quantization",
)
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
