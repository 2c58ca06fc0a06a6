"""The names of the tools people come from, one module each, on the same core."""

from bitwright.compat.paths import install_as as install_as

__all__ = ["install_as"]
