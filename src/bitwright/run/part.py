"""Cut a model into consecutive parts, each small enough to be loaded alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import onnx_ir as ir

from bitwright.errors import ModelError, did_you_mean
from bitwright.graph import is_transposed_constant, outer_inputs
from bitwright.run.session import Session
from bitwright.support.array_types import Array

Function = Callable[[Array], Array]


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive nodes of a graph, and the tensors that pass in and out of them."""

    first: str
    """The name of its first node."""
    inputs: tuple[str, ...]
    """Tensors that it reads and an earlier part, or the caller, provides."""
    outputs: tuple[str, ...]
    """Tensors that it makes and a later part reads, or that leave the model."""


def cut_model(
    model: ir.Model, starts: Iterable[str], *, passing: Collection[str] | None = None
) -> list[Part]:
    """Cut the main graph, in its order, before each of these nodes; the names are theirs.

    What comes before the first of them is a part of its own. Constants pass no border, and neither
    do transposed constants and sequences, which have no form outside of the runtime: each part
    makes those that it reads. With `passing`, only these tensors pass, and all others are made
    again where they are read.
    """
    nodes = list(model.graph)
    if not nodes:
        return []
    edges = _edges(nodes, starts)
    own_nodes = [nodes[start:end] for start, end in pairwise([*edges, len(nodes)])]
    made = [[value for node in own for value in node.outputs] for own in own_nodes]
    reads = [_reads(*own, passing) for own in zip(own_nodes, made, strict=True)]
    leaving = {*model.graph.outputs, *(value for read in reads for value in read)}
    return [
        Part(nodes[edge].name or "", _names(read), _names(v for v in own if v in leaving))
        for edge, read, own in zip(edges, reads, made, strict=True)
    ]


def _reads(
    nodes: Sequence[ir.Node], made: Iterable[ir.Value], passing: Collection[str] | None
) -> list[ir.Value]:
    """Return what nodes read that passes to them; what does not is followed to what makes it."""
    found: list[ir.Value] = []
    seen = set(made)
    waiting = [value for node in nodes for value in outer_inputs(node)]
    while waiting:
        again: list[ir.Value] = []
        for value in waiting:
            if value in seen or _is_fixed(value):
                continue
            seen.add(value)
            maker = value.producer()
            if maker is not None and not _passes(value, passing):
                again += outer_inputs(maker)
            else:
                found.append(value)
        waiting = again
    return found


def _edges(nodes: Sequence[ir.Node], starts: Iterable[str]) -> list[int]:
    """Return where parts begin that start with these nodes, and with the first."""
    places = {node.name or "": index for index, node in enumerate(nodes)}
    cuts = {0}
    for name in starts:
        if name not in places:
            raise ModelError(f"the main graph has no node {name!r}.{did_you_mean(name, places)}")
        cuts.add(places[name])
    return sorted(cuts)


def _is_fixed(value: ir.Value) -> bool:
    maker = value.producer()
    return value.is_initializer() or (maker is not None and is_transposed_constant(maker))


def _passes(value: ir.Value, passing: Collection[str] | None) -> bool:
    if passing is not None:
        return value.name in passing
    return not isinstance(value.type, ir.SequenceType | ir.OptionalType)


class Extractor:
    """Makes models of parts; it looks at the whole graph once, then only at what a part holds."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._values = ir.convenience.create_value_mapping(model.graph, include_subgraphs=False)
        self._places = {node: place for place, node in enumerate(model.graph)}

    def extract(
        self,
        part: Part,
        constants: Mapping[str, ir.TensorProtocol] | None = None,
        replaced: Mapping[str, str] | None = None,
    ) -> ir.Model:
        """Return a part as a model of its own, which shares the tensors it does not replace.

        `constants` has the initializers that this copy gets other values for, by name; `replaced`
        the tensors in whose place others of the model are read, and given back.
        """
        model = self._model
        inputs = [self._values[name] for name in part.inputs]
        outputs = [self._values[name] for name in part.outputs]
        others = {
            self._values[old]: self._values[new]
            for old, new in (replaced or {}).items()
            if old not in part.inputs
        }
        nodes, initializers, met = self._between(inputs, outputs, others)
        inside = set(nodes)
        # Readers need something to read until the others are put in place.
        absent = [value for value in met if value.producer() not in inside]
        graph = ir.GraphView(
            [*inputs, *absent],
            outputs,
            nodes=nodes,
            initializers=initializers,
            opset_imports=model.opset_imports,
            name=model.graph.name,
        ).clone()
        if met:
            _put_in_place(graph, {old.name or "": others[old].name or "" for old in met})
        own = set(_names(model.graph.inputs))
        for value in graph.inputs:
            # Files state wrong sizes of tensors inside them, which count for nothing until such a
            # tensor becomes an input, where the runtime refuses what it really is.
            if value.name not in own and value.shape is not None:
                value.shape = ir.Shape([None] * value.shape.rank())
        for name, value in graph.initializers.items():
            if constants is not None and name in constants:
                value.const_value = constants[name]
        functions = tuple(model.functions.values())
        return ir.Model(graph, ir_version=model.ir_version, functions=functions)

    def path(
        self,
        source: str,
        result: str,
        constants: Mapping[str, ir.TensorProtocol],
        assumed_type: ir.TypeProtocol | None,
    ) -> ir.Model:
        """Return what leads from one tensor to another, with nothing but constants beside.

        `assumed_type` is that of the first where the model does not say it.
        """
        part = self.extract(Part("", (source,), (result,)), constants)
        for value in part.graph.inputs:
            value.type = value.type or assumed_type
        return part

    def _between(
        self,
        inputs: Sequence[ir.Value],
        outputs: Sequence[ir.Value],
        others: Mapping[ir.Value, ir.Value],
    ) -> tuple[list[ir.Node], list[ir.Value], list[ir.Value]]:
        """Return the nodes that make outputs of inputs, in order, and the constants they read.

        The third are the tensors that were met in whose place others are read.
        """
        nodes: set[ir.Node] = set()
        seen = set(inputs)
        initializers = {value: None for value in inputs if value.is_initializer()}
        met: dict[ir.Value, None] = {}
        rest = list(outputs)
        while rest:
            value = rest.pop()
            if value in others:
                met[value] = None
                value = others[value]
            if value in seen:
                continue
            seen.add(value)
            if value.is_initializer():
                initializers[value] = None
            maker = value.producer()
            if maker is not None and maker not in nodes:
                nodes.add(maker)
                rest += outer_inputs(maker)
        return sorted(nodes, key=self._places.__getitem__), list(initializers), list(met)


def _put_in_place(graph: ir.Graph, others: Mapping[str, str]) -> None:
    """Let every reader of a tensor read another, by name; those that were inputs for it go."""
    known = ir.convenience.create_value_mapping(graph, include_subgraphs=False)
    stood_for = {known[old]: known[new] for old, new in others.items()}
    graph.outputs[:] = list(dict.fromkeys(stood_for.get(value, value) for value in graph.outputs))
    for old, new in stood_for.items():
        ir.convenience.replace_all_uses_with(old, new)
    graph.inputs[:] = [value for value in graph.inputs if value not in stood_for]
    graph.sort()


def open_function(part: ir.Model, providers: Sequence[str] | None = None) -> Function:
    """Return what a part with one input and one output computes, of arrays of any shape."""
    for value in (*part.graph.inputs, *part.graph.outputs):
        value.shape = None
    # Constants that are put in have been rounded; the runtime must not round them again.
    session = Session(part, providers=providers, as_written=True)
    [source], [result] = session.inputs, session.outputs
    return lambda array: session.run({source: array})[result]


def _names(values: Iterable[ir.Value]) -> tuple[str, ...]:
    return tuple(value.name or "" for value in values)
