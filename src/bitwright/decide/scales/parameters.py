"""From ranges to scales: what each entry of a layout gets, given what was observed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from bitwright.decide.layout.entries import Entry, Layout
from bitwright.decide.ops import RULES, Skip
from bitwright.decide.ranges.methods import choose_range, sketch_std, weight_range
from bitwright.decide.ranges.power_of_two import position_grid
from bitwright.errors import ModelError, RecipeError
from bitwright.graph.constants import constant_of
from bitwright.numerics.broadcasting import along_axis
from bitwright.numerics.positions import PositionGrid
from bitwright.numerics.scales import (
    affine_parameters,
    ceil_scale,
    float_scale,
    restricted_asymmetric_parameters,
    smallest_bias_scale,
)
from bitwright.numerics.types import QType
from bitwright.plan import TensorPlan
from bitwright.recipe import Distribution, MinMax, MinMSE, RangeMethod, Recipe, ScaleKind

if TYPE_CHECKING:
    from bitwright.observe import TensorSketch

__all__ = [
    "activation_plan",
    "linked_plan",
    "shift_for_bias",
    "vote_grids",
    "weight_plan",
    "widened_for_bias",
]

Array = npt.NDArray[Any]


def activation_plan(entry: Entry, sketch: TensorSketch | None, recipe: Recipe) -> TensorPlan:
    """Return the plan of an activation that has parameters of its own."""
    given = entry.override
    if given is not None and given.scale is not None:
        return _given_plan(entry)
    if not entry.qtype.needs_range:
        return _unscaled_plan(entry)
    if not entry.qtype.is_integer and isinstance(_activation_ranges(entry, recipe), Distribution):
        return _deviation_plan(entry, 1.0 if sketch is None else sketch_std(sketch))
    symmetric = _is_symmetric(entry, recipe)
    axis: int | None = None
    low: Any
    high: Any
    if given is not None and given.rmin is not None:
        low, high, method = given.rmin, given.rmax, "given"
    elif entry.fixed_range is not None:
        (low, high), method = entry.fixed_range, "by definition"
    else:
        assert sketch is not None
        ranges = _activation_ranges(entry, recipe)
        if isinstance(ranges, MinMax) and ranges.per_channel and sketch.channel_low is None:
            ranges = msgspec.structs.replace(ranges, per_channel=False)
        low, high = choose_range(sketch, ranges, entry.qtype, symmetric=symmetric)
        method = _method_name(ranges)
        if np.ndim(low):
            axis = 1
    dtype = _float_dtype(entry)
    if not entry.qtype.is_integer:
        return _spread_plan(entry, low, high, method, recipe.scales)
    if recipe.restricted_asymmetric and not symmetric:
        scale, zero = restricted_asymmetric_parameters(
            low, high, dtype, min_real_range=recipe.min_real_range
        )
    else:
        scale, zero = affine_parameters(
            low,
            high,
            entry.qtype,
            symmetric=symmetric,
            min_real_range=recipe.min_real_range,
            kind=recipe.scales,
            dtype=dtype,
        )
    return _own_plan(entry, scale, zero, axis, (low, high), method)


def weight_plan(entry: Entry, recipe: Recipe) -> TensorPlan:
    """Return the plan of a constant, from its own values."""
    given = entry.override
    if given is not None and given.scale is not None:
        return _given_plan(entry)
    array = constant_of(entry.value)
    assert array is not None
    if not np.all(np.isfinite(array)):
        raise ModelError(
            f"weight {entry.name!r} holds NaN or infinite values; mend the model or exclude the "
            "nodes that read it."
        )
    if not entry.qtype.needs_range:
        return _unscaled_plan(entry)
    if not entry.qtype.is_integer and isinstance(recipe.weight_ranges, Distribution):
        return _deviation_plan(entry, float(np.std(array, dtype=np.float64)))
    if entry.operand:
        symmetric = recipe.activation_symmetric
    elif recipe.weight_symmetric is not None:
        symmetric = recipe.weight_symmetric
    else:
        symmetric = entry.qtype.signed
    reduced = recipe.reduce_range
    ranges: RangeMethod = recipe.weight_ranges
    low: Any
    high: Any
    if given is not None:
        symmetric = symmetric if given.symmetric is None else given.symmetric
        reduced = reduced if given.reduce_range is None else given.reduce_range
        ranges = given.ranges or ranges
    # Kernels with one zero point a channel are rare: channels are symmetric, whatever the type,
    # unless an override says otherwise.
    if entry.axis is not None and not entry.block_size:
        symmetric = symmetric or given is None or given.symmetric is not False
    if given is not None and given.rmin is not None:
        low, high, method = given.rmin, given.rmax, "given"
    else:
        low, high = _constant_range(array, entry, ranges, symmetric=symmetric, reduced=reduced)
        method = _method_name(ranges)
    if not entry.qtype.is_integer:
        return _spread_plan(entry, low, high, method, recipe.scales)
    scale, zero = affine_parameters(
        low,
        high,
        entry.qtype,
        symmetric=symmetric,
        reduced=reduced,
        min_real_range=recipe.min_real_range,
        kind=recipe.scales,
        dtype=_float_dtype(entry),
    )
    # A weight's range is a fact of the model; only an activation's is worth keeping in the plan.
    return _own_plan(entry, scale, zero, entry.axis, None, method)


def linked_plan(entry: Entry) -> TensorPlan:
    """Return the plan of an entry whose parameters come from other entries."""
    return TensorPlan(
        tensor=entry.name,
        role=entry.role,
        qtype=entry.qtype,
        axis=entry.axis,
        same_as=entry.same_as,
        bias_of=entry.bias_of,
        tile=entry.tile,
    )


def vote_grids(layout: Layout, recipe: Recipe) -> dict[str, tuple[PositionGrid, ...]]:
    """Return the tensors whose batches vote on a power-of-two scale, and the grids in question."""
    wanted: dict[str, dict[PositionGrid, None]] = {}
    for entry in layout.entries.values():
        method = _activation_ranges(entry, recipe)
        if not entry.needs_data or not entry.qtype.is_integer:
            continue
        if isinstance(method, MinMSE) and method.mode == "most-common":
            grid = position_grid(method, entry.qtype, symmetric=_is_symmetric(entry, recipe))
            wanted.setdefault(entry.name, {})[grid] = None
    return {name: tuple(grids) for name, grids in wanted.items()}


def _activation_ranges(entry: Entry, recipe: Recipe) -> RangeMethod:
    given = entry.override
    method = (given.ranges if given is not None else None) or recipe.ranges
    if method.symmetric and recipe.unsigned_relu and _is_never_negative(entry):
        return msgspec.structs.replace(method, symmetric=False)
    return method


def _is_symmetric(entry: Entry, recipe: Recipe) -> bool:
    """Return whether zero lies in the middle of an activation's type."""
    given = entry.override
    if given is not None and given.symmetric is not None:
        return given.symmetric
    if recipe.unsigned_relu and _is_never_negative(entry):
        return False
    return recipe.activation_symmetric


def _is_never_negative(entry: Entry) -> bool:
    """Return whether a Relu, or a Clip from zero, gives this tensor."""
    node = entry.value.producer()
    rule = None if node is None else RULES.get(node.op_type)
    if node is None or rule is None or rule.bounds is None:
        return False
    bounds = rule.bounds(node)
    return not isinstance(bounds, Skip) and bounds[0] == 0


def shift_for_bias(scale: Array, bias: Array, qtype: QType, axis: int | None) -> int:
    """Return how often the scale of a bias has to be doubled until nothing of it is clipped.

    >>> from bitwright.numerics.types import INT16
    >>> shift_for_bias(np.array(0.5), np.array([100.0, -100_000.0]), INT16, None)
    3
    """
    size = np.abs(bias.astype(np.float64))
    steps = float(np.max(size / along_axis(scale, axis, size.ndim), initial=0.0))
    return max(int(np.ceil(np.log2(steps / qtype.highest))), 0) if steps else 0


def widened_for_bias(
    scale: Array, source: Any, bias: Array, tile: int, kind: ScaleKind = "float"
) -> Array | None:
    """Return a weight's scale enlarged where its int32 bias would overflow; None if nowhere.

    The enlarged scales are of the same kind as the others of the model.
    """
    if scale.ndim:
        groups = np.abs(bias.astype(np.float64)).reshape(-1, tile, scale.size)
        smallest = smallest_bias_scale(groups.max(axis=(0, 1)), per_channel=True)
    else:
        smallest = smallest_bias_scale(bias)
    product = source * scale
    wider = np.where(product < smallest, ceil_scale(scale * (smallest / product), kind), scale)
    return wider.astype(np.float32).astype(np.float64) if np.any(wider != scale) else None


def _constant_range(
    array: Array, entry: Entry, ranges: RangeMethod, *, symmetric: bool, reduced: bool
) -> tuple[Any, Any]:
    if not entry.block_size:
        return weight_range(array, ranges, entry.qtype, symmetric, axis=entry.axis, reduced=reduced)
    if not isinstance(ranges, MinMax):
        raise RecipeError("weights in blocks take the range method minmax only.")
    assert entry.axis is not None
    edges = np.arange(0, array.shape[entry.axis], entry.block_size)
    return (
        np.minimum.reduceat(array, edges, axis=entry.axis),
        np.maximum.reduceat(array, edges, axis=entry.axis),
    )


def _given_plan(entry: Entry) -> TensorPlan:
    given = entry.override
    assert given is not None and given.scale is not None and given.zero_point is not None
    scale = np.asarray(given.scale, dtype=_float_dtype(entry))
    zero = np.asarray(given.zero_point, dtype=np.int64)
    axis = entry.axis if given.axis is None else given.axis
    return _own_plan(entry, scale, zero, axis if scale.ndim else None, None, "given")


def _spread_plan(entry: Entry, low: Any, high: Any, method: str, kind: ScaleKind) -> TensorPlan:
    """Return the plan of a small float: the largest value of the range is that of the type."""
    most = max(abs(float(low)), abs(float(high)))
    scale = np.asarray(most / entry.qtype.highest, _float_dtype(entry))
    scale = ceil_scale(scale, kind) if scale > 0 else np.ones_like(scale)
    span = (low, high) if entry.role == "activation" else None
    return _own_plan(entry, scale, np.zeros((), np.int64), None, span, method)


def _deviation_plan(entry: Entry, deviation: float) -> TensorPlan:
    scale, zero = float_scale(deviation, entry.qtype, dtype=_float_dtype(entry))
    return _own_plan(entry, scale, zero, None, None, "standard deviation")


def _unscaled_plan(entry: Entry) -> TensorPlan:
    """Return the plan of a tensor whose type holds any value: each one, or block, has exponents."""
    plan = _own_plan(entry, np.ones(()), np.zeros((), np.int64), None, None, "no scale needed")
    if entry.qtype.kind == "block":
        return msgspec.structs.replace(plan, axis=entry.axis)
    return plan


def _own_plan(
    entry: Entry, scale: Array, zero: Array, axis: int | None, span: Any, method: str
) -> TensorPlan:
    return TensorPlan(
        tensor=entry.name,
        role=entry.role,
        qtype=entry.qtype,
        scale=np.asarray(scale, np.float64).tolist(),
        zero_point=np.asarray(zero).tolist(),
        axis=axis if np.ndim(scale) else None,
        block_size=entry.block_size,
        source=entry.source,
        range=None if span is None else (_plain(span[0]), _plain(span[1])),
        method=method,
    )


def _plain(value: Any) -> Any:
    return np.asarray(value, np.float64).tolist()


def _float_dtype(entry: Entry) -> npt.DTypeLike:
    dtype = entry.value.dtype
    return np.float32 if dtype is None else dtype.numpy()


def _method_name(ranges: RangeMethod) -> str:
    return str(type(ranges).__struct_config__.tag)
