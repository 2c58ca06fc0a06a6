"""Bitwright quantizes ONNX models: smaller, faster, and as accurate as the number format allows.

>>> import bitwright
>>> demo = bitwright.load_demo()
>>> result = bitwright.quantize(demo.model_path, data=demo.calibration[:32], recipe="int8")
>>> result.size < result.float_size
True
"""

import lazy_loader

# `__init__.pyi` lists the public names. Each is loaded when first used: the import stays light.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
