"""Run models: whole in a session, or in parts with a spool of values between them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
