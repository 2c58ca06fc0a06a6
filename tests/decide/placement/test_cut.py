"""The minimum cut against all divisions of a few nodes."""

import math
from itertools import chain as joined
from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from bitwright.decide.placement.cut import FLOAT, INTEGERS, Price, cheapest, priced

NAMES = "abcde"
TIMES = st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.5, 7.0]) | st.floats(0, 9).map(lambda x: round(x, 3))


@st.composite
def problems(draw: st.DrawFn) -> list[Price]:
    prices = [Price((name,), (FLOAT,), draw(TIMES)) for name in NAMES]
    prices += [Price((INTEGERS,), (name,), draw(TIMES)) for name in NAMES]
    several = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True).map(tuple)
    for one, others in draw(st.lists(st.tuples(st.sampled_from(NAMES), several), max_size=8)):
        turned, ends = draw(st.booleans()), draw(st.booleans())
        if turned:
            prices.append(Price(others, (FLOAT if ends else one,), draw(TIMES)))
        else:
            prices.append(Price((one,), (*others, FLOAT) if ends else others, draw(TIMES)))
    if draw(st.booleans()):
        first, second = draw(st.permutations(NAMES))[:2]
        prices.append(Price((first,), (second,), math.inf))
        prices.append(Price((second,), (first,), draw(TIMES)))
    return prices


@given(problems())
def test_no_division_is_cheaper(prices: list[Price]) -> None:
    chosen = cheapest(prices)
    divisions = joined.from_iterable(combinations(NAMES, size) for size in range(len(NAMES) + 1))
    least = min(priced(prices, frozenset(division)) for division in divisions)
    assert math.isclose(priced(prices, chosen), least, abs_tol=1e-9)


def test_a_tensor_that_many_read_is_converted_once() -> None:
    readers = ("x", "y", "z")
    own = [Price((INTEGERS,), (name,), 2.0) for name in readers]
    border = Price(readers, (FLOAT,), 5.0)
    assert cheapest([*own, border]) == frozenset(readers)
    alone = [Price((name,), (FLOAT,), 5.0) for name in readers]
    assert cheapest([*own, *alone]) == frozenset()


def test_what_is_tied_goes_together() -> None:
    prices = [Price((INTEGERS,), ("a",), 3.0), Price(("b",), (FLOAT,), 2.0)]
    assert cheapest(prices) == {"a"}
    assert cheapest([*prices, Price(("a",), ("b",), math.inf)]) == {"a", "b"}
    free = [*prices, Price(("a",), ("b",), 1.0), Price(("a",), ("b",), math.inf)]
    assert cheapest(free) == {"a", "b"}  # a price for what cannot be adds nothing


def test_sums_of_odd_fractions_are_divided_as_well() -> None:
    chain = [f"n{number}" for number in range(60)]
    prices = [Price((name,), (FLOAT,), 1 / 7) for name in chain]
    prices += [Price((INTEGERS,), (name,), (1 / 3) / 1.05) for name in chain]
    for one, other in pairwise(chain):
        prices += [Price((one,), (other,), 2.1), Price((other,), (one,), 1.3 / 1.05)]
    assert cheapest(prices) == frozenset(chain)
