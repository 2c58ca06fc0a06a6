"""The opset that a recipe's types and scales need."""

from __future__ import annotations

import onnx_ir as ir

from bitwright.errors import RecipeError
from bitwright.numerics.types import INT16
from bitwright.recipe import Recipe

__all__ = ["needed_opset"]

# Below 13 DequantizeLinear knows no channels, and several ops take no 8-bit values.
_PREFERRED = 13
_HALF = 19
_BLOCKS = 21


def needed_opset(model: ir.Model, recipe: Recipe) -> int:
    """Return the opset that the quantized model will have, at least the model's own.

    >>> from bitwright.recipe import load_recipe
    >>> graph = ir.Graph([], [], nodes=[], opset_imports={"": 11})
    >>> model = ir.Model(graph, ir_version=8)
    >>> needed_opset(model, load_recipe("int8")), needed_opset(model, load_recipe("a16w8"))
    (13, 21)
    """
    overrides = [*recipe.overrides.values()]
    overrides += [o.convert for o in overrides if o.convert is not None]
    types = {recipe.activation, recipe.weight, *(o.qtype for o in overrides if o.qtype)}
    if recipe.bias == "int16" and recipe.quantize_bias:
        types.add(INT16)
    needed = [model.opset_imports.get("", 1), _PREFERRED]
    for qtype in types:
        if not qtype.min_opset:
            raise RecipeError(
                f"ONNX has no QuantizeLinear to {qtype}; use one of int8, uint8, int16, uint16, "
                "int4, uint4."
            )
        # The contrib ops take these types at any opset.
        if not (recipe.place.contrib_ops and qtype.bits in (4, 16)):
            needed.append(qtype.min_opset)
    if recipe.block_size or any(o.block_size for o in overrides):
        needed.append(_BLOCKS)
    # Dynamic models quantize in float32 whatever the model's own type is.
    if _has_half_floats(model) and recipe.mode == "static":
        needed.append(_HALF)
    return max(needed)


def _has_half_floats(model: ir.Model) -> bool:
    half = ir.DataType.FLOAT16
    return any(
        value.dtype == half
        for graph in model.graphs()
        for value in (*graph.inputs, *graph.initializers.values())
    )
