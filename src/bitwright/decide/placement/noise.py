"""How much rounding an activation to integers adds to it: noise over signal, from its sketch.

It is that of the range of least squared error, whatever range the plan has: so all range methods
that are tried place the same nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from bitwright.decide.ranges.density import Density, Levels
from bitwright.decide.scales.parameters import remembered_range
from bitwright.plan import TensorPlan
from bitwright.recipe import MSE

if TYPE_CHECKING:
    from bitwright.observe import TensorSketch


def noise_shares(
    tensors: Iterable[TensorPlan], sketches: Mapping[str, TensorSketch]
) -> dict[str, float]:
    """Return noise over signal of activations; those that no histogram was counted of have none."""
    return {
        entry.tensor: _noise_share(entry, sketches[entry.tensor])
        for entry in tensors
        if entry.role == "activation" and entry.qtype.is_integer and entry.tensor in sketches
    }


def _noise_share(entry: TensorPlan, sketch: TensorSketch) -> float:
    if not sketch.has_histogram or not sketch.finite:
        return 0.0
    known = "noise over signal", entry.qtype
    if known not in sketch.remembered:
        values, counts = sketch.values().astype(np.float64), sketch.counts().astype(np.float64)
        ends = remembered_range(sketch, MSE(), entry.qtype, symmetric=False)
        low, high = (np.array([end], np.float64) for end in ends)
        error = Density.of_bins(values, counts).error(Levels.over(low, high, entry.qtype))
        signal = float(np.square(values) @ counts)
        sketch.remembered[known] = float(error[0]) / signal if signal else 0.0
    return float(sketch.remembered[known])
