"""The nodes that a name in a recipe stands for, and what was meant by one that fits nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import onnx_ir as ir

from bitwright.errors import did_you_mean

# Where torch's exporter writes the modules around a node, the node's own name last.
_SCOPES = "pkg.torch.onnx.name_scopes"
_PATTERN_SIGNS = re.compile(r"[*?+|()\[\]{}^$\\]")


class NodeNames:
    """Nodes by name, by torch module, by op type, and by `re:...` over names and modules."""

    def __init__(self, nodes: Iterable[ir.Node], *, only_names: bool = False) -> None:
        self.by_name = {node.name or "": node for node in nodes}
        self._types: dict[str, set[str]] = {}
        self._modules: dict[str, set[str]] = {}
        for name, node in {} if only_names else self.by_name.items():
            self._types.setdefault(node.op_type, set()).add(name)
            around = re.findall(r"'([^']*)'", node.metadata_props.get(_SCOPES, ""))[:-1]
            for module in [module for module in around if module][-1:]:
                self._modules.setdefault(module, set()).add(name)

    def find(self, pattern: str) -> frozenset[str]:
        """Return the names of the nodes meant, none where the name fits nothing."""
        return next(filter(None, self._meanings(pattern)), frozenset())

    def rank(self, pattern: str) -> int:
        """Return how closely a name describes its nodes: an op type least, their name most."""
        found = [bool(names) for names in self._meanings(pattern)]
        return len(found) - found.index(True) if any(found) else 0

    def _by_pattern(self, pattern: str) -> frozenset[str]:
        if not pattern.startswith("re:"):
            return frozenset()
        inside = find_names(pattern, self._modules)
        within = (name for module in inside for name in self._modules[module])
        return find_names(pattern, self.by_name) | frozenset(within)

    def _meanings(self, name: str) -> Iterator[frozenset[str]]:
        """Yield the nodes of this name, module, pattern and op type, the closest meaning first."""
        yield frozenset({name} & self.by_name.keys())
        inside = (m for m in self._modules if m == name or m.startswith(f"{name}."))
        yield frozenset(node for module in inside for node in self._modules[module])
        yield self._by_pattern(name)
        yield frozenset(self._types.get(name, ()))

    @property
    def known(self) -> set[str]:
        """Every name, module and op type."""
        return {*self.by_name, *self._modules, *self._types}


def find_names(pattern: str, names: Iterable[str]) -> frozenset[str]:
    """Return the names that a name or a pattern written `re:...` fits as a whole."""
    if not pattern.startswith("re:"):
        return frozenset(name for name in names if name == pattern)
    expression = re.compile(pattern[3:])
    return frozenset(name for name in names if expression.fullmatch(name))


def suggest_name(pattern: str, known: Iterable[str]) -> str:
    """Return " Did you mean 're:...'?" for a pattern without `re:`, else what is spelt alike."""
    names = sorted(known)
    if pattern.startswith("re:"):
        wider = _first_fitting([f"re:{w}" for w in _widened(pattern[3:])], names)
        return f" A pattern fits whole names; did you mean {wider!r}?" if wider else ""
    if _PATTERN_SIGNS.search(pattern):
        glob = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
        meant = _first_fitting([f"re:{p}" for p in (pattern, glob, *_widened(pattern))], names)
        return f" Did you mean {meant!r}?" if meant else " Write a pattern as re:..."
    plain = did_you_mean(pattern, names)
    if "Did you mean" in plain:
        return plain
    meant = _first_fitting([f"re:{w}" for w in _widened(re.escape(pattern))], names)
    return f" Did you mean {meant!r}?" if meant else plain


def _widened(expression: str) -> Sequence[str]:
    """Return expressions that also fit what goes on behind, before, or on both sides."""
    return f"{expression}.*", f".*{expression}", f".*{expression}.*"


def _first_fitting(patterns: Iterable[str], names: Sequence[str]) -> str | None:
    for pattern in patterns:
        try:
            if find_names(pattern, names):
                return pattern
        except re.error:
            continue
    return None
