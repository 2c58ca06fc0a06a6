"""`quark.onnx.quantization.config.spec`."""

from bitwright.compat.quark.data_types import *  # noqa: F403
from bitwright.compat.quark.specs import *  # noqa: F403
