"""Bias correction as a step of a job: between its plan, or its fine-tuning, and what it writes.

The correction of a layer is accepted only if it lowers the squared error behind the layer, and
behind the activation function that follows it, on samples that it was not computed from: each half
of them is tested with what the other half gives. What is accepted is then computed from all.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from bitwright.data import Sample
from bitwright.decide.function_behind import function_behind
from bitwright.decide.scales.biases import fit_biases
from bitwright.jobs.calibration import Calibrated, Calibration, find_input_means, require_data
from bitwright.jobs.fine_tuning.constants import (
    Constant,
    find_constants,
    with_quantized_activations,
)
from bitwright.jobs.opening import Prepared
from bitwright.jobs.output import Planned, float_model_to_round
from bitwright.numerics.broadcasting import along_axis
from bitwright.plan import QuantPlan, TensorPlan
from bitwright.rounding.bias_correction import (
    BiasedLayer,
    add_to_bias,
    find_biased_layers,
    input_axes,
    mean_error,
    multiply_channels,
)
from bitwright.rounding.output_correction import OutputMoments, by_channel, squared_error
from bitwright.run import LayerwiseRun, Spool, open_path, run_side_by_side
from bitwright.support.wording import counted

__all__ = ["correct_biases"]

SAMPLES = 256
"""How many samples layers are compared on, one after the other: means converge long before."""
TEST_SAMPLES = 16
"""How many samples a correction from means is tested on."""
MAX_PLACES = 1024
"""How many places of an output count for each sample: its errors are much alike in all of them."""
MIN_SAMPLES = 4
"""Samples that there must be: two to compute a correction from, two to test it on."""

Array = npt.NDArray[Any]
F64 = npt.NDArray[np.float64]
Shifts = dict[str, F64]
Function = Callable[[Array], Array]
Weights = Mapping[str, ir.TensorProtocol]


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


class _Test(NamedTuple):
    """The squared error behind a layer on holdout samples, without its correction and with it."""

    before: float
    after: float

    @property
    def gain(self) -> float:
        """By how much the error falls, in dB."""
        return 10 * float(np.log10(self.before / max(self.after, 1e-12 * self.before)))


class _Line(NamedTuple):
    """What corrects each channel of an output y: gain y + shift."""

    shift: F64
    gain: F64 | None = None

    def apply(self, given: Array, axis: int) -> Array:
        wide = given.astype(np.float64)
        if self.gain is not None:
            wide *= along_axis(self.gain, axis, given.ndim)
        shifted = wide + along_axis(self.shift, axis, given.ndim)
        return np.asarray(shifted, given.dtype)


def _shifted(seen: OutputMoments) -> _Line:
    return _Line(seen.shift())


def _scaled(seen: OutputMoments) -> _Line:
    gain, shift = seen.gain_and_shift()
    return _Line(shift, gain)


class _Outputs(NamedTuple):
    """What one layer gives in both models, pair by pair: even ones are one half, odd the other."""

    rows: Spool
    """Wanted: behind the activation function, in float. Given: before it, quantized."""
    function: Function
    axis: int

    def _pairs(self) -> Iterator[tuple[int, Array, Array]]:
        if "given" in self.rows:
            pairs = zip(self.rows.rows("wanted"), self.rows.rows("given"), strict=True)
            yield from ((index % 2, *pair) for index, pair in enumerate(pairs))

    def fit_halves(self) -> list[OutputMoments]:
        """Return what the shifts are computed from, for each half."""
        halves = [OutputMoments.nothing()] * 2
        for half, wanted, given in self._pairs():
            halves[half] |= OutputMoments.of(wanted, given, self.function, self.axis)
        return halves

    def test(self, lines: Sequence[_Line]) -> _Test:
        """Return the error behind the layer, each half corrected by what the other half gives."""
        before = after = 0.0
        for half, wanted, given in self._pairs():
            before += squared_error(wanted, self.function(given))
            corrected = lines[1 - half].apply(given, self.axis)
            after += squared_error(wanted, self.function(corrected))
        return _Test(before, after)


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
        self._planned, self._constants, self._skipped = planned, constants, skipped
        self._calibration = calibration
        sizes = [_batch_size(sample) for sample in self._samples(MIN_SAMPLES)]
        self._batch = sizes[0] if sizes and len(sizes) < MIN_SAMPLES else 1
        """The size of the batches to take apart, as there are too few of them."""
        self.samples = sum(sizes)
        """How many there are, or as many as are needed."""
        self.passed: list[_Test] = []

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
        samples = self._samples(TEST_SAMPLES)
        with LayerwiseRun(self._model, list(layers), samples, providers=self._providers) as run:
            for inputs in run:
                layer = layers[inputs.node]
                weight, source = layer.weight.name or "", layer.source.name or ""
                stored = self._stored(weight)
                difference = stored.astype(np.float64) - self._constants[weight].array
                halves = [
                    _Line(-mean_error(layer, difference, mean))
                    for mean in self._means_of_halves(inputs.values(source), layer.input_axis)
                ]
                given = self._outputs(self._model, layer, inputs, {weight: ir.tensor(stored)})
                with self._keep(layer, inputs, given, {}) as outputs:
                    test = outputs.test(halves)
                if self._accepts(test, layer):
                    shift = -mean_error(layer, difference, means[source])
                    shifts[layer.bias.name or ""] = shift / layer.factor
        return shifts

    def _means_of_halves(self, arrays: Iterable[Array], axis: int) -> list[F64]:
        rows = [by_channel(unit, axis) for array in arrays for unit in self._units(array)]
        return [
            np.concatenate(half).mean(axis=0) if half else np.zeros(rows[0].shape[1])
            for half in (rows[0::2], rows[1::2])
        ]

    def _stored(self, name: str) -> Array:
        """Return a constant as it comes back from its integers."""
        constant, planned = self._constants[name], self._planned
        return constant.stored(planned.plan.parameters(constant.key), planned.constants.get(name))

    # Layer by layer -------------------------------------------------------------------------

    def layer_by_layer(self, biased: Sequence[BiasedLayer]) -> tuple[Shifts, Shifts]:
        """Return what brings each layer closest to that of the float model: shifts and gains.

        Two models run over the same samples: the float one, and one that is quantized and whose
        biases are corrected so far. A layer runs a second time, by itself, and nothing else does.
        """
        model = self._model
        by_node = {layer.node.name or "": layer for layer in biased}
        quantized_model = with_quantized_activations(model, self._planned.plan, self._constants)
        biases = {layer.bias.name or "": _bias_of(layer, self._planned) for layer in biased}
        # Whatever rounding a bias takes away comes after its correction.
        weights = biases | {
            name: self._stored(name) for name in self._constants if name not in biases
        }
        shifts: Shifts = {}
        gains: Shifts = {}
        with run_side_by_side(
            model,
            quantized_model,
            list(by_node),
            self._samples(SAMPLES),
            weights=weights,
            providers=self._providers,
        ) as layers:
            for floats, quantized in layers:
                layer = by_node[floats.node]
                given = self._outputs(quantized_model, layer, quantized, quantized.weights)
                with self._keep(layer, floats, given, quantized.weights) as outputs:
                    halves = outputs.fit_halves()
                    test, best = outputs.test([_shifted(half) for half in halves]), _shifted
                    if self._takes_gain(layer, halves[0].errors.size):
                        other = outputs.test([_scaled(half) for half in halves])
                        if other.after < test.after:
                            test, best = other, _scaled
                if not self._accepts(test, layer):
                    continue
                line, bias = best(halves[0] | halves[1]), layer.bias.name or ""
                shifts[bias] = line.shift / layer.factor
                if line.gain is not None:
                    name = layer.weight.name or ""
                    gains[name] = line.gain
                    if layer.node.op_type != "MatMul":  # whose output comes without its bias
                        shifts[bias] += (line.gain - 1) * biases[bias].astype(np.float64)
                    axis = self._planned.plan.tensors[self._constants[name].key].axis
                    scaled = multiply_channels(weights[name], line.gain, axis)
                    quantized.put_weight(name, scaled)
                quantized.put_weight(bias, add_to_bias(biases[bias], shifts[bias]))
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

    # One layer ------------------------------------------------------------------------------

    def _outputs(
        self, model: ir.Model, layer: BiasedLayer, inputs: LayerwiseRun, weights: Weights
    ) -> Iterator[Array]:
        """Yield what a layer makes of its inputs, sample by sample."""
        source, result = layer.source.name or "", layer.node.outputs[0].name or ""
        run = self._open(model, layer, source, result, weights)
        return map(run, inputs.values(source))

    def _open(
        self, model: ir.Model, layer: BiasedLayer, source: str, result: str, weights: Weights
    ) -> Function:
        given = layer.source.type
        return open_path(
            model, source, result, weights, assumed_type=given, providers=self._providers
        )

    @contextmanager
    def _keep(
        self, layer: BiasedLayer, floats: LayerwiseRun, given: Iterable[Array], weights: Weights
    ) -> Iterator[_Outputs]:
        """Keep what a layer gives in both models, one unit after the other.

        Samples of which a router sends other rows to a layer once it is quantized say nothing.
        """
        result, axis = layer.node.outputs[0], layer.output_axis
        end = function_behind(result)
        wanted_by: Function = lambda array: array  # noqa: E731
        given_by = wanted_by
        if end is not result:  # an activation function, with the Add of its bias if that is it
            names = result.name or "", end.name or ""
            wanted_by, given_by = (
                self._open(self._model, layer, *names, put_in) for put_in in ({}, weights)
            )
        with Spool() as rows:
            wanted = self._outputs(self._model, layer, floats, {})
            for one, other in zip(wanted, given, strict=True):
                if one.shape != other.shape:
                    continue
                thin = _thinning(one.shape, axis)
                for unit in self._units(one[thin]):
                    rows.append("wanted", wanted_by(unit))
                for unit in self._units(other[thin]):
                    rows.append("given", unit)
            yield _Outputs(rows, given_by, axis)

    def _units(self, array: Array) -> Iterator[Array]:
        """Yield a sample, or the samples of a batch."""
        if self._batch == 1 or array.ndim < 2 or array.shape[0] != self._batch:
            yield array
        else:
            yield from (array[index : index + 1] for index in range(self._batch))

    def _accepts(self, test: _Test, layer: BiasedLayer) -> bool:
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


def _thinning(shape: tuple[int, ...], axis: int) -> tuple[slice, ...]:
    """Return which places of an output to look at: all channels, and places evenly apart."""
    axes = [i for i in range(1, len(shape)) if i != axis % len(shape)]
    places = math.prod(shape[i] for i in axes)
    step = math.ceil((places / MAX_PLACES) ** (1 / max(len(axes), 1)))
    thin = slice(step // 2, None, step) if step > 1 else slice(None)
    return tuple(thin if i in axes and shape[i] > step else slice(None) for i in range(len(shape)))


def _bias_of(layer: BiasedLayer, planned: Planned) -> Array:
    name, tensor = layer.bias.name or "", layer.bias.const_value
    assert tensor is not None
    return np.asarray(planned.constants.get(name, tensor.numpy()))


def _notes(mode: str, passed: Sequence[_Test], skipped: Mapping[str, str]) -> list[str]:
    notes = [f"corrected the biases of {counted(len(passed), 'layer')} ({mode})"]
    if passed:
        gain = float(np.mean([test.gain for test in passed]))
        notes[0] += f": the error behind them falls by {gain:.2g} dB on average, on holdout samples"
    for reason, count in Counter(skipped.values()).items():
        notes.append(f"bias correction left {counted(count, 'layer')}: {reason}")
    return notes
