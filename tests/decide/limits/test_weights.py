"""What a constant loses at a position."""

import numpy as np

from bitwright.decide.limits.weights import StoredConstant
from bitwright.numerics.types import INT8


def test_a_constant_loses_what_is_rounded_off():
    stored = StoredConstant(np.array([0.5, -0.25]), INT8)
    assert (stored.loss(7), stored.loss(1)) == (0.0, 0.25**2)
