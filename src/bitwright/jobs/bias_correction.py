"""Bias correction as a step of a job: between its plan, or its fine-tuning, and what it writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from bitwright.data import Sample
from bitwright.decide.scales.biases import fit_biases
from bitwright.errors import DataError
from bitwright.graph import (
    Piece,
    extract_piece,
    open_session,
    run_session,
)
from bitwright.jobs.calibration import Calibrated, Calibration, find_input_means
from bitwright.jobs.fine_tuning.constants import (
    Constant,
    find_constants,
    with_quantized_activations,
)
from bitwright.jobs.opening import Prepared
from bitwright.jobs.output import Planned, float_model_to_round
from bitwright.observe import LayerInputs, run_side_by_side
from bitwright.rounding.bias_correction import (
    BiasedLayer,
    add_to_bias,
    find_biased_layers,
    input_axes,
    mean_error,
)
from bitwright.support.wording import counted

__all__ = ["SAMPLES", "correct_biases"]

SAMPLES = 256
"""How many samples layers are compared on, one after the other: means converge long before."""

Array = npt.NDArray[Any]
F64 = npt.NDArray[np.float64]
Shifts = dict[str, F64]


def correct_biases(
    prepared: Prepared, planned: Planned, calibrated: Calibrated, calibration: Calibration
) -> Planned:
    """Return the plan with what its recipe's `bias_correction` adds to each bias.

    The samples that the result is measured on are not looked at.
    """
    plan = planned.plan
    if calibration.data is None:
        raise DataError(
            f"recipe {plan.recipe.name!r} corrects biases and needs calibration data; give data, "
            "or take a recipe with bias_correction='off'."
        )
    constants = find_constants(prepared.model, plan)
    stored = {c.key for c in constants.values() if c.role == "weight"}
    layers = {
        name
        for name, node in plan.nodes.items()
        if node.action == "quantize" and len(node.inputs) > 1 and node.inputs[1] in stored
    }
    biased, skipped = find_biased_layers(prepared.model, layers)
    if plan.recipe.bias_correction == "fast":
        axes = input_axes(biased)
        means = find_input_means(prepared, axes, calibrated, calibration) if biased else {}
        shifts = _shifts_by_means(planned, biased, constants, means, skipped)
    else:
        shifts = _shifts_layer_by_layer(prepared, planned, biased, constants, calibration)
    # What was there before belongs to other weights.
    given = {name: shift.tolist() for name, shift in shifts.items()}
    plan = msgspec.structs.replace(plan, bias_shifts=given)
    plan = fit_biases(float_model_to_round(prepared, replace(planned, plan=plan)), plan)
    notes = _notes(plan.recipe.bias_correction, len(shifts), skipped)
    return replace(planned, plan=plan.with_notes(notes))


# From means ---------------------------------------------------------------------------------


def _shifts_by_means(
    planned: Planned,
    biased: Sequence[BiasedLayer],
    constants: Mapping[str, Constant],
    means: Mapping[str, F64],
    skipped: dict[str, str],
) -> Shifts:
    """Return what takes back E[dy] = dW E[x], with the mean inputs of the float model."""
    axes = input_axes(biased)
    shifts = {}
    for layer in biased:
        source = layer.source.name or ""
        if axes[source] != layer.input_axis or source not in means:
            skipped[layer.node.name or ""] = "its input is read along two axes"
            continue
        constant = constants[layer.weight.name or ""]
        parameters = planned.plan.parameters(constant.key)
        stored = constant.stored(parameters, planned.constants.get(constant.name))
        difference = stored.astype(np.float64) - constant.array
        shifts[layer.bias.name or ""] = -mean_error(layer, difference, means[source]) / layer.factor
    return shifts


# Layer by layer -----------------------------------------------------------------------------


def _shifts_layer_by_layer(
    prepared: Prepared,
    planned: Planned,
    biased: Sequence[BiasedLayer],
    constants: Mapping[str, Constant],
    calibration: Calibration,
) -> Shifts:
    """Return what brings the mean output of each layer to that of the float model.

    Two models run over the same samples: the float one, and one that is quantized and whose
    biases are corrected so far. A layer runs a second time, by itself, and nothing else does.
    """
    if not biased:
        return {}
    model, plan, providers = prepared.model, planned.plan, prepared.providers
    by_node = {layer.node.name or "": layer for layer in biased}
    quantized_model = with_quantized_activations(model, plan, constants)
    biases = {layer.bias.name or "": _bias_of(layer, planned) for layer in biased}
    # Whatever rounding a bias takes away comes after its correction.
    weights = biases | {
        name: constant.stored(plan.parameters(constant.key), planned.constants.get(name))
        for name, constant in constants.items()
        if name not in biases
    }

    def samples() -> Iterator[Sample]:
        return islice(iter(calibration.split(model)), SAMPLES)

    shifts: Shifts = {}
    with run_side_by_side(
        model, quantized_model, list(by_node), samples, weights=weights, providers=providers
    ) as layers:
        for floats, quantized in layers:
            layer = by_node[floats.node]
            wanted = _outputs(model, layer, floats, {}, providers)
            given = _outputs(quantized_model, layer, quantized, quantized.weights, providers)
            shift = mean_gap(wanted, given, layer.output_axis) / layer.factor
            bias = layer.bias.name or ""
            shifts[bias] = shift
            quantized.put_weight(bias, add_to_bias(biases[bias], shift))
    return shifts


def mean_gap(wanted: Iterable[Array], given: Iterable[Array], axis: int) -> F64:
    """Return, for each channel along an axis, how much larger one is than the other on average.

    Samples of which a router sends other rows to a layer once it is quantized say nothing.

    >>> mean_gap([np.array([[3.0, 1.0]])], [np.array([[2.0, 1.0]])], -1)
    array([1., 0.])
    """
    total: F64 | float = 0.0
    count = 0
    for one, other in zip(wanted, given, strict=True):
        if one.shape != other.shape:
            continue
        gap = np.moveaxis(one.astype(np.float64) - other, axis, -1)
        gap = gap.reshape(-1, gap.shape[-1])
        total = total + gap.sum(axis=0)
        count += len(gap)
    return np.asarray(total / max(count, 1))


def _outputs(
    model: ir.Model,
    layer: BiasedLayer,
    inputs: LayerInputs,
    weights: Mapping[str, ir.TensorProtocol],
    providers: Sequence[str] | None,
) -> Iterator[Array]:
    """Yield what a layer makes of its inputs, sample by sample."""
    source, result = layer.source.name or "", layer.node.outputs[0].name or ""
    part = extract_piece(model, Piece(layer.node.name or "", (source,), (result,)), weights)
    for value in part.graph.inputs:
        value.type = value.type or layer.source.type
    session = open_session(part, providers=providers, as_written=True)
    for array in inputs.values(source):
        yield run_session(session, {source: array})[result]


def _bias_of(layer: BiasedLayer, planned: Planned) -> Array:
    name, tensor = layer.bias.name or "", layer.bias.const_value
    assert tensor is not None
    return np.asarray(planned.constants.get(name, tensor.numpy()))


def _notes(mode: str, corrected: int, skipped: Mapping[str, str]) -> list[str]:
    notes = [f"corrected the biases of {counted(corrected, 'layer')} ({mode})"]
    for reason, count in Counter(skipped.values()).items():
        notes.append(f"bias correction left {counted(count, 'layer')}: {reason}")
    return notes
