"""Cuts of two models at the tensors that they have in common; units of nodes lie between them.

A unit makes one tensor from the tensors of other cuts, once in float and once as the quantized
model does it: `QuantizeLinear`, `DequantizeLinear`, Conv, Relu. Each of the two can stand in for
the other, which is what local errors and sensitivities are measured with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from bitwright.assess.comparison.matching import is_float, match_tensors
from bitwright.assess.sums import Codes
from bitwright.decide.ops import op_types
from bitwright.decide.ops.quantized_view import (
    QuantizedView,
    float_op_type,
    is_conversion,
    is_fixed,
)
from bitwright.graph import DEQUANTIZERS, Quantizer, is_integer_op, outer_inputs, reach

WEIGHTED = op_types(lambda op: op.weights and not op.normalizes)
# Tensors that the runtime makes on its own, whatever is fused around them.
_LANDMARKS = WEIGHTED | frozenset(
    "AveragePool Concat GlobalAveragePool InstanceNormalization LayerNormalization MaxPool Resize "
    "Softmax".split()
)
# What the runtime computes together with the node before: looking between them would keep it
# from doing so.
_FUSED = frozenset({"Add", "BatchNormalization", "Clip", "LeakyRelu", "PRelu", "Relu"})


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """A tensor that both models have, and the nodes that make it from other cuts."""

    name: str
    float_value: ir.Value
    """The tensor of the float model."""
    value: ir.Value
    """The same in the quantized model: numbers that come before their quantizer, or integers."""
    measured: ir.Value
    """What is compared: the integers where there are any, else the numbers."""
    codes: Codes | None
    float_nodes: tuple[ir.Node, ...]
    nodes: tuple[ir.Node, ...]
    """The unit in the quantized model, in graph order; its quantizers are among them."""

    @property
    def float_inputs(self) -> set[ir.Value]:
        """What the float unit reads, its own tensors included."""
        return {value for node in self.float_nodes for value in outer_inputs(node)}

    @property
    def is_integer(self) -> bool:
        """Whether the quantized model has the tensor in integers only."""
        return self.value is self.measured and self.codes is not None

    @property
    def has_quantizer(self) -> bool:
        """Whether what is compared is made by a quantizer of the tensor."""
        return self.codes is not None and self.measured is not self.value

    @property
    def is_quantized(self) -> bool:
        """Whether anything in the unit rounds, so that it can differ from float on its own."""
        return (
            self.codes is not None
            or any(is_conversion(n) or is_integer_op(n.op_type) for n in self.nodes)
            or (_has_half_floats(self.nodes) and not _has_half_floats(self.float_nodes))
        )

    @property
    def main(self) -> ir.Node | None:
        """The node that the unit is there for."""
        return _main_node(self.nodes)

    @property
    def float_main(self) -> ir.Node | None:
        """The same in the float model."""
        return _main_node(self.float_nodes)


@dataclass(frozen=True, slots=True)
class Units:
    """Two models, the cuts that they have in common in graph order, and their inputs."""

    float_model: ir.Model
    graph: QuantizedView
    cuts: tuple[Cut, ...]

    @property
    def quantized(self) -> ir.Model:
        """The quantized model."""
        return self.graph.model


def _has_half_floats(nodes: Sequence[ir.Node]) -> bool:
    """Return whether nodes read or write float16 or bfloat16."""
    return any(
        value is not None and value.dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
        for node in nodes
        for value in (*node.inputs, *node.outputs)
    )


def cut_models(float_model: ir.Model, quantized: ir.Model) -> Units:
    """Match the tensors of two models whose shapes are inferred, and cut both there."""
    graph = QuantizedView(quantized)
    matched = match_tensors(float_model, graph)
    inputs = {value.name: value for value in float_model.graph.inputs}
    chosen = {
        value: original
        for value, original in matched.items()
        if value.producer() is not None
        and original.producer() is not None
        and _is_cut(value, original, graph)
    }
    float_nodes, nodes = node_places(float_model), node_places(quantized)
    places = {v: place for node, place in float_nodes.items() for v in node.outputs}
    chosen = _drop_contradictions(chosen, places)
    borders = {value for value in quantized.graph.inputs if value.name in inputs} | set(chosen)
    float_borders = set(float_model.graph.inputs) | set(chosen.values())
    cuts = []
    for value, original in sorted(chosen.items(), key=lambda pair: places[pair[1]]):
        quantizer = graph.quantizer_of(value)
        measured = value if quantizer is None else quantizer.outputs[0]
        codes = _codes_of(graph.parameters.get(measured))
        if codes is None:
            # Several scales, or no integers: then what the next node reads is compared.
            measured = _dequantized(value, graph)
        cuts.append(
            Cut(
                original.name or "",
                original,
                value,
                measured,
                codes,
                tuple(nodes_between(original, float_borders, float_nodes)),
                tuple(nodes_between(value, borders, nodes)),
            )
        )
    return Units(float_model, graph, tuple(cuts))


def _is_cut(value: ir.Value, original: ir.Value, graph: QuantizedView) -> bool:
    """Return whether both models can be looked at here without slowing the runtime down."""
    if value.is_graph_output() or graph.is_quantized(value):
        return True
    if _is_fused(value, graph):
        return False
    if (table := value.producer()) is not None and table.op_type == "GatherBlockQuantized":
        return True
    maker = original.producer()
    while maker is not None and maker.op_type in _FUSED:
        source = maker.inputs[0]
        if source is None or len(source.uses()) != 1 or source.producer() is None:
            break
        maker = source.producer()
    return maker is not None and maker.op_type in _LANDMARKS


def _is_fused(value: ir.Value, graph: QuantizedView) -> bool:
    """Return whether a tensor lies between two nodes that the runtime computes as one."""
    uses = list(value.uses())
    maker = value.producer()
    if len(uses) != 1 or value.is_graph_output() or graph.is_quantized(value) or maker is None:
        return False
    reader = uses[0].node
    others = [v for v in reader.inputs if v is not None and v is not value]
    if reader.op_type not in _FUSED or not all(is_fixed(v) for v in others):
        return False
    return float_op_type(maker) in WEIGHTED or maker.op_type in _FUSED or maker.op_type == "Cast"


def _codes_of(quantizer: Quantizer | None) -> Codes | None:
    """Return what the integers of a tensor stand for, where it has one constant scale."""
    found = None if quantizer is None else quantizer.constants()
    kind = None if quantizer is None else quantizer.integers
    if found is None or found[0].size != 1 or kind is None or kind.bits not in (8, 16):
        return None
    scale, zero = (array.reshape(-1)[0] for array in found)
    return Codes(float(scale), int(zero), int(kind.lowest), int(kind.highest))


def _dequantized(value: ir.Value, graph: QuantizedView) -> ir.Value:
    """Return the tensor as its readers see it."""
    for use in value.uses():
        result = use.node.outputs[0]
        if use.idx != 0 or not graph.is_quantized(value) or graph.source_of(result) is not value:
            continue
        if result.dtype is not None and result.dtype.is_floating_point():
            return result
        for next_use in result.uses():
            if next_use.node.op_type in DEQUANTIZERS and next_use.idx == 0:
                return next_use.node.outputs[0]
    return value


def _drop_contradictions(
    chosen: dict[ir.Value, ir.Value], places: dict[ir.Value, int]
) -> dict[ir.Value, ir.Value]:
    """Drop matches that contradict the others: what comes first in one model comes first in both.

    A unit of either kind can only stand in for the other if it reads what is there already.
    """
    latest: dict[ir.Value, int] = {}
    kept: dict[ir.Value, ir.Value] = {}
    graph = next(iter(chosen)).graph if chosen else None
    for node in () if graph is None else graph:
        before = max((latest.get(value, -1) for value in outer_inputs(node)), default=-1)
        for value in node.outputs:
            latest[value] = before
            if value in chosen and places[chosen[value]] > before:
                kept[value] = chosen[value]
                latest[value] = places[chosen[value]]
    return kept


def node_places(model: ir.Model) -> dict[ir.Node, int]:
    """Return where each node of the main graph stands in it."""
    return {node: place for place, node in enumerate(model.graph)}


def nodes_between(
    value: ir.Value, borders: set[ir.Value], places: Mapping[ir.Node, int]
) -> list[ir.Node]:
    """Return the nodes that a tensor is made with from the borders, in graph order."""

    def before(node: ir.Node) -> Iterator[ir.Node]:
        makers = (read.producer() for read in outer_inputs(node) if read not in borders)
        return (maker for maker in makers if maker is not None)

    maker = value.producer()
    return sorted(reach(() if maker is None else (maker,), before), key=places.__getitem__)


def _main_node(nodes: Sequence[ir.Node]) -> ir.Node | None:
    working = [node for node in nodes if not is_conversion(node)]
    weighted = [node for node in working if float_op_type(node) in WEIGHTED]
    others = [node for node in working if node.op_type not in _FUSED | {"Cast", "Mul"}]
    return next((found[-1] for found in (weighted, others, working) if found), None)


# Outputs behind the last cuts ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OutputPath:
    """An output of both models, and the nodes that lead to it from the last cuts."""

    float_value: ir.Value
    float_nodes: tuple[ir.Node, ...]
    value: ir.Value
    nodes: tuple[ir.Node, ...]

    @property
    def name(self) -> str:
        """What the output is called in both models."""
        return self.float_value.name or ""

    @property
    def is_computed(self) -> bool:
        """Whether it is no input of either model as it is."""
        return self.float_value.producer() is not None and self.value.producer() is not None


def output_paths(units: Units) -> list[list[OutputPath]]:
    """Return the outputs of both models behind each cut, the last that they are made of."""
    float_cuts = {cut.float_value: place for place, cut in enumerate(units.cuts)}
    cuts = {v: place for place, cut in enumerate(units.cuts) for v in (cut.measured, cut.value)}
    found: list[list[OutputPath]] = [[] for _ in range(max(len(units.cuts), 1))]
    for path in _paths(units):
        last = float_cuts.get(path.float_value)
        if last is None:
            read = {v for node in (*path.float_nodes, *path.nodes) for v in outer_inputs(node)}
            places = [known[value] for known in (float_cuts, cuts) for value in read & known.keys()]
            last = max(places, default=0)
        found[last].append(path)
    return found


def _paths(units: Units) -> Iterator[OutputPath]:
    float_borders = {*units.float_model.graph.inputs, *(cut.float_value for cut in units.cuts)}
    borders = {*units.quantized.graph.inputs, *(cut.value for cut in units.cuts)}
    float_places, places = node_places(units.float_model), node_places(units.quantized)
    given = {value.name: value for value in units.quantized.graph.outputs}
    for output in units.float_model.graph.outputs:
        other = given.get(output.name)
        if other is None or not is_float(output):
            continue
        yield OutputPath(
            output,
            ()
            if output in float_borders
            else tuple(nodes_between(output, float_borders, float_places)),
            other,
            () if other in borders else tuple(nodes_between(other, borders, places)),
        )
