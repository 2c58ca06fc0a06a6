"""Positions that hold every limit at once, by bounds propagation, for limits that conflict.

Raising a hard sigmoid's output to position 7 and lowering it to the rest of a Concat, say, goes on
for ever. All limits hold where every position is 7, so there is an answer; the one given here is
near the positions that were wanted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bitwright.targets.npu_limits import Bound, LimitRule, NpuOperation, Ref, bounds_of

# Where every limit holds whatever the graph.
_NEUTRAL = 7
# Exponents of normal numbers in float32, in which scales are stored.
_LOWEST, _HIGHEST = -126, 126


def solve_positions(
    operations: Sequence[NpuOperation], rules: Sequence[LimitRule], wanted: Mapping[Ref, int]
) -> dict[Ref, int]:
    """Return positions near the wanted ones at which every rule holds at every operation."""
    for relaxation in (0.0, 0.25, 0.5, 0.75):
        aims = {
            ref: round(position + relaxation * (_NEUTRAL - position))
            for ref, position in wanted.items()
        }
        found = _choose(list(bounds_of(operations, rules, aims)), aims)
        if found and all(bound.holds(found) for bound in bounds_of(operations, rules, found)):
            return found
    return dict.fromkeys(wanted, _NEUTRAL)


def _choose(bounds: Sequence[Bound], aims: Mapping[Ref, int]) -> dict[Ref, int] | None:
    """Fix each position in turn, as near to its aim as those before it allow; or None."""
    spans = dict.fromkeys(aims, (_LOWEST, _HIGHEST))
    about: dict[Ref, list[Bound]] = {ref: [] for ref in aims}
    for bound in bounds:
        for ref, _ in bound.terms:
            about[ref].append(bound)
    if not _narrow(spans, about, bounds):
        return None
    for ref, wanted in aims.items():
        low, high = spans[ref]
        chosen = min(max(wanted, low), high)
        spans[ref] = (chosen, chosen)
        if not _narrow(spans, about, about[ref]):
            return None
    return {ref: low for ref, (low, _) in spans.items()}


def _narrow(
    spans: dict[Ref, tuple[int, int]],
    about: Mapping[Ref, Sequence[Bound]],
    waiting: Iterable[Bound],
) -> bool:
    """Cut off what no choice of the others allows, until nothing changes; False: nothing left."""
    queue = list(waiting)
    while queue:
        bound = queue.pop()
        for ref in dict(bound.terms):
            ends = [[sign * end for end in spans[o]] for o, sign in bound.terms if o != ref]
            weight = sum(sign for other, sign in bound.terms if other == ref)
            least, most = sum(map(min, ends)), sum(map(max, ends))
            low, high = narrower = spans[ref]
            if bound.low is not None:
                narrower = _at_least(narrower, weight, bound.low - most)
            if bound.high is not None:
                narrower = _at_least(narrower, -weight, least - bound.high)
            if narrower[0] > narrower[1]:
                return False
            if narrower != (low, high):
                spans[ref] = narrower
                queue.extend(about[ref])
    return True


def _at_least(span: tuple[int, int], weight: int, least: int) -> tuple[int, int]:
    """Return the part of a span in which weight x position >= least."""
    low, high = span
    if weight > 0:
        return max(low, -(-least // weight)), high
    if weight < 0:
        return low, min(high, least // weight)
    return span
