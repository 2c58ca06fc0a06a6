"""What all packages may use: arguments, settings, files, temporary folders, progress, processes."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
