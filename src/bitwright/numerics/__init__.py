"""Number types, scale formulas, quantizing and bit packing: numpy in, numpy out."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
