"""Rules of rotation, one per operator: which tensors rotate together, which constants undo it.

A tensor is rotated when the vectors along its last axis, or the blocks that they are made of, are
multiplied with one orthogonal matrix R. Operators that work along other axes, add, or multiply with
a number for each vector pass that on; so does a norm, as R keeps lengths. A product with a constant
that reads or makes the tensor has R multiplied into its constant. What does neither is in the way.
"""

from __future__ import annotations

import onnx_ir as ir

from bitwright.equalize.rotation.arithmetic import (
    add,
    divide,
    multiply,
    take_length,
    take_power,
    take_sum,
)
from bitwright.equalize.rotation.movement import MOVES, cut_by_split, join, pass_on
from bitwright.equalize.rotation.norms import LOOKS, normalize, normalize_sum
from bitwright.equalize.rotation.operands import ATTENTIONS, Refused, Span, describe
from bitwright.equalize.rotation.products import attend, multiply_matrix
from bitwright.equalize.rotation.tracing import Rule, Slot, Tracing
from bitwright.graph.editing import graph_of

__all__ = ["RULES", "trace"]


def trace(
    value: ir.Value, block: int, span: Span | None = None, *, caches: bool = False
) -> Tracing:
    """Return what follows when a tensor, or a part of its last axis, is rotated in blocks.

    Raises `Refused` where something is in the way. With `caches` the model may take rotated values
    that it has handed out before.

    >>> x = ir.Value(name="x", shape=ir.Shape([6, 2]))
    >>> graph = ir.Graph([x], [x], nodes=[], opset_imports={"": 21})
    >>> trace(x, 2)
    Traceback (most recent call last):
    bitwright.equalize.rotation.operands.Refused: 'x' is an input of the model
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


def _look(tracing: Tracing, node: ir.Node, slot: Slot, span: Span) -> None:
    """An operator that sees the shape only."""


RULES: dict[tuple[str, str], Rule] = {
    **MOVES,
    **{("", op_type): _look for op_type in LOOKS},
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
