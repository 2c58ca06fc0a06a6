"""Noise between arrays."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bitwright.assess import decibels, signal_and_noise


def test_decibels_at_the_ends():
    assert decibels(1.0, 0.0) == math.inf
    assert decibels(0.0, 1.0) == decibels(1.0, math.inf) == -math.inf
    assert decibels(1000.0, 1.0) == pytest.approx(30.0)


def test_energies_add_up_over_arrays_of_any_shape():
    a, b = np.ones((2, 3), np.float32), np.zeros(4, np.float32)
    assert signal_and_noise([a, b], [a, b + 1]) == (6.0, 4.0)
    with pytest.raises(ValueError, match="shorter"):
        signal_and_noise([a], [])
