"""The axis of a weight's scales: one scale for each channel, for each block, or just one."""

from __future__ import annotations

import onnx_ir as ir

from bitwright.decide.ops import OpRule
from bitwright.errors import RecipeError
from bitwright.graph.constants import constant_of
from bitwright.numerics.types import QType
from bitwright.recipe import Override, Recipe

__all__ = ["weight_axis"]


def weight_axis(
    node: ir.Node, index: int, rule: OpRule, recipe: Recipe, override: Override | None
) -> tuple[int | None, int]:
    """Return the axis of a constant's scales and the size of its blocks; (None, 0): one scale."""
    value = node.inputs[index]
    array = constant_of(value)
    assert value is not None and array is not None
    own = None if rule.channel_axis is None else rule.channel_axis(node, index)
    if override is not None and (override.axis is not None or override.block_size):
        where = f"the override of {value.name!r}"
        axis = _valid_axis(override.axis or 0, array.ndim, where)
        if not override.block_size:
            _refuse_misread_axis(node, rule, axis, own, override.qtype or recipe.weight)
        return axis, override.block_size or 0
    if recipe.block_size and array.ndim == 2 and rule.linear == "matrix":
        return 1 if own is None else 1 - own, recipe.block_size
    if not recipe.per_channel or array.ndim < 2:
        return None, 0
    custom = recipe.place.channel_axes.get(node.op_type)
    if custom is None:
        return own, 0
    axis = _valid_axis(custom, array.ndim, f"channel_axes of {node.op_type}")
    _refuse_misread_axis(node, rule, axis, own, recipe.weight)
    return axis, 0


def _refuse_misread_axis(
    node: ir.Node, rule: OpRule, axis: int, own: int | None, qtype: QType
) -> None:
    """Refuse channels that the runtime's integer kernel would take for those of another axis."""
    if not rule.fixed_axis or qtype.bits != 8 or axis == own:
        return
    takes = "one scale for the whole tensor" if own is None else f"channels along axis {own}"
    raise RecipeError(
        f"ONNX Runtime's 8-bit {node.op_type} takes {takes} and would compute wrong numbers for "
        f"the weight of {node.name!r} with scales along axis {axis}; leave the axis out."
    )


def _valid_axis(axis: int, rank: int, where: str) -> int:
    if not -rank <= axis < rank:
        raise RecipeError(f"{where} names axis {axis}, but the tensor has {rank} axes.")
    return axis % rank if rank else axis
