"""Assessment of quantized models: errors against float, sensitivity, speed, checks, the report."""

import lazy_loader

# Loaded when first used: a plain job compares outputs and needs nothing else from here.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
