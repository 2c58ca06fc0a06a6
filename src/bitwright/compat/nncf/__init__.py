"""The names of NNCF for quantizing ONNX models, with accuracy control and without.

Modules have the paths that they have there, below this package.
"""

import lazy_loader

from bitwright.compat.paths import add_paths, hand_on_names

__version__ = "3.4.0"
"""The release whose names these are."""

_listed, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = hand_on_names(
    "nncf",
    _listed,
    {
        "AdvancedAccuracyRestorerParameters": "nncf.quantization.advanced_parameters",
        "InvalidGroupSizeError": "nncf.errors",
        **dict.fromkeys(("disable_logging", "nncf_logger", "set_log_level"), "nncf.logger"),
    },
)

add_paths(
    __name__,
    {
        "common.logging": ("nncf.logger",),
        "common.logging.logger": ("nncf.logger",),
        "common.quantization.structs": ("nncf.parameters",),
        "data": ("nncf.dataset",),
        "data.dataset": ("nncf.dataset",),
        "onnx.quantization.backend_parameters": ("nncf.parameters",),
    },
    "nncf",
)
