"""The steps of effort: changes of a recipe that may bring the model closer to float."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from bitwright.decide.ops import MATRIX_PRODUCTS, op_types
from bitwright.jobs.opening import Prepared, prepare_further
from bitwright.prepare.matching import clip_limits
from bitwright.recipe import (
    MSE,
    CrossLayerEqualization,
    MeanExtremes,
    MinMax,
    MinMSE,
    RangeMethod,
    Recipe,
    SmoothQuant,
)

__all__ = ["BIAS_CORRECTION", "BYTE", "FAMILY", "RANGES", "ROUNDING", "Change", "Propose"]

_NORMS = op_types(lambda op: op.normalizes == "last axes")
BYTE = 8


class Change(NamedTuple):
    """One thing that is done differently, by the fields of the recipe that say so."""

    name: str
    fields: dict[str, Any]


Propose = Callable[[Recipe, Prepared], Iterator[Change]]


def _equalizations(recipe: Recipe, prepared: Prepared) -> Iterator[Change]:
    """Propose to equalize consecutive weights, also behind clips that would be in the way.

    Channels with 8 bits and a scale of their own need no other size, and activations would be the
    worse for it.
    """
    if recipe.equalize is not None or recipe.smooth is not None:
        return
    if _has_smoothable_products(prepared) and recipe.activation.is_integer:
        yield Change("SmoothQuant", {"smooth": SmoothQuant(alpha="auto", shift=True)})
    if recipe.per_channel and recipe.weight.bits >= BYTE and recipe.scales == "float":
        return
    fields: dict[str, Any] = {
        "equalize": CrossLayerEqualization(steps=-1, weight_threshold=None),
    }
    other = prepare_further(prepared, recipe.replace(**fields))
    if other.content_fingerprint != prepared.content_fingerprint:
        yield Change("equalization", fields)
    clips = recipe.rewrite.clip6_to_relu or recipe.rewrite.clip_to_relu
    limits = (clip_limits(node) for node in prepared.model.graph.all_nodes())
    if not clips and any(found is not None and found == (0, 6) for found in limits):
        freed = msgspec.structs.replace(recipe.rewrite, clip6_to_relu=True)
        yield Change("equalization with clips made ReLU", {**fields, "rewrite": freed})


def _has_smoothable_products(prepared: Prepared) -> bool:
    """Whether a norm, which takes the factors, stands before a product of matrices."""
    return any(
        use.node.op_type in MATRIX_PRODUCTS
        for node in prepared.model.graph.all_nodes()
        if node.op_type in _NORMS
        for use in node.outputs[0].uses()
    )


def _activation_ranges(recipe: Recipe, prepared: Prepared) -> Iterator[Change]:
    method = recipe.ranges
    channelwise = isinstance(method, MinMax) and method.per_channel
    if recipe.activation.is_integer and not channelwise:
        yield from _with_ranges(recipe, "ranges", "activations", method)
        if recipe.scales == "float" and not isinstance(method, MeanExtremes):
            mean = MeanExtremes(symmetric=method.symmetric)
            yield Change("ranges of activations by mean extremes", {"ranges": mean})


def _weight_ranges(recipe: Recipe, prepared: Prepared) -> Iterator[Change]:
    """Propose to clip weights, where 8 bits for each channel do not hold them well anyway."""
    is_fine = recipe.per_channel and recipe.weight.bits >= BYTE and recipe.scales == "float"
    if recipe.weight.is_integer and not recipe.block_size and not is_fine:
        yield from _with_ranges(recipe, "weight_ranges", "weights", recipe.weight_ranges)


def _with_ranges(recipe: Recipe, field: str, tensors: str, method: RangeMethod) -> Iterator[Change]:
    best = MinMSE if recipe.scales == "power-of-two" else MSE
    if not isinstance(method, best):
        chosen = best(symmetric=method.symmetric)
        yield Change(f"ranges of {tensors} by least squared error", {field: chosen})


def _roundings(recipe: Recipe, prepared: Prepared) -> Iterator[Change]:
    """Propose to round low-bit weights by the second moments of what they multiply."""
    if recipe.weight.is_integer and recipe.weight.bits < BYTE and recipe.rounding != "gptq":
        yield Change("rounding by second moments", {"rounding": "gptq"})


def _bias_corrections(recipe: Recipe, prepared: Prepared) -> Iterator[Change]:
    """Propose to correct biases layer by layer, with gains where scales can take them.

    Both are accepted layer by layer, so that neither shifts alone nor those that means give need a
    trial of their own.
    """
    if recipe.bias_correction != "off":
        return
    if recipe.per_channel and recipe.scales == "float" and recipe.weight.is_integer:
        gains = {"bias_correction": "sequential", "gain_correction": True}
        yield Change("bias and gain correction layer by layer", gains)
    else:
        yield Change("bias correction layer by layer", {"bias_correction": "sequential"})


RANGES: dict[str, Propose] = {"ranges of activations": _activation_ranges}
"""The one step that costs little beside calibration: functions of what it observes."""
FAMILY: dict[str, Propose] = {
    "equalization": _equalizations,
    "ranges of activations": _activation_ranges,
    "ranges of weights": _weight_ranges,
}
"""Steps that are tried in all combinations: all but the first are functions of the sketches."""
ROUNDING: dict[str, Propose] = {"rounding": _roundings}
"""The step after them: it reads the data again."""
BIAS_CORRECTION: dict[str, Propose] = {"bias correction": _bias_corrections}
"""The last of these steps: what it corrects are the errors that the others leave."""
