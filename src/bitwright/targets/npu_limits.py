"""Limits of the NPU's shifters: inequalities of fixed-point positions, from a target's file.

A tensor at position p has the scale 2**-p. The NPU moves integers from one position to another by
shifting, and its shifters have so many bits and no more. Every limit is a bound on a sum of
positions; the stage that decides keeps them, and `verify` checks them, both from one table.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from bitwright.errors import TargetError, did_you_mean

Ref = str
"""What names a scale: an entry of a plan, an initializer of a model."""
Positions = Mapping[Ref, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class NpuOperation:
    """One operation of the NPU, with the scales at its edges; None where one is unknown."""

    op: str
    inputs: tuple[Ref | None, ...]
    weight: Ref | None = None
    bias: Ref | None = None
    output: Ref | None = None
    leaky: bool = False
    """A LeakyRelu is computed with it."""
    swish: bool = False
    """A Mul of a tensor with the hard sigmoid of the same tensor."""

    @property
    def known(self) -> tuple[Ref, ...]:
        """The scales of its inputs, each if every one is known."""
        found = tuple(ref for ref in self.inputs if ref is not None)
        return found if len(found) == len(self.inputs) else ()


@dataclass(frozen=True, slots=True)
class Bound:
    """One inequality: low <= sum of (sign x position) <= high.

    >>> bound = Bound("weight + input - output", (("w", 1), ("x", 1), ("y", -1)), 0, 16, ("w",))
    >>> bound.value({"w": 9, "x": 5, "y": 4}), bound.holds({"w": 18, "x": 6, "y": 0})
    (10, False)
    """

    label: str
    terms: tuple[tuple[Ref, int], ...]
    low: int | None
    high: int | None
    moves: tuple[Ref, ...]
    """The scale that gives way; of two, the finer one."""

    def value(self, positions: Positions) -> int:
        """Return the sum that is bounded."""
        return sum(sign * positions[ref] for ref, sign in self.terms)

    def holds(self, positions: Positions) -> bool:
        """Return whether the sum lies within its bounds."""
        return not self.excess(positions)

    def excess(self, positions: Positions) -> int:
        """Return how far the sum lies above its upper bound, or (negative) below its lower one."""
        value = self.value(positions)
        if self.high is not None and value > self.high:
            return value - self.high
        return min(value - self.low, 0) if self.low is not None else 0

    @property
    def allowed(self) -> str:
        """The bounds in words."""
        if self.low == self.high:
            return f"must be {self.low}"
        if self.high is None:
            return f"must be at least {self.low}"
        if self.low is None:
            return f"must be at most {self.high}"
        return f"must lie in {self.low}..{self.high}"


class LowerEnd(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A lower bound that depends on other positions: their sum, less a number of bits."""

    sum: str
    less: int = 0

    def __post_init__(self) -> None:
        _parse(self.sum)


class LimitBound(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One inequality as a file has it: a sum of positions by their names, and its ends.

    >>> LimitBound(sum="weight + input - output", low=0, high=16, gives_way=("weight",)).high
    16
    >>> LimitBound(sum="weigth - output", gives_way=("output",))
    Traceback (most recent call last):
    bitwright.errors.TargetError: 'weigth - output' names no position 'weigth'. Did you mean \
'weight'?
    """

    sum: str
    low: int | None = None
    high: int | None = None
    gives_way: tuple[str, ...]
    """The scale that is moved; of two, the finer one."""
    ops: tuple[str, ...] = ()
    """Only of these operators of the rule; none given: of all."""
    only_swish: bool = False
    """Only at a Mul with the hard sigmoid of what it multiplies."""
    lower_without_leaky: LowerEnd | None = None
    """How much lower the sum may be where no LeakyRelu is computed with the operation."""

    def __post_init__(self) -> None:
        for text in (self.sum, *self.gives_way):
            _parse(text)

    def at(self, operation: NpuOperation, positions: Positions) -> Iterator[Bound]:
        """Return the bounds at an operation whose inputs and output have positions."""
        if (self.ops and operation.op not in self.ops) or (self.only_swish and not operation.swish):
            return
        for source in operation.known if "each input" in self.sum else operation.known[:1]:
            terms = _terms(self.sum, operation, source, positions)
            if terms is None:
                continue
            low = self.low
            if self.lower_without_leaky is not None and low is not None and not operation.leaky:
                reach = _terms(self.lower_without_leaky.sum, operation, source, positions) or ()
                total = sum(sign * positions[ref] for ref, sign in reach)
                low = min(low, total - self.lower_without_leaky.less)
            moves = [_terms(name, operation, source, positions) or () for name in self.gives_way]
            label = self.sum.replace("each ", "")
            refs = tuple(ref for found in moves for ref, _ in found)
            yield Bound(label, terms, low, self.high, refs)


class LimitRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One limit: the ops that have it, and the bounds that it sets at an operation.

    >>> from bitwright.targets import NPU_CNN
    >>> [rule.name for rule in NPU_CNN.limits if "Conv" in rule.ops]
    ['shift_cut', 'shift_bias']
    """

    name: str
    """As the switch of the recipe's `limits` is called."""
    ops: tuple[str, ...]
    bounds_at: tuple[LimitBound, ...] = msgspec.field(name="bounds")

    def bounds(self, operation: NpuOperation, positions: Positions) -> list[Bound]:
        """Return the bounds at an operation; none for other ops, or where a position is missing."""
        if operation.op not in self.ops:
            return []
        if operation.output is None or not operation.known:
            return []
        if not {*operation.known, operation.output} <= positions.keys():
            return []
        return [bound for given in self.bounds_at for bound in given.at(operation, positions)]


def bounds_of(
    operations: Iterable[NpuOperation], rules: Iterable[LimitRule], positions: Positions
) -> Iterator[Bound]:
    """Return the bounds that rules set at all of these operations."""
    for operation, rule in itertools.product(operations, rules):
        yield from rule.bounds(operation, positions)


_NAMES = (
    "input",
    "each input",
    "input 0",
    "input 1",
    "coarsest input",
    "sum of inputs",
    "weight",
    "bias",
    "output",
)


@functools.cache
def _parse(text: str) -> tuple[tuple[str, int], ...]:
    """Return the names of a sum of positions with their signs.

    >>> _parse("weight + input - output")
    (('weight', 1), ('input', 1), ('output', -1))
    """
    parts = re.split(r" ([+-]) ", f" + {text}")[1:]
    terms = [
        (name, 1 if sign == "+" else -1) for sign, name in zip(parts[::2], parts[1::2], strict=True)
    ]
    for name, _ in terms:
        if name not in _NAMES:
            said = f"{text!r} names no position {name!r}.{did_you_mean(name, _NAMES)}"
            raise TargetError(said)
    return tuple(terms)


def _terms(
    text: str, operation: NpuOperation, source: Ref, positions: Positions
) -> tuple[tuple[Ref, int], ...] | None:
    """Return the scales of a sum at an operation; None where it has one of them not."""
    found: list[tuple[Ref | None, int]] = []
    known = operation.known
    for name, sign in _parse(text):
        match name:
            case "input" | "each input":
                found.append((source, sign))
            case "input 0" | "input 1":
                found.append((known[int(name[-1])] if len(known) > int(name[-1]) else None, sign))
            case "coarsest input":
                found.append((min(known, key=lambda ref: positions[ref]), sign))
            case "sum of inputs":
                found += [(ref, sign) for ref in known]
            case _:
                found.append((getattr(operation, name), sign))
    terms = tuple((ref, sign) for ref, sign in found if ref is not None and ref in positions)
    return terms if len(terms) == len(found) else None
