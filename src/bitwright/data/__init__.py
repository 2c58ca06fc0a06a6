"""Where calibration data comes from: readers, loaders, files, images and random numbers."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
