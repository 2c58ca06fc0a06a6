"""SmoothQuant as a step of a job: factors from one pass over the data, moved into the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from bitwright import graph
from bitwright.decide.layout.static import lay_out
from bitwright.jobs.calibration import Calibration, observe_tensors
from bitwright.jobs.opening import Prepared
from bitwright.plan import Smoothing

__all__ = ["apply_factors", "smooth_activations"]


def smooth_activations(
    prepared: Prepared, calibration: Calibration
) -> tuple[Prepared, Mapping[str, Smoothing]]:
    """Return the model smoothed as its recipe asks, and the factors that did it."""
    if prepared.recipe.smooth is None:
        return prepared, {}
    from bitwright.equalize.smoothquant import (  # few recipes ask for it
        find_smoothing_points,
        smoothing_for,
    )

    planned = lay_out(prepared.model, prepared.recipe).nodes
    quantized = {name for name, node in planned.items() if node.action == "quantize"}
    points = find_smoothing_points(prepared.model, quantized)
    if not points:
        note = "found nothing to smooth: no quantized product of a constant weight"
        return replace(prepared, notes=(*prepared.notes, note)), {}
    axes = dict.fromkeys(points, -1)
    seen = observe_tensors(
        prepared, list(points), calibration, detail="extremes", per_channel=axes, means=axes
    )
    factors = smoothing_for(prepared.model, points, seen.sketches, prepared.recipe)
    return apply_factors(prepared, factors), factors


def apply_factors(prepared: Prepared, factors: Mapping[str, Smoothing]) -> Prepared:
    """Return the model with the channels of these tensors divided by their factors.

    The weights that read them are multiplied: what the model computes stays the same.
    """
    if not factors:
        return prepared
    from bitwright.equalize.smoothquant import apply_smoothing

    model = graph.clone_model(prepared.model)
    folding = prepared.recipe.smooth is None or prepared.recipe.smooth.folding
    added = apply_smoothing(model, factors, folding=folding)
    # It has to see the outliers in float: behind a quantizer they would be all there is.
    divisions = dict.fromkeys(added, "it divides by the smoothing factors")
    tensors = "tensor" if len(factors) == 1 else "tensors"
    note = f"smoothed {len(factors)} {tensors}, {len(factors) - len(added)} without a new node"
    shifted = sum(bool(planned.shifts) for planned in factors.values())
    note += f", {shifted} with shifted channels" if shifted else ""
    return replace(
        prepared,
        model=model,
        keep_float={**prepared.keep_float, **divisions},
        notes=(*prepared.notes, note),
    )
