"""`neural_compressor.adaptor.ox_utils.weight_only`."""

# ruff: noqa: F403 - the names of the module that it stands for
from bitwright.compat.neural_compressor import weight_only
from bitwright.compat.neural_compressor.weight_only import *

__all__: list[str] = []
__all__ += weight_only.__all__
