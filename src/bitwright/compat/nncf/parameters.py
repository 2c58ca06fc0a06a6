"""Options of NNCF by name: presets, kinds of drops, and parts of a model that stay float."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from bitwright.errors import RecipeError
from bitwright.recipe import Selection

__all__ = [
    "DropType",
    "IgnoredScope",
    "ModelType",
    "QuantizationPreset",
    "Subgraph",
    "TargetDevice",
    "ValidationError",
    "selection_of",
]


class ValidationError(RecipeError):
    """An ignored scope names something that the model does not have.

    >>> issubclass(ValidationError, RecipeError)
    True
    """


class DropType(StrEnum):
    """Whether a drop is in the metric's own units, or a share of the float model's metric."""

    ABSOLUTE = "absolute"
    RELATIVE = "relative"


class QuantizationPreset(StrEnum):
    """Symmetric activations, or asymmetric ones; weights are symmetric in both."""

    PERFORMANCE = "performance"
    MIXED = "mixed"


class ModelType(StrEnum):
    """What kind of model it is."""

    TRANSFORMER = "transformer"


class TargetDevice(StrEnum):
    """Where the model is to run."""

    ANY = "ANY"
    CPU = "CPU"
    GPU = "GPU"
    NPU = "NPU"
    CPU_SPR = "CPU_SPR"


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
