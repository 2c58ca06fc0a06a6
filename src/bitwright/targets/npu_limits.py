"""What the NPU's shifters allow of fixed-point positions: every inequality, in one place.

A tensor at position p has the scale 2**-p. The NPU moves integers from one position to another by
shifting, and its shifters have so many bits and no more. Every limit is a bound on a sum of
positions; the stage that decides keeps them, and `verify` checks them, both from this table.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

__all__ = ["LIMIT_RULES", "Bound", "LimitRule", "NpuOperation", "Positions", "Ref", "bounds_of"]

Ref = str
"""What names a scale: an entry of a plan, an initializer of a model."""
Positions = Mapping[Ref, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class NpuOperation:
    """One operation of the NPU, with the scales at its edges; None where one is unknown.

    >>> NpuOperation(op="Conv", inputs=("x",), weight="w", output="y").bias is None
    True
    """

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


@dataclass(frozen=True, slots=True)
class LimitRule:
    """One limit: the ops that have it, and the bounds that it sets at an operation.

    >>> [rule.name for rule in LIMIT_RULES if "Conv" in rule.ops]
    ['shift_cut', 'shift_bias']
    """

    name: str
    """As the switch of the recipe's `limits` is called."""
    ops: tuple[str, ...]
    bounds_at: Callable[[NpuOperation, Ref, Positions], Iterable[Bound]]

    def bounds(self, operation: NpuOperation, positions: Positions) -> list[Bound]:
        """Return the bounds at an operation; none for other ops, or where a position is missing."""
        if operation.op not in self.ops:
            return []
        if operation.output is None or not operation.known:
            return []
        if not {*operation.known, operation.output} <= positions.keys():
            return []
        return list(self.bounds_at(operation, operation.output, positions))


def bounds_of(
    operations: Iterable[NpuOperation], rules: Iterable[LimitRule], positions: Positions
) -> Iterator[Bound]:
    """Return the bounds that rules set at all of these operations."""
    for operation, rule in itertools.product(operations, rules):
        yield from rule.bounds(operation, positions)


def _same_as_output(operation: NpuOperation, output: Ref, positions: Positions) -> Iterable[Bound]:
    for ref in operation.known:
        yield Bound("input - output", ((ref, 1), (output, -1)), 0, 0, (ref, output))


def _shift_read(operation: NpuOperation, output: Ref, positions: Positions) -> Iterable[Bound]:
    first, second = operation.known
    yield Bound("input 0 - input 1", ((first, 1), (second, -1)), -7, 7, (first, second))


def _shift_write(operation: NpuOperation, output: Ref, positions: Positions) -> Iterable[Bound]:
    if operation.op == "Add":
        coarsest = min(operation.known, key=lambda ref: positions[ref])
        terms = ((coarsest, 1), (output, -1))
        yield Bound("coarsest input - output", terms, -7, 25, (output,))
    else:
        yield _product(operation, output, 32)


def _shift_swish(operation: NpuOperation, output: Ref, positions: Positions) -> Iterable[Bound]:
    if operation.swish:
        yield _product(operation, output, 15)


def _product(operation: NpuOperation, output: Ref, high: int) -> Bound:
    terms = (*((ref, 1) for ref in operation.known), (output, -1))
    return Bound("sum of inputs - output", terms, 0, high, (output,))


def _shift_cut(operation: NpuOperation, output: Ref, positions: Positions) -> Iterable[Bound]:
    if operation.weight is not None and operation.weight in positions:
        terms = ((operation.weight, 1), (operation.known[0], 1), (output, -1))
        yield Bound("weight + input - output", terms, 0, 16, (operation.weight,))


def _shift_bias(operation: NpuOperation, output: Ref, positions: Positions) -> Iterable[Bound]:
    if operation.weight is None or operation.bias is None:
        return
    if not {operation.weight, operation.bias} <= positions.keys():
        return
    accumulator = positions[operation.weight] + positions[operation.known[0]]
    # The accumulator has 24 bits, of which the result takes 8 above the shift behind it.
    low = min(0, accumulator - positions[output] - 16)
    terms = ((operation.weight, 1), (operation.known[0], 1), (operation.bias, -1))
    low = 0 if operation.leaky else low
    yield Bound("weight + input - bias", terms, low, 15, (operation.bias,))


def _hard_sigmoid(operation: NpuOperation, output: Ref, positions: Positions) -> Iterable[Bound]:
    source = operation.known[0]
    yield Bound("input", ((source, 1),), 0, 15, (source,))
    yield Bound("output", ((output, 1),), 7, None, (output,))
    yield Bound("input - output", ((source, 1), (output, -1)), -14, None, (output,))


# In this order: what aligns tensors comes before what depends on their positions, and weights and
# biases, which nothing else reads, give way last.
LIMIT_RULES = (
    LimitRule("align_concat", ("Concat",), _same_as_output),
    LimitRule("align_pool", ("MaxPool", "AveragePool", "GlobalAveragePool"), _same_as_output),
    LimitRule("align_pad", ("Pad",), _same_as_output),
    LimitRule("align_slice", ("Slice",), _same_as_output),
    LimitRule("shift_read", ("Add", "Sub"), _shift_read),
    LimitRule("shift_write", ("Add", "Mul"), _shift_write),
    LimitRule("shift_cut", ("Conv", "Gemm"), _shift_cut),
    LimitRule("shift_bias", ("Conv", "Gemm"), _shift_bias),
    LimitRule("hard_sigmoid", ("HardSigmoid",), _hard_sigmoid),
    LimitRule("shift_swish", ("Mul",), _shift_swish),
)
