"""Equalization of consecutive weights, and smoothing of what products read."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from bitwright.decide.ops import MATRIX_PRODUCTS, op_types
from bitwright.decide.ops.matching import clip_limits
from bitwright.jobs.improve.proposals.ranges import has_fine_weights
from bitwright.jobs.improve.recipes import Change
from bitwright.jobs.opening import Prepared, prepare_further
from bitwright.recipe import CrossLayerEqualization, Recipe, SmoothQuant

_NORMS = op_types(lambda op: op.normalizes == "last axes")


def equalizations(recipe: Recipe, prepared: Prepared) -> Iterator[Change]:
    """Propose to equalize consecutive weights, also behind clips that would be in the way.

    Channels with 8 bits and a scale of their own need no other size, and activations would be the
    worse for it.
    """
    if recipe.equalize is not None or recipe.smooth is not None:
        return
    # A norm before a product of matrices takes the factors.
    smoothable = any(
        use.node.op_type in MATRIX_PRODUCTS
        for node in prepared.model.graph.all_nodes()
        if node.op_type in _NORMS
        for use in node.outputs[0].uses()
    )
    if smoothable and recipe.activation.is_integer:
        yield Change("SmoothQuant", {"smooth": SmoothQuant(alpha="auto", shift=True)})
    if has_fine_weights(recipe):
        return
    equalize = CrossLayerEqualization(steps=-1, weight_threshold=None)
    other = prepare_further(prepared, recipe.replace(equalize=equalize))
    if other.content_fingerprint != prepared.content_fingerprint:
        yield Change("equalization", {"equalize": equalize})
    clips = recipe.rewrite.clip6_to_relu or recipe.emulate.clip_to_relu
    limits = (clip_limits(node) for node in prepared.model.graph.all_nodes())
    if not clips and any(found is not None and found == (0, 6) for found in limits):
        freed = msgspec.structs.replace(recipe.rewrite, clip6_to_relu=True)
        fields = {"equalize": equalize, "rewrite": freed}
        yield Change("equalization with clips made ReLU", fields)
