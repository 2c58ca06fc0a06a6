"""Errors of nodes, by the tensors that they write, and of weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

import onnx_ir as ir

from bitwright.assess.comparison.results import NodeComparison, TensorComparison
from bitwright.assess.comparison.units import Cut, Units
from bitwright.assess.sums import decibels, signal_and_noise
from bitwright.decide.ops import MATRIX_PRODUCTS
from bitwright.decide.ops.quantized_view import float_op_type, is_conversion
from bitwright.graph import float_constant_of, outer_inputs, subgraphs_of
from bitwright.plan import QuantPlan


def describe_nodes(
    units: Units, tensors: dict[str, TensorComparison], plan: QuantPlan | None = None
) -> list[NodeComparison]:
    """Return a row for each node that computes something, in graph order.

    What is measured of a unit stands with its main node; nodes that are computed as one with it,
    and those that only work out scales, have no row of their own.
    """
    mains = {cut.main: cut for cut in units.cuts if cut.main is not None}
    shown = _shown_nodes(units, mains)
    depths = _depths(units.quantized, shown)
    rows: list[NodeComparison] = []
    places: dict[ir.Node, int] = {}

    def add(node: ir.Node, cut: Cut | None, depth: int, unmeasured: str | None) -> None:
        as_one = () if cut is None else _as_one(cut)
        for member in (*as_one, node):
            places.setdefault(member, len(rows))
        name, op, output = node.name or "", float_op_type(node), node.outputs[0].name or ""
        measures: dict[str, Any] = {}
        if cut is not None:
            output = cut.name
            name, op = name_unit(cut)
            measures = asdict(tensors[output]) if output in tensors else {}
            measures.pop("name", None)
        planned = None if plan is None else plan.nodes.get(name)
        quantized = units.graph.works_on_integers(node) if planned is None else planned.quantized
        action = "quantized" if quantized else "float"
        reason = None if planned is None else planned.reason
        members = tuple(n.name or "" for n in as_one)
        more = {**measures, "nodes": members, "unmeasured": unmeasured}
        rows.append(NodeComparison(name, op, len(rows), depth, action, reason, output, **more))

    for node in units.quantized.graph:
        cut = mains.get(node)
        if node in shown:
            add(node, cut, depths[node], _why_unmeasured(node, cut, tensors))
        for inner in _nodes_of_bodies(node):
            why = f"inside the body of {node.op_type} {node.name!r}, where nothing is compared"
            add(inner, None, depths[node], why)
    reads = _find_sources(units.quantized.graph, places)
    return [replace(row, reads=tuple(sorted(reads.get(row.index, ())))) for row in rows]


def _find_sources(graph: ir.Graph, places: Mapping[ir.Node, int]) -> dict[int, set[int]]:
    """Return row -> rows that it reads; nodes without a row pass on what they read."""
    found: dict[int, set[int]] = {}
    made_by: dict[ir.Value, set[int]] = {}

    def follow(nodes: Iterable[ir.Node]) -> None:
        for node in nodes:
            given: set[int] = set()
            for value in outer_inputs(node):
                given |= made_by.get(value, set())
            place = places.get(node)
            if place is not None:
                found.setdefault(place, set()).update(given - {place})
                given = {place}
            for _, body in subgraphs_of(node):
                made_by.update((value, given) for value in body.inputs)
                follow(body)
            made_by.update((value, given) for value in node.outputs)

    follow(graph)
    return found


def _why_unmeasured(
    node: ir.Node, cut: Cut | None, tensors: dict[str, TensorComparison]
) -> str | None:
    if cut is not None:
        compared = cut.name in tensors
        return None if compared else "the result has another shape than in the float model"
    dtype = node.outputs[0].dtype
    if dtype is not None and not dtype.is_floating_point():
        return "the result is no float tensor"
    return "the result lies between compared tensors, where looking would slow the runtime down"


def _nodes_of_bodies(node: ir.Node) -> Iterator[ir.Node]:
    for _, body in subgraphs_of(node):
        for inner in body:
            if not is_conversion(inner) and inner.op_type != "Constant":
                yield inner
            yield from _nodes_of_bodies(inner)


def name_unit(cut: Cut) -> tuple[str, str]:
    """Return the name and op that a user knows a unit by: those of the float model's node."""
    main = cut.main
    assert main is not None
    op = float_op_type(main)
    named = [node for node in cut.float_nodes if main.name and node.name == main.name]
    same = [node for node in cut.float_nodes if node.op_type == op]
    original = next(iter([*named, *reversed(same)]), cut.float_main)
    if original is None:
        return main.name or cut.name, op
    return original.name or main.name or cut.name, original.op_type


def _shown_nodes(units: Units, mains: dict[ir.Node, Cut]) -> set[ir.Node]:
    inside = {node for cut in mains.values() for node in _as_one(cut)}
    known = {node.name for node in units.float_model.graph}
    known |= {value.name for node in units.float_model.graph for value in node.outputs}
    return {
        node
        for node in units.quantized.graph
        if node in mains
        or (
            not (is_conversion(node) or node in inside)
            and (node.name in known or node.outputs[0].name in known)
        )
    }


def _as_one(cut: Cut) -> list[ir.Node]:
    """Return the nodes from a unit's main node on, which the runtime computes together."""
    working = [node for node in cut.nodes if not is_conversion(node)]
    main = cut.main
    return working[working.index(main) :] if main in working else working


def _depths(model: ir.Model, counted: Iterable[ir.Node]) -> dict[ir.Node, int]:
    """Return how many of the counted nodes the longest way to each node has."""
    steps = dict.fromkeys(counted, 1)
    depths: dict[ir.Node, int] = {}
    for node in model.graph:
        makers = [value.producer() for value in outer_inputs(node)]
        depths[node] = max(
            (depths[maker] + steps.get(maker, 0) for maker in makers if maker in depths), default=0
        )
    return depths


def weight_errors(units: Units) -> dict[str, float]:
    """Return float weight -> SQNR in dB of what the quantized model has in its place."""
    errors: dict[str, float] = {}
    for cut in units.cuts:
        main, original = cut.main, cut.float_main
        if main is None or original is None:
            continue
        ops = {float_op_type(main), original.op_type}
        if len(ops) > 1 and not ops <= MATRIX_PRODUCTS:
            continue  # a Gemm may become a product with a bias of its own
        if any(node.op_type == "BatchNormalization" for node in cut.float_nodes):
            continue  # it may be folded into the weight, which then is another
        restored = units.graph.weights_of(main)
        if main.op_type == "MatMulNBits" and original.attributes.get_int("transB", 0) == 1:
            restored = [array.T if array.ndim == 2 else array for array in restored]
        for value in original.inputs:
            weight = float_constant_of(value)
            if value is None or weight is None or weight.ndim < 2 or value.name in errors:
                continue
            same = next((array for array in restored if array.shape == weight.shape), None)
            if same is not None:
                errors[value.name or ""] = decibels(*signal_and_noise([weight], [same]))
    return errors
