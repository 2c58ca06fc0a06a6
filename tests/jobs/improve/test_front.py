"""The front is that of all combinations, as trying each of them shows."""

from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitwright.jobs.improve.front import (
    Choice,
    Edge,
    Option,
    _hull,
    find_front,
    find_within,
    thin_front,
)

figures = st.integers(0, 30).map(float)
option = st.builds(Option, st.just("s"), figures, figures, st.sampled_from(["float", "integers"]))
units = st.lists(st.lists(option, min_size=1, max_size=3), min_size=1, max_size=4)


def all_choices(given_units, edges=()):
    for states in product(*(range(len(options)) for options in given_units)):
        chosen = [options[state] for options, state in zip(given_units, states, strict=True)]
        converted = sum(e.cost for e in edges if chosen[e.first].form != chosen[e.second].form)
        yield (
            states,
            sum(one.cost for one in chosen) + converted,
            sum(one.error for one in chosen),
        )


@settings(max_examples=50, deadline=None)
@given(units)
def test_no_combination_is_better_than_a_point_of_the_front(given_units):
    everything = list(all_choices(given_units))
    for point in find_front(given_units):
        better = [
            1
            for _, cost, error in everything
            if cost <= point.cost and error <= point.error
            and (cost < point.cost or error < point.error)
        ]  # fmt: skip
        assert not better


@settings(max_examples=50, deadline=None)
@given(units, st.floats(0.01, 100))
def test_for_every_price_the_front_has_the_best_combination(given_units, price):
    best = min(cost + price * error for _, cost, error in all_choices(given_units))
    found = min(point.cost + price * point.error for point in find_front(given_units))
    assert found == pytest.approx(best)


@settings(max_examples=50, deadline=None)
@given(units)
def test_points_cost_more_and_lose_less_from_one_to_the_next(given_units):
    points = find_front(given_units)
    for one, other in pairwise(points):
        assert one.cost < other.cost
        assert one.error > other.error
    known = {states: (cost, error) for states, cost, error in all_choices(given_units)}
    assert all(known[p.states] == (p.cost, p.error) for p in points)


@settings(max_examples=50, deadline=None)
@given(units, st.data())
def test_with_conversions_costs_are_those_of_the_combination_and_the_cheapest_is_close(
    given_units, data
):
    places = st.integers(0, len(given_units) - 1)
    edges = data.draw(st.lists(st.builds(Edge, places, places, figures), max_size=5))
    edges = [edge for edge in edges if edge.first != edge.second]
    known = {states: (cost, error) for states, cost, error in all_choices(given_units, edges)}
    points = find_front(given_units, edges)
    assert all(known[p.states] == pytest.approx((p.cost, p.error)) for p in points)
    # Never worse than what neighbours were not looked at for.
    blind = [known[point.states] for point in find_front(given_units)]
    for cost, error in blind:
        assert any(p.cost <= cost and p.error <= error for p in points)


def test_a_cheap_unit_between_float_ones_becomes_float_with_them():
    loud = [Option("int8", 1, 10, "integers"), Option("float", 2, 0, "float")]
    quiet = [Option("int8", 1, 0.001, "integers"), Option("float", 1.5, 0, "float")]
    edges = [Edge(0, 1, 1.0), Edge(1, 2, 1.0)]
    states = {point.states for point in find_front([loud, quiet, loud], edges)}
    assert (1, 1, 1) in states
    assert (1, 0, 1) not in states


@settings(max_examples=200, deadline=None)
@given(units, st.integers(0, 60))
def test_what_loses_little_in_a_budget_fits_and_no_unit_could_lose_less(given_units, most):
    everything = {states: (cost, error) for states, cost, error in all_choices(given_units)}
    found = find_within(given_units, most)
    if found is None:
        assert min(cost for cost, _ in everything.values()) > most
        return
    assert everything[found.states] == (found.cost, found.error)
    assert found.cost <= most
    fitting = [point for point in find_front(given_units) if point.cost <= most]
    assert all(found.error <= point.error for point in fitting)
    for states, (cost, error) in everything.items():
        changed = sum(a != b for a, b in zip(states, found.states, strict=True))
        assert changed != 1 or cost > most or error >= found.error
    # Between two points of the front, one unit changes: that is all that can be missed.
    best = min(error for cost, error in everything.values() if cost <= most)
    steps = [
        max(o.error for o in options) - min(o.error for o in options) for options in given_units
    ]
    assert found.error - best <= max(steps)


def test_of_points_that_cost_the_same_the_most_accurate_stays():
    costs = (7.0, 7.01, 7.02, 14.0, 14.1, 20.0)
    points = [Choice((), cost, 100 - cost) for cost in costs]
    thin = thin_front(points, apart=0.02, most=12)
    assert [point.cost for point in thin] == [7.0, 7.02, 14.1, 20.0]


def test_a_thin_front_keeps_both_ends():
    points = [Choice((i,), 100 + i, 10.0 - i) for i in range(6)]
    assert thin_front(points, apart=0.02, most=12) == [points[0], points[2], points[5]]
    assert thin_front(points[:2], apart=0.5, most=12) == points[:2]


@pytest.mark.parametrize(
    ("points", "kept"),
    [
        ([(0, 10), (1, 4), (2, 3)], [0, 1, 2]),
        ([(0, 10), (1, 9.5), (2, 1)], [0, 2]),  # above the line between its neighbours
        ([(0, 10), (1, 5), (2, 0)], [0, 2]),  # on it
        ([(2, 3), (0, 10), (1, 4), (3, 3)], [1, 2, 0]),  # the last costs more for nothing
    ],
)
def test_the_hull_bends_one_way(points, kept):
    options = [Option(str(index), *point, "float") for index, point in enumerate(points)]
    assert _hull(options) == kept
