"""NVFP4: weights of float4 (E2M1) in blocks of 16, with float8 (E4M3) scales and one float32 scale.

A weight w of a block reads back as e2m1 * (e4m3 * s), where s is the scale of the whole tensor:
amax / (6 * 448), so that the largest scale of a block is the largest number of E4M3 and the largest
weight that of E2M1 (NVIDIA, "Pretraining Large Language Models with NVFP4", arXiv:2509.25149,
appendix C).
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from bitwright.errors import RecipeError
from bitwright.support.array_types import Array

NVFP4_BLOCK = 16
_LARGEST_CODE = 6.0
_LARGEST_SCALE, _SMALLEST_SCALE = 448.0, 2.0**-9


@dataclass(frozen=True, slots=True, eq=False)
class NVFP4Weight:
    """A matrix [N, K] of float4 codes, scales [N, K / 16] of float8, and the scale of all."""

    codes: Array
    scales: Array
    scale: np.float32

    def dequantize(self) -> Array:
        """Return the numbers that the codes stand for, in float32, rounded as ONNX does."""
        scales = self.scales.astype(np.float32) * self.scale
        return self.codes.astype(np.float32) * np.repeat(scales, NVFP4_BLOCK, axis=-1)


def quantize_nvfp4(weight: Array) -> NVFP4Weight:
    """Round a matrix [N, K] to the nearest values, blocks of 16 along the last axis."""
    rows, columns = weight.shape
    if columns % NVFP4_BLOCK:
        raise RecipeError(
            f"blocks of {NVFP4_BLOCK} do not divide the {columns} inputs of a weight."
        )
    blocks = weight.astype(np.float32).reshape(rows, -1, NVFP4_BLOCK)
    most = np.abs(blocks).max(axis=-1)
    largest = float(most.max(initial=0.0))
    # A weight of zeros has any scale; below the smallest normal float32 its numbers are zeros.
    scale = np.float32(largest / (_LARGEST_CODE * _LARGEST_SCALE)) or np.float32(1)
    wanted = most / _LARGEST_CODE / scale
    scales = np.minimum(wanted, _LARGEST_SCALE).astype(ml_dtypes.float8_e4m3fn)
    # A block whose scale is rounded to zero would read back as zeros divided by zero.
    scales = np.maximum(scales.astype(np.float32), _SMALLEST_SCALE).astype(scales.dtype)
    steps = (scales.astype(np.float32) * scale)[..., None]
    scaled = np.clip(blocks / steps, -_LARGEST_CODE, _LARGEST_CODE)
    codes = scaled.astype(ml_dtypes.float4_e2m1fn).reshape(rows, columns)
    return NVFP4Weight(codes, scales, scale)
