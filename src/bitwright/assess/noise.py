"""How far arrays and weights of a quantized model are from the float ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from bitwright.graph.constants import read_tensor
from bitwright.numerics import dequantize

__all__ = ["decibels", "match_weights", "signal_and_noise"]

Array = npt.NDArray[Any]


def decibels(signal: float, noise: float) -> float:
    """Return the ratio of two energies in dB; infinite without noise.

    >>> round(decibels(100.0, 1.0), 6), decibels(1.0, 0.0), decibels(0.0, 1.0)
    (20.0, inf, -inf)
    """
    if noise == 0:
        return math.inf
    if signal == 0 or noise == math.inf:
        return -math.inf
    return 10 * math.log10(signal / noise)


def signal_and_noise(expected: Sequence[Array], actual: Sequence[Array]) -> tuple[float, float]:
    """Return the energy of what was expected, and of the difference, over pairs of arrays.

    >>> signal_and_noise([np.array([3.0, 4.0])], [np.array([3.0, 3.0])])
    (25.0, 1.0)
    """
    signal = noise = 0.0
    for one, other in zip(expected, actual, strict=True):
        wanted = np.asarray(one, np.float64)
        difference = wanted - np.asarray(other, np.float64)
        signal += float(np.vdot(wanted, wanted))
        noise += float(np.vdot(difference, difference))
    return signal, noise


def match_weights(
    float_model: ir.Model, quantized: ir.Model, *, suffix: str = "_quantized"
) -> dict[str, tuple[Array, Array]]:
    """Return name -> (float weight, what its dequantizer gives) for each stored integer weight.

    Weights are matched by name: the integers of `w` are called `w` and the suffix.
    """
    originals = float_model.graph.initializers
    matched: dict[str, tuple[Array, Array]] = {}
    for node in quantized.graph.all_nodes():
        stored = node.inputs[0] if node.inputs else None
        if node.op_type != "DequantizeLinear" or stored is None or stored.name is None:
            continue
        integers, scale = read_tensor(stored), read_tensor(node.inputs[1])
        original = originals.get(stored.name.removesuffix(suffix))
        weight = None if original is None else read_tensor(original)
        if integers is None or scale is None or weight is None or weight.shape != integers.shape:
            continue
        zero_point = read_tensor(node.inputs[2]) if len(node.inputs) > 2 else None
        restored = dequantize(
            integers.astype(np.int64),
            scale.astype(np.float32),
            0 if zero_point is None else zero_point.astype(np.int64),
            axis=node.attributes.get_int("axis", 1),
            block_size=node.attributes.get_int("block_size", 0),
        )
        matched[stored.name.removesuffix(suffix)] = weight, restored
    return matched
