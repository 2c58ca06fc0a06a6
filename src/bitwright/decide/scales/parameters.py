"""Scale and zero point of each tensor in a layout, from its override, its range or its values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from bitwright.decide.layout.entries import Entry, Layout
from bitwright.decide.ops import bounds_of
from bitwright.decide.ranges.known import (
    cut_saturated,
    fit_known_range,
    known_range,
    saturation_points,
)
from bitwright.decide.ranges.methods import Range, choose_range, sketch_std, weight_range
from bitwright.decide.ranges.power_of_two import position_grid
from bitwright.errors import ModelError, RecipeError
from bitwright.graph import release_file
from bitwright.graph.constants import constant_of
from bitwright.numerics import PositionGrid, QType
from bitwright.numerics.scales import (
    affine_parameters,
    ceil_scale,
    float_scale,
    restricted_asymmetric_parameters,
    scale_limits,
    share_zero_point,
    without_last_level,
)
from bitwright.plan import TensorPlan
from bitwright.recipe import Distribution, MinMax, MinMSE, Override, RangeMethod, Recipe, ScaleKind
from bitwright.support.array_types import Array

if TYPE_CHECKING:
    from bitwright.observe import TensorSketch

BYTE = 8


class _Choice(NamedTuple):
    """How a tensor is quantized, by the recipe and the tensor's override."""

    ranges: RangeMethod
    symmetric: bool
    reduced: bool = False


class _Range(NamedTuple):
    """What a scale is to cover, and the name of the method that it comes from."""

    low: Any
    high: Any
    method: str


def activation_plan(entry: Entry, sketch: TensorSketch | None, recipe: Recipe) -> TensorPlan:
    """Return the plan of an activation that has parameters of its own."""
    if entry.override is not None and entry.override.scale is not None:
        return _given_plan(entry)
    if not entry.qtype.needs_range:
        return _unscaled_plan(entry)
    choice = _Choice(_activation_ranges(entry, recipe), _is_symmetric(entry, recipe))
    if not entry.qtype.is_integer and isinstance(choice.ranges, Distribution):
        return _deviation_plan(entry, 1.0 if sketch is None else sketch_std(sketch))
    return _covering_plan(entry, _activation_range(entry, sketch, choice, recipe), choice, recipe)


def _activation_range(
    entry: Entry, sketch: TensorSketch | None, choice: _Choice, recipe: Recipe
) -> _Range:
    given = entry.override
    if given is not None and given.rmin is not None and given.rmax is not None:
        return _Range(given.rmin, given.rmax, "given")
    if entry.fixed_range is not None:
        found = _defined_range(entry.fixed_range, entry.qtype, choice, recipe)
    else:
        assert sketch is not None
        known = _known_range(entry, sketch, choice, recipe)
        found = known or _with_room(entry, _observed_range(sketch, entry.qtype, choice), recipe)
        if recipe.emulate.cut_saturated:
            found = _without_saturated(entry, found, choice)
    return _with_given_end(entry, found)


def weight_plan(entry: Entry, recipe: Recipe) -> TensorPlan:
    """Return the plan of a constant, from its own values."""
    if entry.override is not None and entry.override.scale is not None:
        return _given_plan(entry)
    found = _measured_plan(entry, recipe)
    release_file(entry.value.const_value)  # or all weights of the file stay in memory
    return found


def _measured_plan(entry: Entry, recipe: Recipe) -> TensorPlan:
    array = constant_of(entry.value)
    assert array is not None
    if not np.all(np.isfinite(array)):
        raise ModelError(
            f"weight {entry.name!r} holds NaN or infinite values; fix the model or exclude the "
            "nodes that read it."
        )
    if not entry.qtype.needs_range:
        return _unscaled_plan(entry)
    if not entry.qtype.is_integer and isinstance(recipe.weight_ranges, Distribution):
        others = tuple(i for i in range(array.ndim) if entry.axis is None or i != entry.axis)
        return _deviation_plan(entry, np.std(array, axis=others, dtype=np.float64))
    choice = _weight_choice(entry, recipe)
    found = _with_given_end(entry, _constant_range(array, entry, choice))
    return _covering_plan(entry, found, choice, recipe)


def _weight_choice(entry: Entry, recipe: Recipe) -> _Choice:
    given = entry.override or Override()
    symmetric = given.symmetric
    if symmetric is None and entry.operand:
        symmetric = recipe.activation_symmetric
    elif symmetric is None:
        symmetric = recipe.weight_symmetric
    if symmetric is None:
        symmetric = entry.qtype.signed
    # Kernels with one zero point a channel are rare: channels are symmetric, whatever the type,
    # unless an override says otherwise.
    if entry.axis is not None and not entry.block_size:
        symmetric = symmetric or given.symmetric is not False
    reduced = recipe.reduce_range if given.reduce_range is None else given.reduce_range
    return _Choice(given.ranges or recipe.weight_ranges, symmetric, reduced)


def _with_given_end(entry: Entry, found: _Range) -> _Range:
    """Return a range with the ends that an override gives in place of those that were found."""
    given = entry.override or Override()
    if given.rmin is None and given.rmax is None:
        return found
    low = found.low if given.rmin is None else given.rmin
    high = found.high if given.rmax is None else given.rmax
    return _Range(low, high, "given")


def _known_range(
    entry: Entry, sketch: TensorSketch, choice: _Choice, recipe: Recipe
) -> _Range | None:
    """Return the range that the maths fixes, for tensors of which nobody asked for another."""
    known = known_range(entry.value) if recipe.emulate.known_ranges else None
    asked = entry.override is not None and entry.override.ranges is not None
    if known is None or asked or choice.ranges.symmetric or sketch.channel_low is not None:
        return None
    ends = fit_known_range(known, sketch.low, sketch.high)
    return _defined_range(ends, entry.qtype, choice, recipe)


def _defined_range(
    ends: tuple[float, float], qtype: QType, choice: _Choice, recipe: Recipe
) -> _Range:
    if recipe.scales == "power-of-two":
        ends = without_last_level(*ends, qtype, symmetric=choice.symmetric)
    return _Range(*ends, "by definition")


def _observed_range(sketch: TensorSketch, qtype: QType, choice: _Choice) -> _Range:
    ranges = choice.ranges
    if isinstance(ranges, MinMax) and ranges.per_channel and sketch.channel_low is None:
        ranges = msgspec.structs.replace(ranges, per_channel=False)
    low, high = remembered_range(sketch, ranges, qtype, symmetric=choice.symmetric)
    return _Range(low, high, _method_name(ranges))


def remembered_range(
    sketch: TensorSketch, ranges: RangeMethod, qtype: QType, *, symmetric: bool
) -> Range:
    """Return the range that a method chooses, which the sketch keeps.

    Recipes are tried by the dozen on the same sketches, and some methods search for long.
    """
    asked = ranges, qtype, symmetric
    if asked not in sketch.remembered:
        sketch.remembered[asked] = choose_range(sketch, ranges, qtype, symmetric=symmetric)
    found: Range = sketch.remembered[asked]
    return found


def _with_room(entry: Entry, found: _Range, recipe: Recipe) -> _Range:
    """Return twice the extremes of a wide integer: a bit less leaves its levels fine enough.

    Beyond the extremes of few samples, clipping costs far more: files with 33 to 89 dB on the
    samples they were calibrated with had 1 to 13 dB on another.
    """
    is_wide = entry.qtype.is_integer and entry.qtype.bits > BYTE
    asked = entry.override is not None and entry.override.ranges is not None
    if asked or not (is_wide and recipe.emulate.known_ranges and recipe.ranges == MinMax()):
        return found
    node = entry.value.producer()
    lowest, highest = (None if node is None else bounds_of(node)) or (-np.inf, np.inf)
    low = np.maximum(2 * found.low, min(lowest, 0.0))  # what clips may be left out for the range
    high = np.minimum(2 * found.high, max(highest, 0.0))
    return _Range(low, high, f"{found.method}, twice as wide")


def _without_saturated(entry: Entry, found: _Range, choice: _Choice) -> _Range:
    """Return a range without what no reader tells apart; only 8-bit levels are so coarse."""
    qtype = entry.qtype
    if not qtype.is_integer or qtype.bits > BYTE or choice.symmetric or np.ndim(found.low):
        return found
    points, steps = saturation_points(entry.value), 2**qtype.bits - 1
    low, high = cut_saturated(found.low, found.high, points, steps)
    if (low, high) == (found.low, found.high):
        return found
    return _Range(low, high, f"{found.method}, cut where its readers saturate")


def _covering_plan(entry: Entry, found: _Range, choice: _Choice, recipe: Recipe) -> TensorPlan:
    """Return the plan of a tensor whose scale covers a range."""
    is_activation = entry.role == "activation"
    dtype = _float_dtype(entry)
    if not entry.qtype.is_integer:
        scale, zero = _float8_parameters(found, entry.qtype, recipe.scales, dtype)
    elif is_activation and recipe.emulate.restricted_asymmetric and not choice.symmetric:
        scale, zero = restricted_asymmetric_parameters(
            found.low, found.high, dtype, min_real_range=recipe.min_real_range
        )
    else:
        scale, zero = affine_parameters(
            found.low,
            found.high,
            entry.qtype,
            symmetric=choice.symmetric,
            reduced=choice.reduced,
            min_real_range=recipe.min_real_range,
            kind=recipe.scales,
            dtype=dtype,
        )
    # A weight's range is a fact of the model; only an activation's is worth keeping in the plan.
    return _own_plan(
        entry,
        scale,
        zero,
        axis=1 if is_activation else entry.axis,
        span=found[:2] if is_activation else None,
        method=found.method,
    )


def _float8_parameters(
    found: _Range, qtype: QType, kind: ScaleKind, dtype: npt.DTypeLike
) -> tuple[Array, Array]:
    """Return the scale with which the largest value of the range is that of the type."""
    most = np.maximum(np.abs(found.low), np.abs(found.high))
    scale = np.asarray(most / qtype.highest, dtype)
    # A channel of zeros, or of numbers next to them, needs none.
    tiny, _ = scale_limits(scale.dtype)
    scale = ceil_scale(np.where(scale < tiny, np.ones_like(scale), scale), kind)
    return scale, np.zeros(scale.shape, np.int64)


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


def grids_per_batch(layout: Layout, recipe: Recipe) -> dict[str, tuple[PositionGrid, ...]]:
    """Return the tensors whose power-of-two scale is the most common of all batches, and grids."""
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
    given = (entry.override or Override()).ranges
    method = given or recipe.ranges
    if given is None and entry.leaves_model and entry.qtype.is_integer and recipe.scales == "float":
        per_channel = isinstance(method, MinMax) and method.per_channel
        method = MinMax(symmetric=method.symmetric, per_channel=per_channel)
    if method.symmetric and recipe.emulate.unsigned_relu and _is_never_negative(entry):
        return msgspec.structs.replace(method, symmetric=False)
    return method


def _is_symmetric(entry: Entry, recipe: Recipe) -> bool:
    """Return whether zero lies in the middle of an activation's type."""
    given = (entry.override or Override()).symmetric
    if given is not None:
        return given
    if recipe.emulate.unsigned_relu and _is_never_negative(entry):
        return False
    return recipe.activation_symmetric


def _is_never_negative(entry: Entry) -> bool:
    """Return whether a Relu, or a Clip from zero, gives this tensor."""
    node = entry.value.producer()
    bounds = None if node is None else bounds_of(node)
    return bounds is not None and bounds[0] == 0


def _constant_range(array: Array, entry: Entry, choice: _Choice) -> _Range:
    ranges, axis = choice.ranges, entry.axis
    if not entry.block_size:
        low, high = weight_range(
            array, ranges, entry.qtype, choice.symmetric, axis=axis, reduced=choice.reduced
        )
        if entry.shared_zero_point and axis is not None and not choice.symmetric:
            lowest, highest = entry.qtype.bounds(symmetric=False, reduced=choice.reduced)
            low, high = share_zero_point(low, high, highest - lowest)
        return _Range(low, high, _method_name(ranges))
    if not isinstance(ranges, MinMax):
        raise RecipeError("weights in blocks take the range method minmax only.")
    assert axis is not None
    edges = np.arange(0, array.shape[axis], entry.block_size)
    low, high = (end.reduceat(array, edges, axis=axis) for end in (np.minimum, np.maximum))
    return _Range(low, high, _method_name(ranges))


def _given_plan(entry: Entry) -> TensorPlan:
    given = entry.override
    assert given is not None and given.scale is not None and given.zero_point is not None
    scale = np.asarray(given.scale, dtype=_float_dtype(entry))
    zero = np.asarray(given.zero_point, dtype=np.int64)
    axis = entry.axis if given.axis is None else given.axis
    return _own_plan(entry, scale, zero, axis=axis, method="given")


def _deviation_plan(entry: Entry, deviation: npt.ArrayLike) -> TensorPlan:
    scale, zero = float_scale(deviation, entry.qtype, dtype=_float_dtype(entry))
    return _own_plan(entry, scale, zero, axis=entry.axis, method="standard deviation")


def _unscaled_plan(entry: Entry) -> TensorPlan:
    """Return the plan of a tensor whose type holds any value: each one, or block, has exponents."""
    plan = _own_plan(entry, np.ones(()), np.zeros((), np.int64), method="no scale needed")
    if entry.qtype.shares_exponent:
        return msgspec.structs.replace(plan, axis=entry.axis)
    return plan


def _own_plan(
    entry: Entry,
    scale: Array,
    zero: Array,
    *,
    method: str,
    axis: int | None = None,
    span: tuple[Any, Any] | None = None,
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
