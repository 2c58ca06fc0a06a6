"""Layers with correlated inputs, and the error that a quantized weight makes on them."""

from __future__ import annotations

import numpy as np

from bitwright.numerics.second_moment import SecondMoment


def make_layer(rows=128, columns=24, *, seed=0, samples=512, spread=1.0, with_inputs=False):
    """Return a weight [rows, columns] and the second moment of inputs whose channels correlate.

    With `with_inputs` also the inputs, in float64.
    """
    rng = np.random.default_rng(seed)
    mix = rng.standard_normal((rows, rows)) / np.sqrt(rows)
    sizes = np.exp(spread * rng.standard_normal(rows))
    inputs = (rng.standard_normal((samples, rows)) @ mix * sizes).astype(np.float32)
    moment = SecondMoment(rows)
    moment.update(inputs)
    weights = (rng.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)
    if with_inputs:
        return weights, moment, inputs.astype(np.float64)
    return weights, moment


def column_errors(weights, quantized, hessian):
    """Return the mean squared error of each output, in float64."""
    change = weights.astype(np.float64) - quantized.dequantize()
    return np.einsum("kn,kl,ln->n", change, hessian, change)


def total_error(weights, quantized, hessian):
    return column_errors(weights, quantized, hessian).sum()
