"""Rules about operators, whether quantized or not: which there are, their shapes and attributes."""

from __future__ import annotations

from bitwright.targets.rules.rule import Rule

__all__ = [
    "AbsentInputs",
    "AttributeSets",
    "AttributeValues",
    "ConstantInputs",
    "IndexValues",
    "InputCount",
    "KeptAxes",
    "KnownOperators",
    "LastAxis",
    "OddValues",
    "Rank",
    "RefusedOperators",
    "StaticShapes",
    "VectorInputs",
]


class KnownOperators(Rule, frozen=True, kw_only=True, tag="known_operators"):
    """The operators that there are; all others leave the accelerator."""

    ops: tuple[str, ...]


class RefusedOperators(Rule, frozen=True, kw_only=True, tag="refused_operators"):
    """Operators that must not be there."""

    ops: tuple[str, ...]


class StaticShapes(Rule, frozen=True, kw_only=True, tag="static_shapes"):
    """Every dimension of every tensor is a number."""


class Rank(Rule, frozen=True, kw_only=True, tag="rank"):
    """How many axes the first input of an operator has."""

    ops: tuple[str, ...]
    low: int = 0
    high: int


class InputCount(Rule, frozen=True, kw_only=True, tag="input_count"):
    """How many inputs an operator has."""

    ops: tuple[str, ...]
    count: int


class ConstantInputs(Rule, frozen=True, kw_only=True, tag="constant_inputs"):
    """Inputs that are constants: shapes, axes, pads."""

    inputs: dict[str, tuple[int, ...]]


class AttributeValues(Rule, frozen=True, kw_only=True, tag="attribute_values"):
    """What an attribute of some operators may be; each number of it, where it has several."""

    ops: tuple[str, ...]
    attribute: str
    values: tuple[int | float | str, ...]


class LastAxis(Rule, frozen=True, kw_only=True, tag="last_axis"):
    """Operators that work along the last axis only."""

    ops: tuple[str, ...]


class AttributeSets(Rule, frozen=True, kw_only=True, tag="attribute_sets"):
    """Attributes that go together; what is not written has ONNX's default."""

    ops: tuple[str, ...]
    when: dict[str, str | int]
    """Only of nodes with these values."""
    sets: tuple[dict[str, str | int], ...]
    """One of these has to fit."""


class OddValues(Rule, frozen=True, kw_only=True, tag="odd_values"):
    """An attribute of some operators is an odd number."""

    ops: tuple[str, ...]
    attribute: str


class AbsentInputs(Rule, frozen=True, kw_only=True, tag="absent_inputs"):
    """Optional inputs that are not there."""

    inputs: dict[str, tuple[int, ...]]


class IndexValues(Rule, frozen=True, kw_only=True, tag="index_values"):
    """Constant indices that do not count from the end."""

    inputs: dict[str, int]
    """Operator -> the input that holds the indices."""


class KeptAxes(Rule, frozen=True, kw_only=True, tag="kept_axes"):
    """Axes along which an operator leaves the size as it is."""

    ops: tuple[str, ...]
    axes: tuple[int, ...]


class VectorInputs(Rule, frozen=True, kw_only=True, tag="vector_inputs"):
    """Inputs of one axis, as long as the result's last; other axes before it have the size 1."""

    inputs: dict[str, int]
    """Operator -> the input."""
