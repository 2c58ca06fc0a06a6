"""Neural Compressor's tuning for ONNX models: `fit` of 2.x and `autotune` of 3.x, in one place."""

# ruff: noqa: F403 - the names of the modules that it stands for
from bitwright.compat.neural_compressor import config
from bitwright.compat.neural_compressor.config import *
from bitwright.compat.neural_compressor.quantization import config as weight_configs
from bitwright.compat.neural_compressor.quantization import tuning
from bitwright.compat.neural_compressor.quantization.config import *
from bitwright.compat.neural_compressor.quantization.fitting import fit as fit
from bitwright.compat.neural_compressor.quantization.tuning import *

__all__ = ["fit"]
__all__ += [*config.__all__, *weight_configs.__all__, *tuning.__all__]
