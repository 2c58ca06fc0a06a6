"""Which nodes the recipe selects, and the reason for each one that it does not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import onnx
import onnx_ir as ir

from bitwright.decide.layout.node_names import NodeNames, suggest_name
from bitwright.decide.ops import DEFAULT_OP_TYPES, RULES
from bitwright.errors import RecipeError, did_you_mean
from bitwright.graph import reach, subgraphs_of
from bitwright.recipe import Selection
from bitwright.support.wording import warn_user


class Selector:
    """Answers for each node whether the recipe's `select` section lets it be quantized."""

    def __init__(
        self,
        nodes: Sequence[ir.Node],
        select: Selection,
        defaults: frozenset[str] = DEFAULT_OP_TYPES,
    ) -> None:
        self._only_warns = select.unknown_names == "warn"
        # The tools that only warn of unknown names know neither modules nor op types here.
        self._names = NodeNames(nodes, only_names=self._only_warns)
        named = self._check_op_types(select, {node.op_type for node in nodes})
        self._op_types = (defaults if named is None else named) | {*select.more_op_types}
        self._excluded_types = frozenset(select.exclude_op_types)
        self._only = None if select.nodes is None else self.find(select.nodes, "nodes")
        self._excluded = self.find(select.exclude, "exclude")
        self._enclosed: frozenset[str] = frozenset().union(
            *(self._between(first, last) for first, last in select.exclude_between)
        )
        readers = _by_tensor(nodes, lambda node: node.inputs)
        starts = self.find(select.input_nodes, "input_nodes", readers)
        writers = _by_tensor(nodes, lambda node: node.outputs)
        self.ends = self.find(select.output_nodes, "output_nodes", writers)
        """The nodes that `output_nodes` names."""
        self._downstream = self._reach(starts, ir.Node.successors) if starts else None
        self._upstream = self._reach(self.ends, ir.Node.predecessors) if self.ends else None

    def kept_float(self, node: ir.Node) -> str | None:
        """Return why this node must read and write float because the user named it, or None."""
        name = node.name or ""
        if name in self._excluded:
            return "it is excluded by name"
        if node.op_type in self._excluded_types:
            return f"{node.op_type} is excluded by type"
        if name in self._enclosed:
            return "it lies in a part that is excluded"
        if self._only is not None and name not in self._only:
            return "it is not in the list of nodes to quantize"
        if self._downstream is not None and name not in self._downstream:
            return "it does not lie behind input_nodes"
        if self._upstream is not None and name not in self._upstream:
            return "it does not lie before output_nodes"
        return None

    def not_chosen(self, node: ir.Node) -> str | None:
        """Return why this op type is not quantized, or None if it is."""
        if node.op_type in self._op_types:
            return None
        if node.op_type in RULES:
            return f"{node.op_type} is not among the op types to quantize"
        bodies = [body for _, body in subgraphs_of(node)]
        if bodies:
            reached = any(
                (inner.name or "") in self._names.by_name for body in bodies for inner in body
            )
            inside = "" if reached else "; select.subgraphs quantizes inside them"
            return f"{node.op_type} only runs the graphs inside it{inside}"
        return f"there is no rule for {node.op_type}; name it in op_types to quantize it anyway"

    def find(
        self,
        patterns: Iterable[str],
        option: str,
        tensors: Mapping[str, frozenset[str]] | None = None,
    ) -> frozenset[str]:
        """Return the names of the nodes meant; `tensors` has those that a tensor stands for."""
        stands_for = tensors or {}
        found: set[str] = set()
        for pattern in patterns:
            matches = self._names.find(pattern) or stands_for.get(pattern, frozenset())
            if not matches:
                what = "node" if tensors is None else "node or tensor"
                fits = f"{what} fits" if pattern.startswith("re:") else f"{what} is called"
                hint = suggest_name(pattern, {*self._names.known, *stands_for})
                self._refuse(f"{option}: no {fits} {pattern!r}.{hint}")
            found |= matches
        return frozenset(found)

    def rank(self, pattern: str) -> int:
        """Return how closely a name describes its nodes: an op type least, their name most."""
        return self._names.rank(pattern)

    def _refuse(self, sentence: str) -> None:
        if not self._only_warns:
            raise RecipeError(sentence)
        warn_user(f"ignored: {sentence}")

    def _check_op_types(self, select: Selection, present: set[str]) -> frozenset[str] | None:
        """Return the named op types; a name that no operator has is a spelling mistake."""
        named = (*(select.op_types or ()), *select.more_op_types, *select.exclude_op_types)
        if named:
            known = present | RULES.keys() | {s.name for s in onnx.defs.get_all_schemas()}
            for op_type in named:
                if op_type not in known:
                    self._refuse(f"unknown op type {op_type!r}.{did_you_mean(op_type, known)}")
        return None if select.op_types is None else frozenset(select.op_types)

    def _between(self, first: Iterable[str], last: Iterable[str]) -> frozenset[str]:
        """Return the nodes on a way from one of the first to one of the last, ends included."""
        starts = self.find(first, "exclude_between")
        ends = self.find(last, "exclude_between")
        enclosed = self._reach(starts, ir.Node.successors) & self._reach(ends, ir.Node.predecessors)
        if not enclosed:
            raise RecipeError(
                f"exclude_between: no way leads from {', '.join(sorted(starts))} to "
                f"{', '.join(sorted(ends))}; give the first nodes of the part, then its last ones."
            )
        return enclosed

    def _reach(
        self, starts: frozenset[str], step: Callable[[ir.Node], Iterable[ir.Node]]
    ) -> frozenset[str]:
        nodes = reach((self._names.by_name[name] for name in starts), step)
        return frozenset(node.name or "" for node in nodes)


def _by_tensor(
    nodes: Sequence[ir.Node], values_of: Callable[[ir.Node], Iterable[ir.Value | None]]
) -> dict[str, frozenset[str]]:
    """Return the names of the nodes that have a tensor on one of their sides, by its name."""
    found: dict[str, set[str]] = {}
    for node in nodes:
        for value in values_of(node):
            if value is not None and value.name:
                found.setdefault(value.name, set()).add(node.name or "")
    return {tensor: frozenset(names) for tensor, names in found.items()}
