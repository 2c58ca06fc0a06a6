"""Rotate a model: fold the gains of norms, then multiply the constants with orthogonal matrices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from bitwright.decide.ops import MATRIX_PRODUCTS
from bitwright.equalize.constants import Matrix, change_lazily, replace_weight
from bitwright.equalize.rotation.operands import (
    Refused,
    Span,
    constant_behind,
    describe,
    head_of_attention,
    values_of_attention,
    width_of,
)
from bitwright.equalize.rotation.rules import trace
from bitwright.equalize.rotation.tracing import Fold, Tracing
from bitwright.equalize.shifting import Shift
from bitwright.graph import NameScope, float_constant_of, input_at, maker_of, replace_constant
from bitwright.numerics.orthogonal import Orthogonal, OrthogonalKind, make_orthogonal
from bitwright.plan import Rotation
from bitwright.support import Array, counted, show_bytes


@dataclass(frozen=True, slots=True)
class Rotated:
    """What was rotated, and what there is to say about it."""

    rotation: Rotation | None
    """None: nothing was."""
    notes: tuple[str, ...]
    untied: bool = False
    """Whether an embedding got a table of its own, which a product had read, too."""


def rotate_model(model: ir.Model, seed: int = 0, *, caches: bool = True) -> Rotated:
    """Rotate the residual stream and the values of attention, in place; the function stays.

    Shapes must be inferred. Without `caches`, values that the model keeps for its next run stay as
    they are. Where something is in the way of a rotation, that one is left out, and
    a note says what it is.
    """
    names = NameScope(model)
    streams = _rotate_streams(model, seed, names)
    attentions = _rotate_values(model, seed, names, caches=caches)
    done = Rotation(seed=seed, streams=streams.kinds, attentions=attentions.number)
    return Rotated(
        done if streams.kinds or attentions.number else None,
        (*streams.notes(), *attentions.notes()),
        bool(streams.copied),
    )


# R1 -------------------------------------------------------------------------------------------


class _Streams(NamedTuple):
    """The residual streams that were rotated."""

    kinds: tuple[OrthogonalKind, ...]
    widths: tuple[int, ...]
    copied: int
    """Bytes of tables that a product had shared."""
    why_not: str
    """Why the stream of the largest table is not rotated, if it is not."""

    def notes(self) -> list[str]:
        if not self.kinds:
            return [f"the residual stream is not rotated: {self.why_not}"]
        widths = ", ".join(f"{w} ({k})" for w, k in zip(self.widths, self.kinds, strict=True))
        notes = [f"rotated the residual stream, width {widths}"]
        if self.copied:
            notes.append(
                "the embedding and the head no longer share one table, as each is rotated in its "
                f"own way: {show_bytes(self.copied)} more before quantizing"
            )
        return notes


def _rotate_streams(model: ir.Model, seed: int, names: NameScope) -> _Streams:
    """Rotate each residual stream that can be rotated."""
    rotated: set[ir.Value] = set()
    done: list[Orthogonal] = []
    reasons: dict[int, str] = {}
    copied = 0
    for embedding in _embeddings(model):
        result, table = embedding.outputs[0], constant_behind(embedding.inputs[0])
        if result in rotated or table is None:
            continue
        width = int(table.shape.numpy()[1])
        try:
            tracing = _trace_stream(result, width)
            shared = _shared_tables(tracing)
            if tracing.folds:
                _fold_gains(tracing.folds, names)
                tracing = _trace_stream(result, width)
        except Refused as refused:
            reasons.setdefault(table.size, str(refused))
            continue
        rotation = make_orthogonal(width, seed + len(done), keep_mean=tracing.keep_mean)
        _rotate_constants(tracing, rotation, names)
        rotated |= set(tracing.spans)
        copied += shared
        done.append(rotation)
    return _Streams(
        tuple(rotation.kind for rotation in done),
        tuple(rotation.size for rotation in done),
        copied,
        reasons.get(max(reasons, default=0), "no constant table of embeddings starts it"),
    )


def _embeddings(model: ir.Model) -> Iterator[ir.Node]:
    """Yield the lookups in constant tables of floats."""
    for node in list(model.graph):
        if node.op_type == "Gather" and not node.domain and not node.attributes.get_int("axis", 0):
            table = constant_behind(node.inputs[0])
            if table is not None and len(table.shape) == 2 and table.shape.numpy()[1] > 1:
                yield node


def _trace_stream(value: ir.Value, width: int) -> Tracing:
    tracing = trace(value, width)
    if not tracing.reads or not tracing.writes:
        raise Refused("no products with constants read it and add to it")
    return tracing


def _shared_tables(tracing: Tracing) -> int:
    """Return the bytes of the tables that products read, too."""
    tables = {_stored(node.inputs[0]) for node, _ in tracing.edits if node.op_type == "Gather"}
    places = [(node, at) for node, at in tracing.edits if node.op_type in MATRIX_PRODUCTS]
    weights = {_stored(node.inputs[1]) for node, at in places if at == 1}
    shared = [value.const_value for value in tables & weights if value is not None]
    return sum(tensor.nbytes for tensor in shared if tensor is not None)


def _stored(value: ir.Value | None) -> ir.Value | None:
    """Return the initializer that is read, perhaps through a Transpose."""
    maker = maker_of(value)
    return value if maker is None else maker.inputs[0]


def _fold_gains(folds: Sequence[Fold], names: NameScope) -> None:
    """Let products take over the gains and offsets of the norms before them."""
    shifts = [shift for fold in folds for shift in _shifts(fold)]
    for shift in shifts:
        shift.apply(names)
    for fold in folds:
        gains = float_constant_of(input_at(fold.node, fold.gains))
        assert gains is not None
        factors = gains.astype(np.float64).ravel()
        for node in fold.products:
            tensor = constant_behind(node.inputs[1])
            assert tensor is not None
            matrix = Matrix(tensor, bool(node.attributes.get_int("transB", 0)))
            replace_weight(node, 1, matrix.scaled(factors), "rotated", names)
        replace_constant(fold.node, fold.gains, np.ones_like(gains), "gains", names)
        offsets = _offsets(fold)
        if offsets is not None and fold.offsets is not None:
            replace_constant(fold.node, fold.offsets, np.zeros_like(offsets), "offsets", names)


def _shifts(fold: Fold) -> Iterator[Shift]:
    """Yield the bias edits by which the products behind a norm absorb its offsets."""
    offsets = _offsets(fold)
    if offsets is None or not offsets.any():
        return
    for node in fold.products:
        shift = Shift()
        if not shift.read_by(node, offsets.astype(np.float64).ravel()):
            raise Refused(f"{describe(node)} takes no bias")
        yield shift


def _offsets(fold: Fold) -> Array | None:
    return None if fold.offsets is None else float_constant_of(input_at(fold.node, fold.offsets))


# R2 -------------------------------------------------------------------------------------------


class _Attentions(NamedTuple):
    """The attentions whose values were rotated."""

    number: int
    cached: bool
    why_not: str
    """Why the last one that was not rotated is not."""
    others: int = 0

    def notes(self) -> list[str]:
        if not self.number:
            return [f"the values of attention are not rotated: {self.why_not}"]
        notes = [f"rotated the values of {counted(self.number, 'attention')}"]
        if self.others:
            notes[0] += f", not of {self.others} others: {self.why_not}"
        if self.cached:
            notes.append(
                "cached values are rotated, too: this model does not go on from a cache that "
                "another one filled"
            )
        return notes


def _rotate_values(model: ir.Model, seed: int, names: NameScope, *, caches: bool) -> _Attentions:
    """Rotate the values of each attention between the products that make and that read them."""
    rotated: set[ir.Value] = set()
    number, others, cached = 0, 0, False
    why_not = "no attention between products with constants was recognized"
    for node in list(model.graph):
        value, span, head = _values_read(node)
        if value is None or value in rotated:
            continue
        try:
            tracing = trace(value, head, span, caches=caches)
            if not tracing.reads or not tracing.writes:
                raise Refused("no products with constants read and make them")
            if tracing.folds:
                raise Refused(f"{describe(tracing.folds[0].node)} scales them by channel")
        except Refused as refused:
            if head_of_attention(node) is not None:
                why_not, others = str(refused), others + 1
            continue
        rotation = make_orthogonal(head, seed, keep_mean=tracing.keep_mean)
        _rotate_constants(tracing, rotation, names)
        rotated |= set(tracing.spans)
        number, cached = number + 1, cached or bool(tracing.caches)
    return _Attentions(number, cached, why_not, others)


def _values_read(node: ir.Node) -> tuple[ir.Value | None, Span | None, int]:
    """Return the values that a node may be mixing as attention does, their part, and its heads."""
    head, given = head_of_attention(node), values_of_attention(node)
    if head is not None and given is not None:
        return *given, head
    if node.op_type != "MatMul" or node.domain or constant_behind(node.inputs[1]) is not None:
        return None, None, 0
    width = width_of(node.inputs[1]) or 0
    return node.inputs[1] if width > 1 else None, None, width


# Constants ------------------------------------------------------------------------------------


def _rotate_constants(tracing: Tracing, rotation: Orthogonal, names: NameScope) -> None:
    for (node, index), steps in tracing.edits.items():
        tensor = constant_behind(node.inputs[index])
        assert tensor is not None
        change = partial(_multiplied, rotation, tuple(steps))
        replace_weight(node, index, change_lazily(tensor, change), "rotated", names)


def _multiplied(rotation: Orthogonal, steps: Sequence[tuple[int, Span]], array: Array) -> Array:
    """Return a constant with the rotation along these axes, computed in float64."""
    if array.ndim == 2 and len(steps) == 1:
        axis, span = steps[0]
        rows = np.moveaxis(array, axis, -1)
        result = np.empty_like(rows)
        # A part at a time: in float64 a table of embeddings takes several times its size.
        most = max(1, _ELEMENTS_AT_ONCE // rows.shape[1])
        for start in range(0, len(rows), most):
            part = slice(start, start + most)
            result[part] = rotation.multiply(rows[part], span=slice(*span)).astype(array.dtype)
        return np.moveaxis(result, -1, axis)
    result = array.astype(np.float64)
    for axis, span in steps:
        result = rotation.multiply(result, axis, slice(*span))
    return result.astype(array.dtype)


_ELEMENTS_AT_ONCE = 1 << 22
