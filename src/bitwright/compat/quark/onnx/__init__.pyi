"""The names of `quark.onnx`."""

from bitwright.compat.quark import *  # noqa: F403
