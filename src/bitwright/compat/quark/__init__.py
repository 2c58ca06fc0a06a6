"""What `quark.onnx` offers, by the same names: change the import line and go on.

>>> from bitwright.compat.quark import ModelQuantizer, QConfig
>>> quantizer = ModelQuantizer(QConfig.get_default_config("XINT8"))
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

__version__ = "0.13"
"""The release of Quark whose names these are; tools such as Olive ask for it."""
