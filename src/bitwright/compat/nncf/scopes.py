"""`nncf.scopes`: parts of a model that stay float."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from bitwright.compat.nncf.errors import ValidationError
from bitwright.errors import RecipeError, did_you_mean
from bitwright.graph import load_model
from bitwright.recipe import Selection


@dataclass
class Subgraph:
    """All nodes on a way from one of the inputs to one of the outputs, which are nodes too."""

    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)


@dataclass
class IgnoredScope:
    """Nodes that stay float: by name, by a pattern that fits the beginning of it, by type.

    >>> selection_of(IgnoredScope(names=["fc"], patterns=["head"], types=["Mul"])).exclude
    ('fc', 're:(?:head).*')
    """

    names: list[str] = field(default_factory=list)
    patterns: list[str] = field(default_factory=list)
    types: list[str] = field(default_factory=list)
    subgraphs: list[Subgraph] = field(default_factory=list)
    validate: bool = True


def selection_of(scope: IgnoredScope | None) -> Selection:
    """Return which nodes a scope leaves out."""
    scope = scope or IgnoredScope()
    patterns = (f"re:(?:{pattern}).*" for pattern in scope.patterns)
    return Selection(
        exclude=(*scope.names, *patterns),
        exclude_op_types=tuple(scope.types),
        exclude_between=tuple((tuple(s.inputs), tuple(s.outputs)) for s in scope.subgraphs),
        unknown_names="refuse" if scope.validate else "warn",
    )


@contextmanager
def naming_the_scope(scope: IgnoredScope | None, model: Any) -> Iterator[None]:
    """Say of names and types that the model does not have that they are in the ignored scope."""
    if scope is not None and scope.validate:
        types = {node.op_type for node in load_model(model).graph.all_nodes()}
        for op_type in scope.types:
            if op_type not in types:
                raise ValidationError(
                    f"ignored_scope: no node is a {op_type}.{did_you_mean(op_type, types)}"
                )
    try:
        yield
    except RecipeError as error:
        if scope is not None and str(error).startswith(("exclude", "unknown op type")):
            raise ValidationError(f"ignored_scope: {error}") from error
        raise
