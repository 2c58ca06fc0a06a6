"""Cross-layer equalization of consecutive layers: each channel gets weights of the same size.

M. Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction" (2019,
arXiv:1906.04721), section 4.1: where a layer, a positively homogeneous function and a layer follow
each other, W2 f(W1 x + b1) = (W2 / s) f(s W1 x + s b1) for any s > 0 of a channel. With
s = sqrt(r2 / r1), r1 and r2 being the largest weights of the channel on both sides, both become
sqrt(r1 r2). One scale for a whole weight then wastes less of its levels on small channels.

A depthwise layer between two others has a closed form of its own: all three sizes become their
geometric mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from bitwright.equalize.cle_chains import Chains, Layer, Link, find_chains
from bitwright.graph import NameScope, replace_constant
from bitwright.recipe import CrossLayerEqualization, EqualizationDetails
from bitwright.support.array_types import F64, Array

# A channel beyond this on one side holds nothing but rounding noise: nothing to equalize.
_MAX_FACTOR = 1e8
# The adaptive sweeps have converged when their sum of changes stays the same this often.
_CONVERGED_WITHIN, _CONVERGED_SWEEPS = 1e-9, 20
_MAX_SWEEPS = 1000


@dataclass(frozen=True, slots=True)
class Equalized:
    """What equalization did to a model."""

    chains: Chains
    sweeps: int

    def __str__(self) -> str:
        pairs, triples = len(self.chains.links), len(self.chains.triples)
        if not pairs and not triples:
            reasons = [f": {name}: {why}" for name, why in self.chains.refused.items()]
            return "found no layers to equalize" + "".join(reasons[:1])
        counts = ((pairs, "pair"), (triples, "depthwise triple"))
        parts = [f"{count} {what}{'' if count == 1 else 's'}" for count, what in counts if count]
        often = f" in {self.sweeps} sweeps" if self.sweeps > 1 else ""
        return f"equalized {' and '.join(parts)} of layers{often}"


def equalize_layers(
    model: ir.Model,
    options: CrossLayerEqualization,
    details: EqualizationDetails = EqualizationDetails(),  # noqa: B008 (frozen)
) -> Equalized:
    """Equalize the layers of a model in place and return what was found."""
    chains = find_chains(model)
    order = {layer: at for at, layer in enumerate(chains.layers)}
    steps: list[_Step] = [*chains.links, *chains.triples]
    steps.sort(key=lambda step: order[_links_of(step)[0].head])
    layers = {
        layer: _Sized.of(layer, sums=options.steps == -1)
        for step in steps
        for layer in (_links_of(step)[0].head, *(link.tail for link in _links_of(step)))
    }
    sweeper = _Sweeper(steps, layers, options, details)
    sweeps = sweeper.sweep_until_done() if steps else 0
    _write(layers, steps, NameScope(model))
    return Equalized(chains, sweeps)


_Step = Link | tuple[Link, Link]


def _links_of(step: _Step) -> tuple[Link, ...]:
    return (step,) if isinstance(step, Link) else step


# Sizes and factors ----------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Sized:
    """A layer and its factors so far; the weight is multiplied by them once, at the end.

    A factor of an output and one of an input concern a whole kernel, so that sweeps need no more
    of a weight than the largest magnitude in each kernel.
    """

    layer: Layer
    sizes: Array
    """Largest magnitude for each (group, output, input)."""
    sums: Array | None
    """Sum of magnitudes, where changes are to be measured."""
    outputs: F64
    """Factor of each output, (group, output)."""
    inputs: F64
    """Factor of each input, (group, input)."""
    bias_divisor: float | None = None
    """Chosen at the first sweep: choosing it anew each time could prevent convergence."""

    @classmethod
    def of(cls, layer: Layer, *, sums: bool) -> _Sized:
        magnitudes = np.abs(layer.by_channel(layer.weight))
        sizes = magnitudes.max(axis=3)
        group, outputs, inputs = sizes.shape
        total = magnitudes.sum(axis=3, dtype=np.float64) if sums else None
        return cls(layer, sizes, total, np.ones((group, outputs)), np.ones((group, inputs)))

    def output_sizes(self) -> F64:
        """Return the largest weight of each output channel."""
        largest: F64 = (self.sizes * self.inputs[:, None, :]).max(axis=2) * self.outputs
        return largest.reshape(-1)

    def input_sizes(self, per_channel: int) -> F64:
        """Return the largest weight of each channel that is read as `per_channel` inputs."""
        largest: F64 = (self.sizes * self.outputs[:, :, None]).max(axis=1) * self.inputs
        each: F64 = largest.reshape(-1, per_channel).max(axis=1)
        return each

    def scale_outputs(self, factors: F64) -> None:
        self.outputs *= factors.reshape(self.outputs.shape)

    def scale_inputs(self, factors: F64, per_channel: int) -> None:
        self.inputs *= factors.repeat(per_channel).reshape(self.inputs.shape)

    def factors(self) -> F64:
        """Return what each kernel is multiplied by: (group, output, input)."""
        return self.outputs[:, :, None] * self.inputs[:, None, :]

    def change_since(self, before: F64) -> float:
        """Return by how much a weight has changed on average since it had these factors."""
        assert self.sums is not None
        return float((self.sums * np.abs(self.factors() - before)).sum() / self.layer.weight.size)


@dataclass(frozen=True, slots=True)
class _Sweeper:
    """Equalizes all pairs and triples of layers, sweep by sweep."""

    steps: list[_Step]
    layers: dict[Layer, _Sized]
    options: CrossLayerEqualization
    details: EqualizationDetails

    def sweep_until_done(self) -> int:
        """Go through all steps as often as is asked for, and return how often that was."""
        if self.options.steps != -1:
            for _ in range(self.options.steps):
                self._sweep()
            return self.options.steps
        last, converged = float("inf"), 0
        for sweep in range(1, _MAX_SWEEPS + 1):
            before = {layer: sized.factors() for layer, sized in self.layers.items()}
            self._sweep()
            change = sum(sized.change_since(before[layer]) for layer, sized in self.layers.items())
            converged = converged + 1 if abs(change - last) <= _CONVERGED_WITHIN else 0
            last = change
            is_small = change <= self.details.total_layer_diff_threshold
            if is_small or converged >= _CONVERGED_SWEEPS:
                return sweep
        return _MAX_SWEEPS

    def _sweep(self) -> None:
        for step in self.steps:
            if isinstance(step, Link):
                self._equalize_pair(step)
            else:
                _equalize_triple(step, self.layers)

    def _equalize_pair(self, link: Link) -> None:
        head, tail = self.layers[link.head], self.layers[link.tail]
        before = head.output_sizes()
        if self.details.append_bias and link.additions:
            before = np.maximum(before, _bias_sizes(link, head, before))
        behind = tail.input_sizes(link.inputs_per_channel)
        factors = _usable(np.sqrt(_ratio(behind, before)))
        threshold = self.options.weight_threshold
        if threshold is not None:
            factors = np.where(before + behind < threshold, 1.0, factors)
        head.scale_outputs(factors)
        tail.scale_inputs(1 / factors, link.inputs_per_channel)


def _equalize_triple(links: tuple[Link, Link], layers: dict[Layer, _Sized]) -> None:
    """Give all three sizes of each channel their geometric mean."""
    first, second = links
    head, middle, tail = (layers[layer] for layer in (first.head, first.tail, second.tail))
    sizes = head.output_sizes(), middle.output_sizes(), tail.input_sizes(second.inputs_per_channel)
    mean = np.cbrt(sizes[0] * sizes[1] * sizes[2])
    into, out_of = _usable(_ratio(mean, sizes[0])), _usable(_ratio(sizes[2], mean))
    head.scale_outputs(into)
    middle.scale_inputs(1 / into, 1)
    middle.scale_outputs(out_of)
    tail.scale_inputs(1 / out_of, second.inputs_per_channel)


def _ratio(above: F64, below: F64) -> F64:
    with np.errstate(divide="ignore", invalid="ignore"):
        return above / below


def _usable(factors: F64) -> F64:
    """Return 1 in place of factors that are zero, infinite, undefined or absurd."""
    with np.errstate(invalid="ignore"):
        fine = (factors > 1 / _MAX_FACTOR) & (factors < _MAX_FACTOR)
    return np.where(fine, factors, 1.0)


# Biases ---------------------------------------------------------------------------------------


def _bias_sizes(link: Link, head: _Sized, sizes: F64) -> F64:
    """Return what the bias of each channel counts as, next to the channel's weights."""
    bias = np.abs(np.sum([addition.per_channel() for addition in link.additions], axis=0))
    bias = np.where(sizes > 0, bias * head.outputs.reshape(-1), 0.0)
    if head.bias_divisor is None:
        weights = head.layer.by_channel(head.layer.weight) * head.factors()[..., None]
        head.bias_divisor = bias_divisor(weights.reshape(bias.size, -1), bias)
    return bias / head.bias_divisor


def bias_divisor(rows: Array, bias: Array) -> float:
    """Return by what a bias is divided when it counts as one more weight of its channel.

    It is larger where biases dwarf the weights, which they would else keep from being scaled.
    """
    magnitudes = np.abs(rows)
    smallest = np.where(magnitudes > 0, magnitudes, np.inf).min(axis=1, keepdims=True)
    magnitudes = np.where(magnitudes > 0, magnitudes, smallest)
    bias = np.where(np.isfinite(smallest[:, 0]), np.abs(bias), 0.0)
    largest, largest_weight = bias.max(initial=0.0), np.abs(rows).max(initial=0.0)
    ratios = bias[:, None] / np.maximum(magnitudes, 1e-7)
    median, mean = np.median(ratios), ratios.mean()
    if largest < 10 and largest < 20 * largest_weight:
        return 5.0 if median > 100 or mean > 1000 else 2.0
    if median > 30 or mean > 500:
        return 20.0
    return 10.0 if median > 15 or mean > 100 else 5.0


# Writing --------------------------------------------------------------------------------------


def _write(layers: dict[Layer, _Sized], steps: list[_Step], names: NameScope) -> None:
    """Store the scaled weights and biases, each rounded once from float64."""
    for layer, sized in layers.items():
        if (sized.outputs != 1).any() or (sized.inputs != 1).any():
            weight = layer.weight.astype(np.float64, order="C")
            view = layer.by_channel(weight)
            view *= sized.factors()[..., None]
            scaled = weight.astype(layer.weight.dtype)
            replace_constant(layer.node, 1, scaled, "weight", names)
    for link in (link for step in steps for link in _links_of(step)):
        factors = layers[link.head].outputs.reshape(-1)
        for addition in link.additions:
            if (factors != 1).any():
                scaled = (addition.per_channel() * factors).reshape(addition.shape)
                array = scaled.astype(addition.array.dtype)
                replace_constant(addition.node, addition.index, array, "bias", names)
