"""What the codes of bitsandbytes' 4-bit formats stand for, as its papers and kernels have it."""

import numpy as np

from bitwright.emit.bnb4 import FP4, NF4

_FP4_MAGNITUDES = (0.0, 0.0625 / 12, 8 / 12, 1.0, 4 / 12, 6 / 12, 2 / 12, 3 / 12)
FP4_LEVELS = (*_FP4_MAGNITUDES, *(-level for level in _FP4_MAGNITUDES))
NF4_LEVELS = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
LEVELS = {FP4: np.float32(FP4_LEVELS), NF4: np.float32(NF4_LEVELS)}


def dequantize_blocks(packed, absmax, quant_type, block_size, count):
    codes = np.stack([packed >> 4, packed & 15], axis=-1).reshape(-1)[:count]
    scales = np.repeat(np.asarray(absmax, np.float64), block_size)[:count]
    return LEVELS[quant_type].astype(np.float64)[codes] * scales
