"""Equalization of activations by data, as a step of a job: SmoothQuant, high-bias absorption."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from bitwright import graph
from bitwright.decide.layout.dynamic import lay_out_dynamic
from bitwright.decide.layout.entries import Layout
from bitwright.decide.layout.static import lay_out
from bitwright.jobs.calibration import Calibration, observe_tensors
from bitwright.jobs.opening import Prepared
from bitwright.plan import Smoothing
from bitwright.support import counted, logged


@logged("smooth activations")
def smooth_activations(
    prepared: Prepared, layout: Layout, calibration: Calibration
) -> tuple[Prepared, Layout, Mapping[str, Smoothing]]:
    """Return the model with its activations equalized as its recipe asks, and what did it.

    The layout is that of the model: of the given one, and then of the one that is returned.
    """
    quantized = {name for name, node in layout.nodes.items() if node.action == "quantize"}
    recipe, factors = prepared.recipe, dict[str, Smoothing]()
    for asked, find in (
        (recipe.equalize is not None and recipe.equalize.absorb_biases, _absorb_biases),
        (recipe.smooth is not None, _smooth),
    ):
        if asked:
            found, note = find(prepared, quantized, calibration)
            prepared = apply_factors(prepared, found)
            notes = [note] if note and not found else []
            prepared = replace(prepared, notes=(*prepared.notes, *notes))
            factors |= found
    if factors:
        again = lay_out_dynamic if recipe.mode == "dynamic" else lay_out
        layout = again(prepared.model, recipe, keep_float=prepared.keep_float)
    return prepared, layout, factors


def _absorb_biases(
    prepared: Prepared, quantized: set[str], calibration: Calibration
) -> tuple[dict[str, Smoothing], str]:
    """Return what layers absorb: what the channels before them always have above zero."""
    from bitwright.equalize.absorption import absorption_for, find_absorption_points

    points = find_absorption_points(prepared.model, quantized)
    axes = {tensor: point.axis for tensor, point in points.items()}
    found = {}
    if points:
        seen = observe_tensors(
            prepared, list(points), calibration, detail="extremes", per_channel=axes
        )
        found = absorption_for(points, seen.sketches)
    return found, "found no biases to absorb: no channel before a rectifier is always above zero"


def _smooth(
    prepared: Prepared, quantized: set[str], calibration: Calibration
) -> tuple[dict[str, Smoothing], str]:
    """Return what divides what products read, and shifts it where that is asked for."""
    from bitwright.equalize.smoothquant import find_smoothing_points, smoothing_for

    points = find_smoothing_points(prepared.model, quantized)
    axes = dict.fromkeys(points, -1)
    found = {}
    if points:
        seen = observe_tensors(
            prepared, list(points), calibration, detail="extremes", per_channel=axes, means=axes
        )
        found = smoothing_for(prepared.model, points, seen.sketches, prepared.recipe)
    return found, "" if points else _NOTHING_TO_SMOOTH


_NOTHING_TO_SMOOTH = "found nothing to smooth: no quantized product of a constant weight"


def apply_factors(prepared: Prepared, factors: Mapping[str, Smoothing]) -> Prepared:
    """Return the model with the channels of these tensors shifted and divided.

    The layers that read them make up for it: what the model computes stays the same.
    """
    if not factors:
        return prepared
    from bitwright.equalize.smoothquant import apply_smoothing

    model = graph.clone_model(prepared.model)
    added = apply_smoothing(model, factors, folding=prepared.recipe.emulate.smooth_folding)
    # It has to see the outliers in float: behind a quantizer they would be all there is.
    divisions = dict.fromkeys(added, "it divides by the smoothing factors")
    # A rectifier cuts off what lies below all that was observed: that counts as an error, too.
    absorbed = any(planned.absorbed for planned in factors.values())
    return replace(
        prepared,
        model=model,
        before_simulation=prepared.reference if absorbed else prepared.before_simulation,
        keep_float={**prepared.keep_float, **divisions},
        notes=(*prepared.notes, *_notes(factors, len(added))),
    )


def _notes(factors: Mapping[str, Smoothing], added: int) -> list[str]:
    absorbed = [planned for planned in factors.values() if planned.absorbed]
    smoothed = [planned for planned in factors.values() if not planned.absorbed]
    notes = []
    if absorbed:
        channels = sum(len(planned.absorbed) - planned.absorbed.count(0.0) for planned in absorbed)
        layers = counted(len(absorbed), "layer")
        notes.append(f"{layers} absorbed the biases of {counted(channels, 'channel')}")
    if smoothed:
        tensors = counted(len(smoothed), "tensor")
        note = f"smoothed {tensors}, {len(smoothed) - added} without a new node"
        shifted = sum(bool(planned.shifts) for planned in smoothed)
        notes.append(note + (f", {shifted} with shifted channels" if shifted else ""))
    return notes
