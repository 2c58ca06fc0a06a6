"""What `quark.onnx` offers, by the same names: change the import line and go on.

Modules have the paths that they have there below this package, too.

>>> from bitwright.compat.quark import ModelQuantizer, QConfig
>>> quantizer = ModelQuantizer(QConfig.get_default_config("XINT8"))
>>> from bitwright.compat.quark.onnx.quantization.config import get_default_config
"""

import lazy_loader

from bitwright.compat.paths import add_paths

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

__version__ = "0.13"
"""The release of Quark whose names these are; tools such as Olive ask for it."""

_CONFIG = ("quark.config", "quark.specs", "quark.data_types", "quark.algorithms", "quark.presets")
_TORCH = ("quark.torch_quantizers",)
_SHARED = ("quark.shared_types", "quark.library", "quark.runtime_names")

add_paths(
    __name__,
    {
        "finetuning.create_torch.base_qdq_quantizers": _TORCH,
        "onnx": ("quark",),
        "onnx.algorithm.finetuning.create_torch.base_qdq_quantizers": _TORCH,
        "onnx.auto_search": ("quark.auto_search",),
        "onnx.calibration.data_readers": ("quark.data_readers",),
        "onnx.calibration.methods": ("quark.shared_types",),
        "onnx.calibration": ("quark.data_readers", "quark.shared_types", "quark.auto_search"),
        "onnx.finetuning.create_torch.base_qdq_quantizers": _TORCH,
        "onnx.onnx_quantizer": ("quark.onnx_quantizer",),
        "onnx.operators.custom_ops": ("quark.library",),
        "onnx.quant_utils": _SHARED,
        "onnx.quantization": ("quark.algorithms", "quark.config", "quark.quantizer"),
        "onnx.quantization.api": ("quark.quantizer",),
        "onnx.quantization.config": _CONFIG,
        "onnx.quantization.config.algorithm": ("quark.algorithms",),
        "onnx.quantization.config.config": _CONFIG,
        "onnx.quantization.config.custom_config": ("quark.presets",),
        "onnx.quantization.config.data_type": ("quark.data_types",),
        "onnx.quantization.config.legacy": ("quark.config",),
        "onnx.quantization.config.spec": ("quark.specs", "quark.data_types"),
        "onnx.quantization.quant_utils": _SHARED,
        "onnx.quantization.auto_search": ("quark.auto_search",),
        "onnx.quantize": ("quark.quantizer",),
        "onnx.quantizers.onnx_quantizer": ("quark.onnx_quantizer",),
    },
    "quark",
)
