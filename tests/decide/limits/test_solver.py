"""Positions chosen together: every bound holds, and nothing moves that need not."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from bitwright.decide.limits.solver import solve_positions
from bitwright.targets import NPU_CNN
from bitwright.targets.npu_limits import NpuOperation

REFS = "abcdef"
POSITION = st.integers(-40, 60)


@st.composite
def operations(draw):
    ref = st.sampled_from(REFS)
    op = draw(st.sampled_from(sorted({op for rule in NPU_CNN.limits for op in rule.ops})))
    count = 2 if op in ("Add", "Sub", "Mul", "Concat") else 1
    weighs = op in ("Conv", "Gemm")
    return NpuOperation(
        op=op,
        inputs=tuple(draw(ref) for _ in range(count)),
        weight=draw(ref) if weighs else None,
        bias=draw(ref) if weighs else None,
        output=draw(ref),
        leaky=draw(st.booleans()),
        swish=draw(st.booleans()),
    )


def broken(found, positions):
    return [
        bound
        for operation in found
        for rule in NPU_CNN.limits
        for bound in rule.bounds(operation, positions)
        if not bound.holds(positions)
    ]


@settings(max_examples=300, deadline=None)
@given(st.lists(operations(), max_size=6), st.fixed_dictionaries(dict.fromkeys(REFS, POSITION)))
def test_every_bound_holds_at_the_solved_positions(found, wanted):
    positions = solve_positions(found, NPU_CNN.limits, wanted)
    assert positions.keys() == wanted.keys()
    assert not broken(found, positions)


@settings(max_examples=100, deadline=None)
@given(st.lists(operations(), max_size=4), st.fixed_dictionaries(dict.fromkeys(REFS, POSITION)))
def test_what_holds_already_stays(found, wanted):
    if not broken(found, wanted):
        assert solve_positions(found, NPU_CNN.limits, wanted) == wanted


@given(st.lists(operations(), max_size=8))
def test_every_limit_holds_where_all_positions_are_seven(found):
    assert not broken(found, dict.fromkeys(REFS, 7))
