"""SmoothQuant: move outliers from activations, which have one scale, into weights.

G. Xiao et al., "SmoothQuant" (2022, arXiv:2211.10438), equation 4: the channels of what a matrix
product reads are divided by s_j = max|X_j|^alpha / max|W_j|^(1 - alpha), and the rows of its
weight are multiplied by them, so that the product stays the same. The division goes into what
computes X (a norm's scale, the weight of a product) where that is possible, else into a Mul.
Before that, channels that do not lie around zero may be shifted: see `shifting.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import onnx_ir as ir

from bitwright.decide.ops import MATRIX_PRODUCTS, op_types
from bitwright.equalize.absorption import Channels, find_absorption, find_absorption_points
from bitwright.equalize.constants import (
    Edit,
    change_lazily,
    constant_at,
    matrix_of,
    read_inline,
    replace_weight,
)
from bitwright.equalize.shifting import Shift, find_shift
from bitwright.errors import PlanError, did_you_mean
from bitwright.graph import NameScope, float_constant_of, input_at, is_private
from bitwright.graph.editing import add_initializer, graph_of, insert_after, like
from bitwright.numerics.scales import fits
from bitwright.plan import Smoothing
from bitwright.recipe import Recipe, SmoothQuant
from bitwright.support.array_types import F64, Array

# As in the paper's own code: a channel whose weights vanish must not blow the factor up.
_MIN_FACTOR = 1e-5
_MAX_FACTOR = 1e5

_NORMS = op_types(lambda op: op.normalizes == "last axes")
_HOMOGENEOUS = op_types(lambda op: op.homogeneous)
_AFFINE = op_types(lambda op: op.affine)


def find_smoothing_points(model: ir.Model, nodes: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Return each tensor that can be smoothed, with those of the named nodes that multiply it."""
    points: dict[str, list[str]] = {}
    for node in model.graph:
        name = node.name or ""
        source = node.inputs[0] if node.inputs else None
        if name in nodes and matrix_of(node) is not None and source is not None:
            points.setdefault(source.name or "", []).append(name)
    return {tensor: tuple(readers) for tensor, readers in points.items()}


def smoothing_for(
    model: ir.Model,
    points: Mapping[str, Sequence[str]],
    sketches: Mapping[str, Channels],
    recipe: Recipe,
) -> dict[str, Smoothing]:
    """Return the factors for each point, from the channels' extremes; nothing is changed.

    Nodes that read one tensor share its factors, chosen for the largest of their weights.
    """
    smooth = recipe.smooth or SmoothQuant()
    nodes = {node.name: node for node in model.graph}
    found = {}
    for tensor, readers in points.items():
        sketch = sketches.get(tensor)
        if sketch is None or sketch.channel_low is None or sketch.channel_high is None:
            continue
        low, high = (end.astype(np.float64) for end in (sketch.channel_low, sketch.channel_high))
        mean = sketch.channel_mean
        seen = _Seen(low, high, np.clip(0.0, low, high) if mean is None else mean)
        multiplying = [nodes[name] for name in readers]
        arrays = [matrix.rows() for node in multiplying if (matrix := matrix_of(node)) is not None]
        if any(len(rows) != seen.low.size for rows in arrays):
            continue
        source, shifts = multiplying[0].inputs[0], seen.centres()
        assert source is not None
        if not smooth.shift or find_shift(source, multiplying, shifts) is None:
            shifts = np.zeros_like(shifts)
        choice = _choose(seen, shifts, arrays, smooth.alpha, recipe)
        if choice is None:
            continue
        factors = np.array(choice.factors or 1.0).reshape(-1, 1)
        if all(fits(rows * factors, rows.dtype) for rows in arrays):
            found[tensor] = msgspec.structs.replace(choice, nodes=tuple(readers))
    return found


def apply_smoothing(
    model: ir.Model, smoothing: Mapping[str, Smoothing], *, folding: bool
) -> list[str]:
    """Shift and divide the tensors, and let the products that read them make up for it, in place.

    Return the divisions that were added: without `folding` each is a Mul of its own.
    """
    names = NameScope(model)
    nodes = {node.name or "": node for node in model.graph}
    absorbs = any(planned.absorbed for planned in smoothing.values())
    points = find_absorption_points(model) if absorbs else {}
    added = []
    for tensor, planned in smoothing.items():
        readers = [_find(name, nodes) for name in planned.nodes]
        if planned.absorbed:
            point, absorbed = points.get(tensor), np.array(planned.absorbed, np.float64)
            known = point is not None and planned.nodes == (point.reader,)
            _apply(find_absorption(point, absorbed) if known and point else None, tensor, names)
            continue
        source = readers[0].inputs[0] if readers else None
        if source is None or any(node.inputs[0] is not source for node in readers):
            raise PlanError(f"the smoothing of {tensor!r} names nodes that do not all read it.")
        if planned.shifts:
            shifts = np.array(planned.shifts, np.float64)
            _apply(find_shift(source, readers, shifts), tensor, names)
        if planned.factors:
            factors = np.array(planned.factors, np.float64)
            added += _divide(tensor, source, readers, factors, names, folding=folding)
    return added


def _apply(shift: Shift | None, tensor: str, names: NameScope) -> None:
    if shift is None:
        raise PlanError(f"the channels of {tensor!r} cannot be shifted as the plan says.")
    shift.apply(names)


def _divide(
    tensor: str,
    source: ir.Value,
    readers: Sequence[ir.Node],
    factors: F64,
    names: NameScope,
    *,
    folding: bool,
) -> list[str]:
    """Divide a tensor and multiply the weights of its readers; return the node that was added."""
    for node in readers:
        matrix = matrix_of(node)
        if matrix is None or matrix.channels != factors.size:
            raise PlanError(
                f"node {node.name!r} has no constant weight with {factors.size} rows, as the "
                f"smoothing of {tensor!r} needs."
            )
        replace_weight(node, 1, matrix.scaled(factors), "weight", names)
    foldable = folding and _read_only_by(source, readers)
    edits = _division_before(source, factors) if foldable else None
    for edit in edits or ():
        replace_weight(edit.node, edit.at, edit.array, "smoothed", names)
    return [] if edits is not None else [_insert_division(source, readers, factors, names)]


def _factors(inputs: F64, weights: F64, alpha: float) -> F64:
    """Equation 4 of the paper; a channel that is always zero is left as it is."""
    factors = inputs**alpha / np.maximum(weights, _MIN_FACTOR) ** (1 - alpha)
    factors = np.where(np.isfinite(inputs) & (inputs > 0), factors, 1.0)
    # As float32, in which the smoothed model will hold them: the plan then gives the same bytes.
    return np.clip(factors, _MIN_FACTOR, _MAX_FACTOR).astype(np.float32).astype(np.float64)


_ALPHAS = tuple(np.linspace(0.2, 0.95, 16).tolist())
_DEVIATIONS_PER_HALF_RANGE = 3.0
"""Half the range of a channel over its standard deviation, as it is for most distributions."""


class _Seen(NamedTuple):
    """The least and the largest value and the mean of each channel; extremes are infinite where no
    value was seen."""

    low: F64
    high: F64
    mean: F64

    def centres(self) -> F64:
        """Return what lies in the middle of each channel, as float32 has it."""
        with np.errstate(invalid="ignore"):
            middle = (self.low + self.high) / 2
        return np.where(np.isfinite(middle), middle, 0.0).astype(np.float32).astype(np.float64)

    def magnitudes(self, shifts: F64) -> F64:
        return np.maximum(shifts - self.low, self.high - shifts)

    def step(self, shifts: F64, factors: F64, recipe: Recipe) -> float:
        """Return the step between the levels of the shifted and divided tensor."""
        low, high = ((end - shifts) / factors for end in (self.low, self.high))
        ends = -float(low.min(initial=0.0)), float(high.max(initial=0.0))
        span = 2 * max(ends) if recipe.activation_symmetric else sum(ends)
        return span / float(2**recipe.activation.bits)

    def power(self, shifts: F64, factors: F64) -> float:
        """Return what the squared channels add up to."""
        deviations = (self.high - self.low) / 2 / _DEVIATIONS_PER_HALF_RANGE
        return float(np.sum(((self.mean - shifts) ** 2 + deviations**2) / factors**2))


def _choose(
    seen: _Seen,
    shifts: F64,
    arrays: Sequence[Array],
    alpha: float | Literal["auto"],
    recipe: Recipe,
) -> Smoothing | None:
    """Return factors and shifts for channels that may be shifted by so much; None: as they are."""
    weights = np.maximum.reduce(
        [np.abs(np.float64(rows)).max(axis=1, initial=0) for rows in arrays]
    )
    if alpha != "auto":
        factors = _factors(seen.magnitudes(shifts), weights, alpha)
        return _smoothing(factors, shifts)
    best, chosen = np.inf, None
    for moved in (np.zeros_like(shifts), shifts)[: 1 + bool(shifts.any())]:
        inputs = seen.magnitudes(moved)
        plain = np.ones_like(inputs)
        for factors in (plain, *(_factors(inputs, weights, one) for one in _ALPHAS)):
            scaled = [factors[:, None] * rows for rows in arrays]
            step = seen.step(moved, factors, recipe)
            noise = _rounding_noise(step, seen.power(moved, factors), scaled, recipe)
            if noise < best:
                best, chosen = noise, _smoothing(factors, moved)
    return chosen if chosen is not None and (chosen.factors or chosen.shifts) else None


def _smoothing(factors: F64, shifts: F64) -> Smoothing:
    """Return the smoothing of a tensor whose readers are named later."""
    return Smoothing(
        nodes=(),
        factors=tuple(factors.tolist()) if (factors != 1).any() else (),
        shifts=tuple(shifts.tolist()) if shifts.any() else (),
    )


def _rounding_noise(step: float, power: float, arrays: Sequence[Array], recipe: Recipe) -> float:
    """Return the expected noise of products of inputs with this step and power, times 12.

    For inputs with a step d and weights with a step e for each column, rounding adds d^2 / 12 of
    noise times the squared weights, and e^2 / 12 times the squared inputs.
    """
    noise = 0.0
    for array in arrays:
        rows = array.astype(np.float64)
        largest = np.abs(rows).max(axis=0) if recipe.per_channel else np.abs(rows).max()
        steps = largest / 2 ** (recipe.weight.bits - 1) * np.ones(rows.shape[1])
        noise += float(step**2 * np.sum(rows**2) + power * np.sum(steps**2))
    return noise


def _find(name: str, nodes: Mapping[str, ir.Node]) -> ir.Node:
    if name not in nodes:
        raise PlanError(f"the smoothing names node {name!r}.{did_you_mean(name, nodes)}")
    return nodes[name]


# Divisions ------------------------------------------------------------------------------------


def _read_only_by(value: ir.Value, readers: Sequence[ir.Node]) -> bool:
    if value.is_graph_output():
        return False
    return all(use.idx == 0 and use.node in readers for use in value.uses())


def _division_before(value: ir.Value, factors: F64) -> list[Edit] | None:
    """Return the constants whose change makes a tensor come out divided, None if there are none.

    The division concerns the last axis, and whatever is changed must write for this tensor only.
    """
    node = value.producer()
    if node is None or node.domain or value is not node.outputs[0]:
        return None
    if node.op_type in _NORMS:
        axis = node.attributes.get_int("axis", -1)
        if axis != -1 and (value.shape is None or axis != len(value.shape) - 1):
            return None  # it normalizes over more than the channels
    if node.op_type in _NORMS | MATRIX_PRODUCTS:
        return _divided_constants(node, (1, 2), factors)
    if node.op_type in _HOMOGENEOUS:
        return _pass_on(node.inputs[0], factors)
    return _arithmetic_edits(node, factors) if node.op_type in _AFFINE else None


def _pass_on(value: ir.Value | None, factors: F64) -> list[Edit] | None:
    if value is None or not is_private(value):
        return None
    return _division_before(value, factors)


def _arithmetic_edits(node: ir.Node, factors: F64) -> list[Edit] | None:
    adds = node.op_type in ("Add", "Sub")
    for index in (1, 0):
        array = float_constant_of(node.inputs[index])
        if array is None:
            continue
        if node.op_type == "Div":
            product = array * factors
            if index == 0 or not fits(product, array.dtype):
                return None
            return [Edit(node, 1, product.astype(array.dtype))]
        own = _divided_constants(node, (index,), factors)
        if own is None or not adds:
            return own
        rest = _pass_on(node.inputs[1 - index], factors)
        return None if rest is None else [*own, *rest]
    if adds:
        return None
    # A product of two tensors, such as a gate and what passes it: one of them takes the division.
    for value in node.inputs[: 1 if node.op_type == "Div" else 2]:
        if (edits := _pass_on(value, factors)) is not None:
            return edits
    return None


def _divided_constants(node: ir.Node, indexes: tuple[int, ...], factors: F64) -> list[Edit] | None:
    """Divide these inputs along their last axis, if all that are there are constant."""
    edits = []
    for index in indexes:
        if input_at(node, index) is None:
            continue
        tensor = constant_at(node, index)
        if tensor is None:
            return None
        transposed = node.op_type == "Gemm" and bool(node.attributes.get_int("transB", 0))
        over = factors[:, None] if transposed and index == 1 else factors
        array = read_inline(tensor)
        if not fits(array / over, array.dtype):
            return None
        edits.append(Edit(node, index, change_lazily(tensor, partial(_divided, over))))
    return edits or None


def _divided(over: F64, array: Array) -> Array:
    return (array / over).astype(array.dtype)


def _insert_division(
    source: ir.Value, readers: Sequence[ir.Node], factors: F64, names: NameScope
) -> str:
    graph = graph_of(readers[0].outputs[0])
    label = source.name or "input"
    dtype = np.float32 if source.dtype is None else source.dtype.numpy()
    inverse = (1 / factors).astype(dtype)
    constant = add_initializer(graph, names, f"{label}_smooth_scale", inverse)
    output = like(source, names.fresh(f"{label}_smoothed"))
    name = names.fresh(f"{label}_smooth")
    node = ir.node("Mul", [source, constant], outputs=[output], name=name)
    insert_after(graph, node, source.producer())
    for reader in readers:
        reader.replace_input_with(0, output)
    return name
