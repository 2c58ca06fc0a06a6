"""Let a layer make up for the error that the rounded layers before it leave in its inputs.

With x what the quantized model gives a layer and f what the float model does, the layer should
still put out f W. Of all weights the one that comes closest on x is W + H^-1 C W, with H the mean
of x x' and C that of x (f - x)'; rounding it by H then has the float output as its target. That is
QEP (Y. Arai, Y. Ichikawa 2025, arXiv:2504.09629), and the target of GPTAQ (Y. Li et al. 2025,
arXiv:2504.02692). Taken whole it fits the calibration data too well, so that a part is taken.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bitwright.numerics.arrays import NUMPY, Arrays

# Of the mean of the diagonal, as for GPTQ. On texts of other kinds than the calibration data,
# 0.1 to 1 lost the same, and less than 0.01.
_DAMPING = 0.3


def propagate_error(
    weights: Any, moment: Any, cross: Any, *, strength: float = 0.5, xp: Arrays = NUMPY
) -> Any:
    """Return a weight [K, N] that makes up for a part, `strength`, of the error of its inputs.

    `moment` is the second moment of the quantized inputs x, `cross` the mean of x (f - x)'.
    """
    work, missing = xp.array(weights), xp.array(cross, "float64")
    matrix = xp.copy(xp.array(moment, "float64"))
    ends = np.arange(matrix.shape[0])
    size = float(matrix.diagonal().sum())
    if not size:  # inputs of zero have no error to make up for
        return work
    matrix[ends, ends] += _DAMPING * size / matrix.shape[0]
    rows, columns = work.shape
    if columns > rows:  # the large product in float32
        return work + xp.array(strength * xp.solve(matrix, missing)) @ work
    return work + xp.array(strength * xp.solve(matrix, missing @ xp.array(work, "float64")))
