"""Rules of rotation, one per operator: which tensors rotate together, which constants undo it.

A tensor is rotated when the vectors along its last axis, or the blocks that they are made of, are
multiplied with one orthogonal matrix R. Operators that work along other axes, add, or multiply with
a number for each vector pass that on; so does a norm, as R keeps lengths. A product with a constant
that reads or makes the tensor has R multiplied into its constant. What does neither is in the way.
"""

from __future__ import annotations

import onnx_ir as ir

from bitwright.decide.ops.matching import known_axes
from bitwright.equalize.rotation.movement import MOVES, cut_by_split, join, keeps_last_axis, pass_on
from bitwright.equalize.rotation.operands import (
    ATTENTIONS,
    Refused,
    Span,
    constant_behind,
    describe,
    find_values,
    head_of_attention,
    is_product,
    is_uniform,
    matrix_axes,
    width_of,
)
from bitwright.equalize.rotation.tracing import Fold, Rule, Slot, Tracing, expect
from bitwright.graph import constant_of, constant_tensor, graph_of, input_at


def normalize(tracing: Tracing, node: ir.Node, slot: Slot, span: Span) -> None:
    """A norm over the last axis."""
    expect(node, slot, inputs=(0,))
    source = node.inputs[0]
    axis = node.attributes.get_int("axis", -1)
    if axis != -1 and (source is None or source.shape is None or axis != len(source.shape) - 1):
        raise Refused(f"{describe(node)} normalizes over several axes")
    centres = node.op_type == "LayerNormalization"
    _normalize(tracing, node, span, gains=1, centres=centres)
    tracing.link_input(node, 0, span)


def normalize_sum(tracing: Tracing, node: ir.Node, slot: Slot, span: Span) -> None:
    """The runtime's norm of a sum, which it also hands out."""
    centres = node.op_type == "SkipLayerNormalization"
    bias = 4 if centres else 3
    expect(node, slot, inputs=(0, 1), outputs=(0, 3))
    _normalize(tracing, node, span, gains=2, centres=centres)
    for index in (0, 1):
        tracing.link_input(node, index, span)
    if input_at(node, bias) is not None:
        tracing.link_input(node, bias, span)
    if len(node.outputs) > 3:
        tracing.visit(node.outputs[3], span)


def _normalize(tracing: Tracing, node: ir.Node, span: Span, *, gains: int, centres: bool) -> None:
    """A norm with its gains, and its offsets behind them: alike, or taken over by products."""
    if span != tracing.whole(node.outputs[0]):
        raise Refused(f"{describe(node)} normalizes a tensor of which a part is rotated")
    tracing.keep_mean |= centres
    offsets = gains + 1 if centres and input_at(node, gains + 1) is not None else None
    alike = [is_uniform(input_at(node, i)) for i in (gains, offsets) if i is not None]
    if not all(alike):
        fold_gains(tracing, node, gains, offsets, span)
    tracing.visit(node.outputs[0], span)


def fold_gains(
    tracing: Tracing, node: ir.Node, gains: int, offsets: int | None, span: Span
) -> None:
    """Fold the gains of a node into the products behind it."""
    result = node.outputs[0]
    if span != tracing.whole(result):
        raise Refused(f"{describe(node)} scales a tensor of which a part is rotated")
    for index in (gains, offsets):
        given = None if index is None else constant_tensor(input_at(node, index))
        if index is not None and (given is None or given.size != span.stop):
            raise Refused(f"{describe(node)} has gains that are no constant of its width")
    if all(fold.node is not node for fold in tracing.folds):
        products = tuple(_products_behind(result, node))
        tracing.folds.append(Fold(node, gains, offsets, products))


def _products_behind(value: ir.Value, norm: ir.Node) -> list[ir.Node]:
    """Return the products that read a tensor, which nothing else may do."""
    if value.is_graph_output():
        raise Refused(f"the gains of {describe(norm)} reach the output {value.name!r}")
    found = []
    for node, index in value.uses():
        if (node.domain, node.op_type) in MOVES and index == 0 and keeps_last_axis(node):
            found += _products_behind(node.outputs[0], norm)
        elif is_product(node) and index == 0 and matrix_axes(node) is not None:
            found.append(node)
        elif node.op_type not in SHAPE_READERS:
            raise Refused(
                f"{describe(node)} reads what {describe(norm)} scales by channel, and has no "
                "weights to take that over"
            )
    return list(dict.fromkeys(found))


SHAPE_READERS = ("Shape", "Size")


def trace(
    value: ir.Value, block: int, span: Span | None = None, *, caches: bool = False
) -> Tracing:
    """Return what follows when a tensor, or a part of its last axis, is rotated in blocks.

    Raises `Refused` where something is in the way. With `caches` the model may take rotated values
    that it has handed out before.
    """
    tracing = Tracing(block)
    tracing.visit(value, span or tracing.whole(value))
    graph = graph_of(value)
    while tracing.todo:
        current = tracing.todo.pop()
        span = tracing.spans[current]
        maker = current.producer()
        if maker is not None:
            _follow(tracing, maker, Slot(current.index() or 0, is_output=True), span)
        for node, index in current.uses():
            if node.graph is not graph:
                raise Refused(f"{current.name!r} is read inside a body of If, Loop or Scan")
            _follow(tracing, node, Slot(index), span)
    for current in tracing.spans:
        # What a model hands out it must also take back: then both sides are rotated.
        if caches and current in tracing.caches and not current.is_initializer():
            continue
        if current.producer() is None:
            raise Refused(f"{current.name!r} is an input of the model")
        if current.is_graph_output():
            raise Refused(f"{current.name!r} is an output of the model")
    return tracing


def _follow(tracing: Tracing, node: ir.Node, slot: Slot, span: Span) -> None:
    rule = RULES.get((node.domain, node.op_type))
    if rule is None:
        verb = "makes" if slot.is_output else "reads"
        raise Refused(f"{describe(node)} {verb} it")
    rule(tracing, node, slot, span)


def _read_shape(tracing: Tracing, node: ir.Node, slot: Slot, span: Span) -> None:
    """An operator that sees the shape only."""


def multiply_matrix(tracing: Tracing, node: ir.Node, slot: Slot, span: Span) -> None:
    """A product: its constant undoes the rotation of what it reads, or rotates its result."""
    axes = matrix_axes(node)
    if axes is not None and not slot.is_output and slot.place == 0:
        tracing.reads += 1
        tracing.edit(node, 1, axes[0], span)
    elif axes is not None and slot.is_output:
        tracing.writes += 1
        tracing.edit(node, 1, axes[1], span)
        if input_at(node, 2) is not None:
            tracing.link_summand(node, 2, span)
    elif axes is not None and slot.place == 2:
        tracing.visit(node.outputs[0], span)
    elif node.op_type == "MatMul" and constant_behind(input_at(node, 1)) is None:
        # What attention does with values: each result is a sum of whole vectors.
        expect(node, slot, inputs=(1,))
        values = node.inputs[1]
        if values is None or values.shape is None or len(values.shape) < 2:
            raise Refused(f"{describe(node)} multiplies a tensor of unknown shape")
        tracing.link(node, 1, span)
    else:
        raise Refused(f"{describe(node)} has no constant matrix behind what is rotated")


def attend(tracing: Tracing, node: ir.Node, slot: Slot, span: Span) -> None:
    """An operator for attention: what it makes of rotated values is rotated, and its cache, too."""
    facts = ATTENTIONS[node.domain, node.op_type]
    index, values = find_values(node, facts)
    if head_of_attention(node) != tracing.block:
        raise Refused(f"{describe(node)} has heads of another size")
    expect(node, slot, inputs=(index, facts.past), outputs=(0, facts.present))
    if slot == Slot(index) and span != values:
        raise Refused(f"{describe(node)} reads more than values of it")
    # The runtime stores a cache of 8 bits by scales of its own.
    if node.op_type == "GroupQueryAttention" and any(v is not None for v in node.inputs[12:]):
        raise Refused(f"{describe(node)} quantizes its cache")
    tracing.link_input(node, index, values)
    if facts.bias is not None and input_at(node, facts.bias) is not None:
        bias = input_at(node, facts.bias)
        width = width_of(bias)
        if width is None or constant_behind(bias) is None or values.stop == tracing.block:
            raise Refused(f"{describe(node)} has a bias that is no constant for all heads")
        tracing.edit(node, facts.bias, -1, Span(width - values.stop, width))
    past = input_at(node, facts.past)
    if past is not None:
        tracing.visit(past, Span(0, width_of(past) or tracing.block))  # often it has a name only
    tracing.visit(node.outputs[0], tracing.whole(node.outputs[0]))
    if len(node.outputs) > facts.present:
        present = node.outputs[facts.present]
        tracing.visit(present, tracing.whole(present))
        tracing.note_cache(past, present)


def add(tracing: Tracing, node: ir.Node, slot: Slot, span: Span) -> None:
    """A sum or a difference."""
    for index in (0, 1):
        tracing.link_summand(node, index, span)
    tracing.visit(node.outputs[0], span)


def multiply(tracing: Tracing, node: ir.Node, slot: Slot, span: Span) -> None:
    """A product with a number for each vector, with gains, or of a tensor with itself."""
    left, right = node.inputs[0], node.inputs[1]
    if left is right and not slot.is_output:
        _square(tracing, node, slot, span)
        return
    width = width_of(node.outputs[0])
    factors = [index for index in (0, 1) if _is_number_per_vector(node.inputs[index])]
    if not factors:
        factors = [i for i in (0, 1) if constant_behind(node.inputs[i]) is not None]
        if len(factors) != 1 or width is None:
            raise Refused(f"{describe(node)} multiplies it with another tensor")
        fold_gains(tracing, node, factors[0], None, span)
    carrier = 1 - factors[0]
    if width is None or width_of(node.inputs[carrier]) != width:
        raise Refused(f"{describe(node)} multiplies it with another tensor")
    tracing.link(node, carrier, span)


def divide(tracing: Tracing, node: ir.Node, slot: Slot, span: Span) -> None:
    """A division by a number for each vector."""
    expect(node, slot, inputs=(0,))
    if not _is_number_per_vector(node.inputs[1]):
        raise Refused(f"{describe(node)} divides it by another tensor")
    width = width_of(node.outputs[0])
    if width is None or width_of(node.inputs[0]) != width:
        raise Refused(f"{describe(node)} divides a tensor of another width")
    tracing.link(node, 0, span)


def _is_number_per_vector(value: ir.Value | None) -> bool:
    """Return whether all channels of a vector meet the same factor."""
    return width_of(value) == 1 or is_uniform(value)


def take_power(tracing: Tracing, node: ir.Node, slot: Slot, span: Span) -> None:
    """A power, which must be a square."""
    expect(node, slot, inputs=(0,), outputs=())
    exponent = constant_of(node.inputs[1])
    if exponent is None or exponent.size != 1 or float(exponent.ravel()[0]) != 2:
        raise Refused(f"{describe(node)} is no square")
    _square(tracing, node, slot, span)


def _square(tracing: Tracing, node: ir.Node, slot: Slot, span: Span) -> None:
    """Squares, of which only sums over the last axis are the same for a rotated vector."""
    squares = node.outputs[0]
    sums = [use.node for use in squares.uses()]
    known = all(n.op_type in _SUMS and not n.domain and _sums_last_axis(n) for n in sums)
    if not known or squares.is_graph_output():
        raise Refused(f"{describe(node)} squares its elements")


_SUMS = ("ReduceMean", "ReduceSum")


def take_length(tracing: Tracing, node: ir.Node, slot: Slot, span: Span) -> None:
    """The length of each vector, which R keeps."""
    expect(node, slot, inputs=(0,), outputs=())
    if not _sums_last_axis(node):
        raise Refused(f"{describe(node)} sums over other axes, too")


def take_sum(tracing: Tracing, node: ir.Node, slot: Slot, span: Span) -> None:
    """The sum or mean of each vector, which R can be made to keep."""
    expect(node, slot, inputs=(0,), outputs=())
    if not _sums_last_axis(node) or span != tracing.whole(node.inputs[0]):
        raise Refused(f"{describe(node)} sums over other axes")
    tracing.keep_mean = True


def _sums_last_axis(node: ir.Node) -> bool:
    source, axes = node.inputs[0], known_axes(node)
    if source is None or source.shape is None or axes is None:
        return False
    rank = len(source.shape)
    return [axis % rank for axis in axes] == [rank - 1]


RULES: dict[tuple[str, str], Rule] = {
    **MOVES,
    **{("", op_type): _read_shape for op_type in SHAPE_READERS},
    ("", "Add"): add,
    ("", "Concat"): join,
    ("", "Div"): divide,
    ("", "Gemm"): multiply_matrix,
    ("", "LayerNormalization"): normalize,
    ("", "MatMul"): multiply_matrix,
    ("", "Mul"): multiply,
    ("", "Neg"): pass_on,
    ("", "Pow"): take_power,
    ("", "RMSNormalization"): normalize,
    ("", "ReduceL2"): take_length,
    ("", "ReduceMean"): take_sum,
    ("", "ReduceSum"): take_sum,
    ("", "ReduceSumSquare"): take_length,
    ("", "SimplifiedLayerNormalization"): normalize,
    ("", "Split"): cut_by_split,
    ("", "Sub"): add,
    ("com.microsoft", "SkipLayerNormalization"): normalize_sum,
    ("com.microsoft", "SkipSimplifiedLayerNormalization"): normalize_sum,
    **dict.fromkeys(ATTENTIONS, attend),
}
