"""`quark.onnx.quant_utils`: the enumerations, and the path of the operator library."""

from bitwright.compat.onnxruntime.enums import QuantizationMode as QuantizationMode
from bitwright.compat.quark.library import get_library_path as get_library_path
from bitwright.compat.quark.shared_types import *  # noqa: F403
