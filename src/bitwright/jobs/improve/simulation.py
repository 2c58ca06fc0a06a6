"""Quantized models as float arithmetic between quantizers, open for plans that differ a little.

Ranges of activations, and biases, are fed beside a sample: candidates that differ in them need no
session of their own. What float arithmetic lacks, as the saturation of sums, is not seen.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import onnx_ir as ir

from bitwright.data import Sample
from bitwright.jobs.fine_tuning.constants import find_constants, with_quantized_activations
from bitwright.jobs.opening import Prepared
from bitwright.jobs.output import Planned, float_model_to_round
from bitwright.plan import QuantPlan
from bitwright.rounding.bias_correction import add_to_bias, find_biased_layers
from bitwright.run import Session
from bitwright.support.array_types import Array


class Simulation:
    """A model with quantized activations and weights, for plans that share its integers."""

    def __init__(self, prepared: Prepared, planned: Planned) -> None:
        plan = self._plan = planned.plan
        constants = find_constants(prepared.model, plan)
        plain = replace(planned, plan=msgspec.structs.replace(plan, bias_shifts={}))
        floats = float_model_to_round(prepared, plain)
        arrays = {
            name: floats.graph.initializers[name].const_value.numpy()  # type: ignore[union-attr]
            for name in constants
        }
        model = with_quantized_activations(floats, plan, constants)
        initializers = model.graph.initializers
        for name, constant in constants.items():
            if constant.role == "weight" and name in initializers:
                parameters = plan.parameters(constant.key)
                stored = constant.stored(parameters, arrays[name], prepared.rounding)
                initializers[name].const_value = ir.tensor(stored, name=name)
        quantized = {name for name, node in plan.nodes.items() if node.action == "quantize"}
        layers, _ = find_biased_layers(prepared.model, quantized)
        names = {layer.bias.name or "" for layer in layers} & initializers.keys()
        self._biases = {name: _make_input(model, name) for name in names}
        self._scales: dict[str, tuple[str, Array, Array]] = {}
        for key, entry in plan.tensors.items():
            ends = [f"{entry.tensor}{end}" for end in ("_scale", "_zero_point")]
            if entry.role == "activation" and entry.scale is not None and ends[0] in initializers:
                scale, zero = (_make_input(model, end) for end in ends)
                self._scales[key] = entry.tensor, scale, zero
        self._session = Session(model, providers=prepared.providers, as_written=True)

    def run(self, plan: QuantPlan, sample: Sample) -> dict[str, Any]:
        """Return the outputs for a sample by the ranges and biases of this plan."""
        feeds: dict[str, Any] = dict(sample)
        for key, (stem, scale, zero) in self._scales.items():
            found = plan.tensors.get(key) or self._plan.tensors[key]
            feeds[f"{stem}_scale"] = np.asarray(found.scale, scale.dtype).reshape(scale.shape)
            zeros = np.asarray(found.zero_point).astype(zero.dtype)
            feeds[f"{stem}_zero_point"] = np.broadcast_to(zeros, zero.shape)
        for name, bias in self._biases.items():
            shift = plan.bias_shifts.get(name)
            feeds[name] = bias if shift is None else add_to_bias(bias, np.asarray(shift))
        return self._session.run(feeds)


def _make_input(model: ir.Model, name: str) -> Array:
    """Let an initializer be fed; return its value."""
    value = model.graph.initializers.pop(name)
    assert value.const_value is not None
    array = value.const_value.numpy()
    value.const_value = None
    model.graph.inputs.append(value)
    return array
