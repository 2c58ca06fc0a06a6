"""`onnxconverter_common`: float16 as ours, the rest as it is installed."""

from bitwright.compat.paths import add_paths, hand_on_names

add_paths(__name__, {}, "onnxconverter_common")
__getattr__ = hand_on_names("onnxconverter_common")
