"""How good the result is: errors against float, sizes, what was quantized and what was not."""

import lazy_loader

# Loaded when first used: a plain job compares outputs and needs nothing else from here.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
