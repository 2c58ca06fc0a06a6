"""What `onnxruntime.quantization` offers, by the same names: change the import line and go on.

>>> from bitwright.compat.onnxruntime import QuantType, quantize_static
>>> QuantType.QInt8.value
0
"""

import lazy_loader

from bitwright.compat.paths import add_paths

add_paths(__name__, {}, "onnxruntime.quantization")
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
