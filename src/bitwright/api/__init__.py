"""The verbs. Each loads what it needs when it is first used: a job waits for nothing else."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
