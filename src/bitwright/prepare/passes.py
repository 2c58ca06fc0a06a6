"""The contract of a pass: it changes a model in place and returns counts of changes and notes.

`Builder` adds what replaces a node right before it, so that a graph stays sorted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from functools import update_wrapper
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from bitwright.graph import (
    NameScope,
    add_initializer,
    graph_of,
    insert_before,
    iter_graphs,
    remove_nodes,
    replace_value,
)


class PassResult(NamedTuple):
    """What a pass did to a model."""

    changed: int = 0
    """How many places it changed."""
    notes: tuple[str, ...] = ()
    """A sentence for each place that it had to leave."""


class Pass(NamedTuple):
    """A pass, and how to report what it did."""

    run: Callable[[ir.Model], PassResult]
    sentence: str
    """Holds {} for the number of changes; an s behind it makes it many."""
    option: str = ""
    """The option that asks for it; "": it always runs."""

    def report(self, result: PassResult) -> list[str]:
        """Return what it did as sentences."""
        plural = "" if result.changed == 1 else "s"
        done = [self.sentence.format(result.changed) + plural] if result.changed else []
        return [*done, *result.notes]


def run_passes(model: ir.Model, passes: Sequence[Pass], options: object = None) -> list[str]:
    """Run the passes that `options` asks for, one after the other; return what they did."""
    return [
        sentence
        for step in passes
        if not step.option or getattr(options, step.option)
        for sentence in step.report(step.run(model))
    ]


def run_until_stable(model: ir.Model, passes: Sequence[Pass]) -> list[str]:
    """Run passes again and again until none of them finds anything more; return what they did."""
    totals = [0] * len(passes)
    while any(found := [step.run(model).changed for step in passes]):
        totals = [sum(pair) for pair in zip(totals, found, strict=True)]
    reports = (step.report(PassResult(n)) for step, n in zip(passes, totals, strict=True))
    return [sentence for report in reports for sentence in report]


class Scope(NameScope):
    """The names of a model whose nodes are rewritten, and the opset that they are of."""

    def __init__(self, model: ir.Model) -> None:
        super().__init__(model)
        self.opset = model.opset_imports.get("", 0)


Rewrite = Callable[[ir.Node, Scope], bool | str]
"""Returns whether it changed a node, or the reason why it had to leave it."""


def rewrites(
    *op_types: str, since: int = 0, domain: str = "", stays: str = ""
) -> Callable[[Rewrite], Callable[[ir.Model], PassResult]]:
    """Make a pass of the rewrite of one node; see `rewrite_nodes`."""

    def make_pass(rewrite: Rewrite) -> Callable[[ir.Model], PassResult]:
        def run(model: ir.Model) -> PassResult:
            return rewrite_nodes(model, op_types, rewrite, since=since, domain=domain, stays=stays)

        return update_wrapper(run, rewrite, ("__doc__", "__name__", "__module__", "__qualname__"))

    return make_pass


def rewrite_nodes(
    model: ir.Model,
    op_types: Collection[str],
    rewrite: Rewrite,
    *,
    since: int = 0,
    domain: str = "",
    stays: str = "",
) -> PassResult:
    """Offer each node of these types to a rewrite, at every level of the model.

    Models of an opset before `since` are left alone: before 7, arithmetic did not broadcast, but
    aligned by an attribute. `stays` is what a note says of the node {0} before the reason.
    """
    names = Scope(model)
    if names.opset < since:
        return PassResult()
    changed, notes = 0, []
    for _, graph in iter_graphs(model):
        for node in list(graph):
            if node.domain != domain or node.op_type not in op_types or node.graph is not graph:
                continue  # the last of these: it is gone with another one
            result = rewrite(node, names)
            if isinstance(result, str):
                notes.append(f"{stays.format(node)}: {result}" if stays else result)
            else:
                changed += result
    return PassResult(changed, tuple(notes))


class Builder:
    """Adds nodes, one after the other, right before a node of a graph."""

    def __init__(self, before: ir.Node, names: NameScope, *, role: str = "") -> None:
        self._before = before
        self._graph = graph_of(before.outputs[0])
        self._names = names
        self._role = role

    def constant(self, array: npt.ArrayLike, name: str) -> ir.Value:
        """Add an initializer to the graph."""
        return add_initializer(self._graph, self._names, name, np.asarray(array))

    def add(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        name: str,
        attributes: Mapping[str, Any] | None = None,
        *,
        node_name: str | None = None,
        shape: ir.Shape | None = None,
    ) -> ir.Value:
        """Add a node with one output of the type of its first input, and return that output."""
        fresh = self._names.fresh(name)
        first = inputs[0]
        output = ir.Value(name=fresh, type=None if first is None else copy(first.type), shape=shape)
        node_name = node_name or self._names.fresh(f"{fresh}_{op_type}")
        insert_before(self._before, op_type, inputs, output, node_name, attributes)
        producer = output.producer()
        if self._role and producer is not None:
            producer.metadata_props["bitwright.role"] = self._role
        return output

    def replace(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        end: str,
        attributes: Mapping[str, Any] | None = None,
        unread: Iterable[ir.Node] = (),
    ) -> None:
        """Put one node, of the same name, in the node's place; see `finish`."""
        name, label = self._before.name, f"{self._before.outputs[0].name}{end}"
        self.finish(self.add(op_type, inputs, label, attributes, node_name=name), *unread)

    def finish(self, last: ir.Value, *unread: ir.Node) -> None:
        """Let the last new tensor take the place of what the node writes, and remove the node.

        Nodes that only it read go too, readers before producers; the node may be among them.
        """
        replace_value(self._before.outputs[0], last)
        remove_nodes(dict.fromkeys([self._before, *unread]))
