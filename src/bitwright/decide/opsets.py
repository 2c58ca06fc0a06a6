"""The opset that a recipe's types and scales need."""

from __future__ import annotations

import onnx_ir as ir

from bitwright.decide.ops.conventions import conventions_of
from bitwright.errors import RecipeError
from bitwright.numerics.types import INT16, QType
from bitwright.recipe import Recipe

# Below 13 DequantizeLinear knows no channels, and several ops take no 8-bit values.
_PREFERRED = 13
# QuantizeLinear came with 10, DynamicQuantizeLinear with 11; below 11 the runtime fuses nothing.
_PAIRS = 10
_DYNAMIC = _FUSED = 11
# Before, QLinearMatMul takes no float16 scales.
_HALF = 21
_BLOCKS = 21
_FLOAT4 = 23
_NORMS = 17  # LayerNormalization, which sums squares in float32
_CHANNELS = 13  # a scale for each column
_OPSET_OF_OUTPUT = {
    "matmul-nbits-and-rows": _CHANNELS,
    "qdq": _BLOCKS,
    "qdq-transposed": _BLOCKS,
    "nvfp4": _FLOAT4,
}
# The bodies of extended operators cast to the type of a zero point, and cut shapes in two.
_BODIES = 15


def needed_opset(model: ir.Model, recipe: Recipe) -> int:
    """Return the opset that the quantized model will have, at least the model's own."""
    own = max(model.opset_imports.get("", 1), recipe.opset or 1)
    if recipe.mode == "weight-only":
        own = max(own, _PREFERRED) if recipe.float16 == "cast" else own
        return max(own, _OPSET_OF_OUTPUT.get(recipe.weights.output, own))
    if recipe.mode == "cast":
        # Convolutions are defined for bfloat16 from there on.
        in_bfloat16 = recipe.weight.name == "bfloat16" and not recipe.casts_weights_only
        least = _NORMS if recipe.rewrite.fuse_layer_norm else _PREFERRED
        return max(own, 22 if in_bfloat16 else least)
    overrides = recipe.overrides.values()
    types = {recipe.activation, recipe.weight, *(t for o in overrides for t in o.types)}
    types |= {*recipe.place.weight_types.values()}
    if recipe.bias == "int16" and recipe.quantize_bias:
        types.add(INT16)
    needed = [own, _least_opset(own, recipe)]
    if recipe.output_format.vendor_ops:
        needed.append(_BODIES)
        types = {qtype for qtype in types if not _takes_any_opset(qtype, recipe)}
    for qtype in types:
        if not qtype.min_opset:
            raise RecipeError(
                f"ONNX has no QuantizeLinear to {qtype}; use one of int8, uint8, int16, uint16, "
                "int4, uint4, or the format extended, which has every type."
            )
        if not (recipe.emulate.contrib_ops and qtype.bits in conventions_of(recipe).contrib_bits):
            needed.append(qtype.min_opset)
    if recipe.block_size or any(o.block_size for o in overrides):
        needed.append(_BLOCKS)
    if recipe.float16 == "keep" and has_float16(model):
        needed.append(_HALF)
    return max(needed)


def _least_opset(own: int, recipe: Recipe) -> int:
    """Return the opset that a model is raised to whatever its types are."""
    if not conventions_of(recipe).keeps_opset:
        return _PREFERRED
    # What can be written at all is left; channels below 13 do not load there.
    if recipe.mode == "dynamic":
        return _DYNAMIC
    overrides = recipe.overrides.values()
    channels = recipe.per_channel or any(given.axis is not None for given in overrides)
    if channels and recipe.output_format.standard_pairs:
        return _PREFERRED
    return _PAIRS if own >= _PAIRS else _FUSED


def _takes_any_opset(qtype: QType, recipe: Recipe) -> bool:
    """Return whether extended operators have the type at any opset that has functions.

    Casts to float8 and tensors of 4 bits are as old as their standard pairs.
    """
    if qtype.is_integer and qtype.bits == 16:
        return recipe.emulate.extended_ops or recipe.output_format.single_nodes
    return not qtype.min_opset or (qtype.bits == 8 and qtype.is_integer)


def has_float16(model: ir.Model) -> bool:
    """Return whether inputs or constants of a model are float16."""
    half = ir.DataType.FLOAT16
    return any(
        value.dtype == half
        for graph in model.graphs()
        for value in (*graph.inputs, *graph.initializers.values())
    )
