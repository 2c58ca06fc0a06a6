"""`neural_compressor.quantization`, and `onnx_neural_compressor.quantization`."""

from __future__ import annotations

from bitwright.compat.neural_compressor.quantization.fitting import fit

__all__ = ["fit"]
