"""What layers give in the float model and in its quantized form, sample by sample.

One pass over the float model gives the outputs of all layers behind their activation functions, at
some places of each: in memory, and beyond a share of it on disk.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from bitwright.decide.function_behind import function_behind
from bitwright.numerics.broadcasting import along_axis, some_places
from bitwright.rounding.bias_correction import BiasedLayer
from bitwright.rounding.output_correction import OutputMoments, squared_error
from bitwright.run import Extractor, LayerwiseRun, SessionRunner, Spool, open_function
from bitwright.support import F64, Array, Closing

VALUES = 2048
"""How many values of a channel count in all samples: errors are much alike in all places."""
MIN_PLACES, MAX_PLACES = 32, 1024
"""How many places of an output count for each sample, at least and at most."""
MEMORY = 1 << 27
"""Bytes of outputs that are kept in memory; the rest is on disk."""

Function = Callable[[Array], Array]
Weights = Mapping[str, ir.TensorProtocol]


class Test(NamedTuple):
    """The squared error behind a layer on holdout samples, without its correction and with it."""

    before: float
    after: float

    @property
    def gain(self) -> float:
        """By how much the error falls, in dB."""
        return 10 * float(np.log10(self.before / max(self.after, 1e-12 * self.before)))


class Line(NamedTuple):
    """What corrects each channel of an output y: gain y + shift."""

    shift: F64
    gain: F64 | None = None

    def apply(self, given: Array, axis: int) -> Array:
        """Return an output corrected, in its own type."""
        shift = along_axis(self.shift.astype(given.dtype), axis, given.ndim)
        if self.gain is None:
            return np.asarray(given + shift)
        return np.asarray(
            given * along_axis(self.gain.astype(given.dtype), axis, given.ndim) + shift
        )


class Outputs(NamedTuple):
    """What one layer gives in both models: samples in turn are of one half or the other."""

    halves: tuple[Sequence[tuple[Array, Array, int]], Sequence[tuple[Array, Array, int]]]
    """Wanted: behind the activation function, in float. Given: before it, quantized. And how many
    samples that is."""
    function: Function
    axis: int

    def fit_halves(self) -> list[OutputMoments]:
        """Return what the shifts are computed from, for each half."""
        found = [OutputMoments.nothing()] * 2
        for index, half in enumerate(self.halves):
            for wanted, given, count in half:
                moments = OutputMoments.of(wanted, given, self.function, self.axis, samples=count)
                found[index] |= moments
        return found

    def test(self, lines: Sequence[Line]) -> Test:
        """Return the error behind the layer, each half corrected by what the other half gives."""
        before = after = 0.0
        for half, line in zip(self.halves, reversed(lines), strict=True):
            for wanted, given, _ in half:
                before += squared_error(wanted, self.function(given))
                after += squared_error(wanted, self.function(line.apply(given, self.axis)))
        return Test(before, after)


class FloatOutputs(Closing):
    """The outputs of layers in the float model, behind their activation functions."""

    def __init__(
        self,
        model: ir.Model,
        layers: Sequence[BiasedLayer],
        run: LayerwiseRun,
        *,
        batch: int = 1,
        group_bytes: int,
        providers: Sequence[str] | None = None,
    ) -> None:
        """Run the model over the samples of another run; those of a `batch` are told apart."""
        self._extractor, self._providers, self._batch = Extractor(model), providers, batch
        self._places = min(max(VALUES // run.count, MIN_PLACES), MAX_PLACES)
        self._functions: dict[Hashable, Function] = {}
        self._ends = {
            layer.node.name or "": function_behind(layer.node.outputs[0]).name or ""
            for layer in layers
        }
        self._shapes: defaultdict[str, list[tuple[int, ...]]] = defaultdict(list)
        self._spool = Spool(memory=MEMORY)
        axes = {self._ends[layer.node.name or ""]: layer.output_axis for layer in layers}
        runner = SessionRunner(model, list(axes), group_bytes=group_bytes, providers=providers)
        for sample in run.fed():
            for group in runner.groups(sample):
                for name, array in runner.run(group, sample).items():
                    self._shapes[name].append(array.shape)
                    thin = some_places(array.shape, axes[name], self._places)
                    self._spool.append(name, np.array(array[thin], order="C"))

    def beside(self, layer: BiasedLayer, given: Iterable[Array], weights: Weights) -> Outputs:
        """Return what a layer gives here beside what it gives, sample by sample, when quantized.

        Samples of which a router sends other rows to a layer once it is quantized say nothing.
        """
        end, axis = self._ends[layer.node.name or ""], layer.output_axis
        halves: tuple[defaultdict[Any, list[Any]], ...] = (defaultdict(list), defaultdict(list))
        index = 0
        pairs = zip(self._spool.rows(end), given, self._shapes[end], strict=True)
        for wanted, array, shape in pairs:
            if array.shape != shape:
                continue
            found = array[some_places(shape, axis, self._places)]
            units = (units_of(one, self._batch) for one in (wanted, found))
            for pair in zip(*units, strict=True):
                # Of one shape, samples are looked at together; a vector stays by itself.
                key = pair[0].shape if axis % max(array.ndim, 1) else index
                halves[index % 2][key].append(pair)
                index += 1
        one, other = (list(map(_together, half.values())) for half in halves)
        return Outputs((one, other), self._function(layer, weights), axis)

    def close(self) -> None:
        """Remove what was kept."""
        self._spool.close()

    def _function(self, layer: BiasedLayer, weights: Weights) -> Function:
        """Return the activation function behind a layer; those that compute the same are one."""
        result, end = layer.node.outputs[0].name or "", self._ends[layer.node.name or ""]
        if result == end:
            return lambda array: array
        part = self._extractor.path(result, end, weights, layer.source.type)
        key = _formula(part)
        if key not in self._functions:
            self._functions[key] = open_function(part, self._providers)
        return self._functions[key]


def _together(pairs: Sequence[tuple[Array, Array]]) -> tuple[Array, Array, int]:
    wanted, given = zip(*pairs, strict=True)
    return np.concatenate(wanted), np.concatenate(given), len(pairs)


def units_of(array: Array, batch: int) -> Iterator[Array]:
    """Yield a sample, or the samples of a batch of this size."""
    if batch == 1 or array.ndim < 2 or array.shape[0] != batch:
        yield array
    else:
        yield from (array[index : index + 1] for index in range(batch))


def _formula(part: ir.Model) -> Hashable:
    """Return what a part computes, without the names of its tensors."""
    numbers: dict[ir.Value, Hashable] = {}

    def of(value: ir.Value | None) -> Hashable:
        if value is not None and value.const_value is not None:
            array = value.const_value.numpy()
            return array.shape, array.tobytes()
        return None if value is None else numbers.setdefault(value, len(numbers))

    inputs = tuple((of(value), value.dtype) for value in part.graph.inputs)
    nodes = tuple(
        (
            node.op_identifier(),
            tuple(map(of, node.inputs)),
            tuple(sorted((name, str(one.value)) for name, one in node.attributes.items())),
            tuple(map(of, node.outputs)),
        )
        for node in part.graph
    )
    return inputs, nodes
