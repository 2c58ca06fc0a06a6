"""Cut a model into consecutive pieces, each small enough to be loaded alone."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import onnx_ir as ir

from bitwright.errors import ModelError, did_you_mean
from bitwright.graph.constants import is_transposed_constant
from bitwright.graph.subgraphs import subgraphs_of
from bitwright.run.session import open_session, run_session

__all__ = ["Extractor", "Piece", "cut_model", "extract_piece", "open_piece"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive nodes of a graph, and the tensors that pass in and out of them."""

    first: str
    """The name of its first node."""
    inputs: tuple[str, ...]
    """Tensors that it reads and an earlier piece, or the caller, provides."""
    outputs: tuple[str, ...]
    """Tensors that it makes and a later piece reads, or that leave the model."""


def cut_model(model: ir.Model, starts: Iterable[str]) -> list[Piece]:
    """Cut the main graph, in its order, before each of these nodes; the names are theirs.

    What comes before the first of them is a piece of its own. Constants pass no border, and neither
    do transposed constants and sequences, which have no form outside of the runtime: each piece
    makes those that it reads.

    >>> x, y, z = (ir.Value(name=name) for name in "xyz")
    >>> nodes = [ir.node("Relu", [x], outputs=[y], name="a")]
    >>> nodes.append(ir.node("Relu", [y], outputs=[z], name="b"))
    >>> graph = ir.Graph([x], [z], nodes=nodes, opset_imports={"": 21})
    >>> [(p.inputs, p.outputs) for p in cut_model(ir.Model(graph, ir_version=10), ["b"])]
    [(('x',), ('y',)), (('y',), ('z',))]
    """
    nodes = list(model.graph)
    places = {node.name or "": index for index, node in enumerate(nodes)}
    cuts = {0}
    for name in starts:
        if name not in places:
            raise ModelError(f"the main graph has no node {name!r}.{did_you_mean(name, places)}")
        cuts.add(places[name])
    edges = sorted(cuts)
    made_in = {
        value: bisect_right(edges, index) - 1
        for index, node in enumerate(nodes)
        for value in node.outputs
    }
    reads: list[dict[ir.Value, None]] = [{} for _ in edges]
    leaving = {value for value in model.graph.outputs if value in made_in}
    for index, node in enumerate(nodes):
        piece = bisect_right(edges, index) - 1
        rest = list(_read_by(node, model.graph))
        seen = set(rest)
        while rest:
            value = rest.pop(0)
            maker = value.producer()
            if value.is_initializer() or (maker is not None and is_transposed_constant(maker)):
                continue
            home = made_in.get(value, -1)
            if home == piece:
                continue
            if maker is not None and _is_sequence(value):
                more = [v for v in _read_by(maker, model.graph) if v not in seen]
                seen.update(more)
                rest += more
                continue
            reads[piece][value] = None
            leaving.add(value)
    return [
        Piece(
            nodes[edge].name or "",
            _names(reads[piece]),
            _names(v for v, home in made_in.items() if home == piece and v in leaving),
        )
        for piece, edge in enumerate(edges)
        if nodes
    ]


class Extractor:
    """Makes models of pieces; it looks at the whole graph once, then only at what a piece holds."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._values = ir.convenience.create_value_mapping(model.graph, include_subgraphs=False)
        self._places = {node: place for place, node in enumerate(model.graph)}

    def extract(
        self, piece: Piece, constants: Mapping[str, ir.TensorProtocol] | None = None
    ) -> ir.Model:
        """Return a piece as a model of its own, which shares the tensors it does not replace.

        `constants` has the initializers that this copy gets other values for, by name.
        """
        model = self._model
        inputs = [self._values[name] for name in piece.inputs]
        outputs = [self._values[name] for name in piece.outputs]
        nodes, initializers = self._between(inputs, outputs)
        graph = ir.GraphView(
            inputs,
            outputs,
            nodes=nodes,
            initializers=initializers,
            opset_imports=model.opset_imports,
            name=model.graph.name,
        ).clone()
        own = set(_names(model.graph.inputs))
        for value in graph.inputs:
            # Files state wrong sizes of tensors inside them, which count for nothing until such a
            # tensor becomes an input, where the runtime refuses what it really is.
            if value.name not in own and value.shape is not None:
                value.shape = ir.Shape([None] * value.shape.rank())
        replaced = constants or {}
        for name, value in graph.initializers.items():
            if name in replaced:
                value.const_value = replaced[name]
        functions = tuple(model.functions.values())
        return ir.Model(graph, ir_version=model.ir_version, functions=functions)

    def _between(
        self, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value]
    ) -> tuple[list[ir.Node], list[ir.Value]]:
        """Return the nodes that make outputs of inputs, in order, and the constants they read."""
        nodes: set[ir.Node] = set()
        seen = set(inputs)
        initializers = {value: None for value in inputs if value.is_initializer()}
        rest = list(outputs)
        while rest:
            value = rest.pop()
            if value in seen:
                continue
            seen.add(value)
            if value.is_initializer():
                initializers[value] = None
            maker = value.producer()
            if maker is not None and maker not in nodes:
                nodes.add(maker)
                rest += _read_by(maker, self._model.graph)
        return sorted(nodes, key=self._places.__getitem__), list(initializers)


def extract_piece(
    model: ir.Model, piece: Piece, constants: Mapping[str, ir.TensorProtocol] | None = None
) -> ir.Model:
    """Return one piece as a model of its own; an `Extractor` is faster for many."""
    return Extractor(model).extract(piece, constants)


def open_piece(
    model: ir.Model,
    source: str,
    result: str,
    constants: Mapping[str, ir.TensorProtocol] | None = None,
    *,
    assumed_type: ir.TypeProtocol | None = None,
    providers: Sequence[str] | None = None,
) -> Callable[[Array], Array]:
    """Return what a model computes from one tensor to another, with nothing but constants beside.

    `assumed_type` is that of the first where the model does not say it.
    """
    part = extract_piece(model, Piece("", (source,), (result,)), constants)
    for value in part.graph.inputs:
        value.type = value.type or assumed_type
    # Constants that are put in have been rounded; the runtime must not round them again.
    session = open_session(part, providers=providers, as_written=True)
    return lambda array: run_session(session, {source: array})[result]


def _is_sequence(value: ir.Value) -> bool:
    return isinstance(value.type, ir.SequenceType | ir.OptionalType)


def _read_by(node: ir.Node, outer: ir.Graph) -> Iterator[ir.Value]:
    """Yield the tensors of the outer graph that a node reads, also inside its bodies."""
    for value in node.inputs:
        if value is not None and (value.graph is outer or value.graph is None):
            yield value
    for _, body in subgraphs_of(node):
        for inner in body:
            yield from _read_by(inner, outer)
        for value in body.outputs:
            if value.graph is outer:
                yield value


def _names(values: Iterable[ir.Value]) -> tuple[str, ...]:
    return tuple(value.name or "" for value in values)
