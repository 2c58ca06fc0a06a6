"""The names of NNCF for quantizing ONNX models, with accuracy control and without.

Modules have the paths that they have there, below this package.
"""

import lazy_loader

from bitwright.compat.paths import add_paths

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

add_paths(
    __name__,
    {
        "common": (),
        "common.quantization": (),
        "common.quantization.structs": ("nncf.parameters",),
        "data": ("nncf.dataset",),
        "data.dataset": ("nncf.dataset",),
        "onnx": (),
        "onnx.quantization": (),
        "onnx.quantization.backend_parameters": ("nncf.parameters",),
    },
    "nncf",
)
