"""Checks of a recipe against its model and the runtime, before any data is read."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import onnx_ir as ir

from bitwright.decide.layout.node_names import find_names, suggest_name
from bitwright.decide.ranges.methods import METHODS
from bitwright.errors import RecipeError, did_you_mean
from bitwright.graph.constants import is_constant
from bitwright.numerics.types import INT4, INT8, INT16, INT32, QTYPES, UINT4, UINT8, UINT16
from bitwright.recipe import MinMax, Override, Recipe, find_override
from bitwright.support.wording import warn_user

Names = Mapping[ir.Value, str]

_ACTIVATION_TYPES = (INT8, UINT8, INT16, UINT16, INT4, UINT4)
_WEIGHT_TYPES = _ACTIVATION_TYPES
# With bodies of their own for all types, only packed ones have to be constant.
_EXTENDED_ACTIVATION_TYPES = tuple(t for t in QTYPES.values() if t.bits >= 8 or t.shares_exponent)
_EXTENDED_WEIGHT_TYPES = (*_EXTENDED_ACTIVATION_TYPES, INT4, UINT4)


def check_recipe(recipe: Recipe, names: Names) -> None:
    """Raise for overrides, types and formats that this model or the runtime cannot take."""
    _check_overrides(recipe, names)
    _check_types(recipe, names)
    if recipe.output_format.integer_ops:
        _check_integer_recipe(recipe)


def check_tensor_names(recipe: Recipe, known: Collection[str]) -> None:
    """Refuse overrides of tensors that name none."""
    for name, override in recipe.overrides.items():
        if override.for_tensors and not find_names(name, known):
            fits = "fits" if name.startswith("re:") else "is called"
            hint = suggest_name(name, known)
            raise RecipeError(f"overrides: no tensor {fits} {name!r}.{hint}")


def has_channelwise_activations(recipe: Recipe) -> bool:
    """Return whether activations get one range for each channel."""
    return isinstance(recipe.ranges, MinMax) and recipe.ranges.per_channel


def _check_overrides(recipe: Recipe, names: Names) -> None:
    check_tensor_names(recipe, set(names.values()))
    for value, name in names.items():
        override = find_override(recipe.overrides, name)
        if override is not None and override.convert is not None:
            _check_convert(name, value, override, recipe)


def _check_convert(name: str, value: ir.Value, override: Override, recipe: Recipe) -> None:
    where = f"the override of {name!r} asks for convert, but"
    if not recipe.output_format.standard_pairs:
        raise RecipeError(f"{where} only the format qdq has pairs behind pairs.")
    if recipe.emulate.dedicated_pairs:
        raise RecipeError(f"{where} dedicated_pairs gives each reader a pair of its own.")
    if is_constant(value):
        raise RecipeError(f"{where} it is a constant; give a constant the type it needs.")
    assert override.convert is not None
    if override.convert.qtype == (override.qtype or recipe.activation):
        raise RecipeError(f"{where} it already is of the type {override.convert.qtype}.")
    readers = {use.node.name or "" for use in value.uses()}
    for node in override.convert_for or ():
        if node not in readers:
            sentence = f"{where} no node {node!r} reads it.{did_you_mean(node, readers)}"
            if recipe.select.unknown_names == "refuse":
                raise RecipeError(sentence)
            warn_user(sentence)


def _check_types(recipe: Recipe, names: Names) -> None:
    """Refuse, before any data is read, types that the runtime would refuse after it."""
    types = [("activations", recipe.activation), ("weights", recipe.weight)]
    for override in recipe.overrides.values():
        types += [("activations", qtype) for qtype in (override.activation,) if qtype]
        types += [("weights", qtype) for qtype in (override.weight,) if qtype]
    for value, name in names.items() if recipe.overrides else ():
        given = find_override(recipe.overrides, name) or Override()
        if given.qtype is not None:
            types.append(("weights" if is_constant(value) else "activations", given.qtype))
        if given.convert is not None and given.convert.qtype is not None:
            types.append(("activations", given.convert.qtype))
    extended = recipe.output_format.vendor_ops
    for role, qtype in types:
        if extended:
            known = _EXTENDED_ACTIVATION_TYPES if role == "activations" else _EXTENDED_WEIGHT_TYPES
        else:
            known = _ACTIVATION_TYPES if role == "activations" else _WEIGHT_TYPES
        is_allowed = qtype in known or not recipe.place.must_run
        if not is_allowed and not (role == "weights" and qtype == INT32):
            remedy = "" if extended else ", or the format extended, which has every type"
            raise RecipeError(
                f"ONNX Runtime has no kernels for {role} in {qtype}; "
                f"use one of {', '.join(str(choice) for choice in known)}{remedy}."
            )
        method = recipe.ranges if role == "activations" else recipe.weight_ranges
        is_float8 = qtype.kind == "float" and qtype.needs_range
        if is_float8 and not METHODS[type(method)].for_floats:
            raise RecipeError(
                f"{qtype} takes the range methods minmax, percentile and distribution; the others "
                "compare grids of integers."
            )
    if has_channelwise_activations(recipe) and recipe.activation.bits == 8:
        raise RecipeError(
            "ONNX Runtime's 8-bit kernels take one scale for a whole activation; drop "
            "per_channel from the range method, or use 16-bit activations with it."
        )


_PAIR_OPTIONS = ("dedicated_pairs", "dedicated_dequantizers", "weight_pairs", "contrib_ops")


def _check_integer_recipe(recipe: Recipe) -> None:
    """Refuse what the QOperator format cannot hold: it has integer operators of 8 bits only."""
    types = [("activations are", recipe.activation), ("weights are", recipe.weight)]
    for name, override in recipe.overrides.items():
        types += [(f"{name!r} is", qtype) for qtype in override.types]
        if override.block_size:
            raise RecipeError(
                f"QOperator has no blocks, and {name!r} is to have them; use format 'qdq'."
            )
    for what, qtype in types:
        if qtype not in (INT8, UINT8):
            raise RecipeError(
                f"QOperator holds int8 and uint8 only, and {what} to be {qtype}; "
                "use format 'qdq' for other types."
            )
    if recipe.bias != "int32":
        raise RecipeError(
            "QOperator adds int32 biases at (input scale x weight scale) and has no place for bias "
            f"{recipe.bias!r}; drop it, or use format 'qdq'."
        )
    if recipe.block_size:
        raise RecipeError("QOperator has no blocks; drop block_size, or use format 'qdq'.")
    for option in _PAIR_OPTIONS:
        if getattr(recipe.emulate, option):
            raise RecipeError(
                f"emulate.{option} is about Q/DQ pairs, which QOperator does without; drop it, or "
                "use format 'qdq'."
            )
