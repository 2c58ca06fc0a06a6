"""Bias correction as a step of a job: between its plan, or its fine-tuning, and what it writes.

The correction of a layer is accepted only if it lowers the squared error behind the layer, and
behind the activation function that follows it, on samples that it was not computed from: each half
of them is tested with what the other half gives. What is accepted is then computed from all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice, pairwise
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from bitwright.data import Sample
from bitwright.decide.scales.biases import fit_biases
from bitwright.jobs.calibration import Calibrated, Calibration, find_input_means, require_data
from bitwright.jobs.fine_tuning.constants import (
    Constant,
    find_constants,
    with_quantized_activations,
)
from bitwright.jobs.layer_outputs import FloatOutputs, Line, Test, units_of
from bitwright.jobs.opening import Prepared
from bitwright.jobs.output import Planned, float_model_to_round
from bitwright.plan import QuantPlan, TensorPlan
from bitwright.rounding.bias_correction import (
    BiasedLayer,
    find_biased_layers,
    input_axes,
    mean_error,
)
from bitwright.rounding.output_correction import OutputMoments, by_channel
from bitwright.run import Extractor, LayerwiseRun, cut_model, open_function
from bitwright.support import F64, counted

SAMPLES = 256
"""How many samples layers are compared on, one after the other: means converge long before."""
TEST_SAMPLES = 16
"""How many samples a correction from means is tested on."""
MIN_SAMPLES = 4
"""Samples that there must be: two to compute a correction from, two to test it on."""

Array = npt.NDArray[Any]
Shifts = dict[str, F64]


def correct_biases(
    prepared: Prepared, planned: Planned, calibrated: Calibrated, calibration: Calibration
) -> Planned:
    """Return the plan with what its recipe's `bias_correction` adds to each bias.

    The samples that the result is measured on are not looked at.
    """
    plan = planned.plan
    instead = "take a recipe with bias_correction='off'", "--set bias_correction=off"
    require_data(plan.recipe, calibration, "corrects biases", instead)
    constants = find_constants(prepared.model, plan)
    stored = {c.key for c in constants.values() if c.role == "weight"}
    layers = {
        name
        for name, node in plan.nodes.items()
        if node.action == "quantize" and len(node.inputs) > 1 and node.inputs[1] in stored
    }
    biased, skipped = find_biased_layers(prepared.model, layers)
    correction = _Correction(prepared, planned, constants, calibration, skipped)
    shifts: Shifts = {}
    gains: Shifts = {}
    if biased and correction.samples < MIN_SAMPLES:
        reason = (
            f"testing a correction on samples that it was not computed from takes {MIN_SAMPLES}, "
            f"and there {'is' if correction.samples == 1 else 'are'} {correction.samples}"
        )
        skipped |= {layer.node.name or "": reason for layer in biased}
    elif biased and plan.recipe.bias_correction == "fast":
        means = find_input_means(prepared, input_axes(biased), calibrated, calibration)
        shifts = correction.from_means(biased, means)
    elif biased:
        shifts, gains = correction.layer_by_layer(biased)
    # What was there before belongs to other weights.
    plan = msgspec.structs.replace(
        plan,
        bias_shifts={name: shift.tolist() for name, shift in shifts.items()},
        weight_gains={name: gain.tolist() for name, gain in gains.items()},
        tensors={**plan.tensors, **_with_gains(plan, constants, gains)},
    )
    plan = fit_biases(float_model_to_round(prepared, replace(planned, plan=plan)), plan)
    notes = _notes(plan.recipe.bias_correction, correction.passed, skipped)
    if plan.recipe.gain_correction:
        notes.insert(1, f"corrected the gains of {counted(len(gains), 'layer')}")
    return replace(planned, plan=plan.with_notes(notes))


def _with_gains(
    plan: QuantPlan, constants: Mapping[str, Constant], gains: Shifts
) -> dict[str, TensorPlan]:
    """Return the entries of weights whose scales are multiplied; their integers stay."""
    found = {}
    for name, gain in gains.items():
        key = constants[name].key
        entry = plan.tensors[key]
        scale = (np.asarray(entry.scale) * gain).astype(np.float32).astype(np.float64)
        found[key] = msgspec.structs.replace(entry, scale=scale.tolist())
    return found


def _shifted(seen: OutputMoments) -> Line:
    return Line(seen.shift())


def _scaled(seen: OutputMoments) -> Line:
    gain, shift = seen.gain_and_shift()
    return Line(shift, gain)


class _Correction:
    """The shifts and gains of a model's layers, and how each did on holdout samples."""

    def __init__(
        self,
        prepared: Prepared,
        planned: Planned,
        constants: Mapping[str, Constant],
        calibration: Calibration,
        skipped: dict[str, str],
    ) -> None:
        self._model, self._providers = prepared.model, prepared.providers
        self._rounding = prepared.rounding
        self._planned, self._constants, self._skipped = planned, constants, skipped
        self._calibration = calibration
        sizes = [_batch_size(sample) for sample in self._samples(MIN_SAMPLES)]
        self._batch = sizes[0] if sizes and len(sizes) < MIN_SAMPLES else 1
        """The size of the batches to take apart, as there are too few of them."""
        self.samples = sum(sizes)
        """How many there are, or as many as are needed."""
        self.passed: list[Test] = []
        self._float_outputs = partial(
            FloatOutputs,
            self._model,
            batch=self._batch,
            group_bytes=calibration.memory_budget // 2,
            providers=self._providers,
        )

    def _samples(self, most: int) -> Iterator[Sample]:
        return islice(iter(self._calibration.split(self._model)), most)

    # From means -----------------------------------------------------------------------------

    def from_means(self, biased: Sequence[BiasedLayer], means: Mapping[str, F64]) -> Shifts:
        """Return what takes back E[dy] = dW E[x], with the mean inputs of the float model."""
        axes = input_axes(biased)
        layers: dict[str, BiasedLayer] = {}
        for layer in biased:
            source, node = layer.source.name or "", layer.node.name or ""
            if axes[source] != layer.input_axis or source not in means:
                self._skipped[node] = "its input is read along two axes"
            else:
                layers[node] = layer
        shifts: Shifts = {}
        if not layers:
            return shifts
        samples, extractor = self._samples(TEST_SAMPLES), Extractor(self._model)
        with (
            LayerwiseRun(self._model, list(layers), samples, providers=self._providers) as run,
            self._float_outputs([*layers.values()], run) as outputs,
        ):
            for inputs in run:
                layer = layers[inputs.node]
                weight, source = layer.weight.name or "", layer.source.name or ""
                stored = self._stored(weight)
                difference = stored.astype(np.float64) - self._constants[weight].array
                halves = [
                    Line(-mean_error(layer, difference, mean))
                    for mean in self._means_of_halves(inputs.values(source), layer.input_axis)
                ]
                result = layer.node.outputs[0].name or ""
                constants = {weight: ir.tensor(stored)}
                part = extractor.path(source, result, constants, layer.source.type)
                run_layer = open_function(part, self._providers)
                given = map(run_layer, inputs.values(source))
                if self._accepts(outputs.beside(layer, given, {}).test(halves), layer):
                    shift = -mean_error(layer, difference, means[source])
                    shifts[layer.bias.name or ""] = shift / layer.factor
        return shifts

    def _means_of_halves(self, arrays: Iterable[Array], axis: int) -> list[F64]:
        rows = [by_channel(unit, axis) for array in arrays for unit in units_of(array, self._batch)]
        return [
            np.concatenate(half).mean(axis=0) if half else np.zeros(rows[0].shape[1])
            for half in (rows[0::2], rows[1::2])
        ]

    def _stored(self, name: str) -> Array:
        """Return a constant as it comes back from its integers."""
        constant, planned = self._constants[name], self._planned
        parameters = planned.plan.parameters(constant.key)
        return constant.stored(parameters, planned.constants.get(name), self._rounding)

    # Layer by layer -------------------------------------------------------------------------

    def layer_by_layer(self, biased: Sequence[BiasedLayer]) -> tuple[Shifts, Shifts]:
        """Return what brings each layer closest to that of the float model: shifts and gains.

        The float model runs once, and then one that is quantized, up to layer after layer: what
        corrects the output of a layer is applied before the next ones run.
        """
        model = self._model
        quantized_model = with_quantized_activations(model, self._planned.plan, self._constants)
        biases = {layer.bias.name or "": _bias_of(layer, self._planned) for layer in biased}
        # Whatever rounding a bias takes away comes after its correction.
        weights = biases | {
            name: self._stored(name) for name in self._constants if name not in biases
        }
        shifts: Shifts = {}
        gains: Shifts = {}
        with (
            LayerwiseRun(
                quantized_model,
                (),
                self._samples(SAMPLES),
                providers=self._providers,
                parts=cut_model(model, _followers(model, biased)),
            ) as run,
            self._float_outputs(biased, run) as outputs,
        ):
            for name, array in weights.items():
                run.put_weight(name, array)
            # The last part is behind all layers, and is not run.
            for layer, _ in zip(biased, run.advance(), strict=False):
                result, axis = layer.node.outputs[0].name or "", layer.output_axis
                found = outputs.beside(layer, run.values(result), run.weights)
                halves = found.fit_halves()
                test, best = found.test([_shifted(half) for half in halves]), _shifted
                if self._takes_gain(layer, halves[0].errors.size):
                    other = found.test([_scaled(half) for half in halves])
                    if other.after < test.after:
                        test, best = other, _scaled
                if not self._accepts(test, layer):
                    continue
                line, bias = best(halves[0] | halves[1]), layer.bias.name or ""
                shifts[bias] = line.shift / layer.factor
                if line.gain is not None:
                    gains[layer.weight.name or ""] = line.gain
                    if layer.node.op_type != "MatMul":  # whose output comes without its bias
                        shifts[bias] += (line.gain - 1) * biases[bias].astype(np.float64)
                run.change(result, partial(line.apply, axis=axis))
        return shifts, gains

    def _takes_gain(self, layer: BiasedLayer, channels: int) -> bool:
        """Whether a layer has a scale for each output, and a weight and bias to itself."""
        constant = self._constants[layer.weight.name or ""]
        entry = self._planned.plan.tensors[constant.key]
        bias = layer.bias.const_value
        return (
            self._planned.plan.recipe.gain_correction
            and len(constant.nodes) == 1
            and not entry.block_size
            and entry.same_as is None
            and np.asarray(entry.scale).size == channels > 1
            and bias is not None
            and bias.shape.numpy() == (channels,)
        )

    def _accepts(self, test: Test, layer: BiasedLayer) -> bool:
        if test.after < test.before:
            self.passed.append(test)
            return True
        self._skipped[layer.node.name or ""] = (
            "the error behind it does not fall on holdout samples"
        )
        return False


def _batch_size(sample: Sample) -> int:
    """Return the size of the first axis, if all inputs have the same."""
    sizes = {np.shape(array)[0] if np.ndim(array) else 1 for array in sample.values()}
    return sizes.pop() if len(sizes) == 1 else 1


def _followers(model: ir.Model, layers: Sequence[BiasedLayer]) -> list[str]:
    """Return the names of the nodes that come behind layers in the graph's order."""
    nodes = [node.name or "" for node in model.graph]
    behind = dict(pairwise(nodes))
    return [behind[name] for layer in layers if (name := layer.node.name or "") in behind]


def _bias_of(layer: BiasedLayer, planned: Planned) -> Array:
    name, tensor = layer.bias.name or "", layer.bias.const_value
    assert tensor is not None
    return np.asarray(planned.constants.get(name, tensor.numpy()))


def _notes(mode: str, passed: Sequence[Test], skipped: Mapping[str, str]) -> list[str]:
    notes = [f"corrected the biases of {counted(len(passed), 'layer')} ({mode})"]
    if passed:
        gain = float(np.mean([test.gain for test in passed]))
        notes[0] += f": the error behind them falls by {gain:.2g} dB on average, on holdout samples"
    for reason, count in Counter(skipped.values()).items():
        notes.append(f"bias correction left {counted(count, 'layer')}: {reason}")
    return notes
