"""The bits of a mixture are spent where they save most, and never more than allowed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitwright.decide.layout.branches import Branch
from bitwright.decide.layout.mixed_bits import choose_by_loss, choose_by_place
from bitwright.errors import RecipeError

WEIGHTS = st.dictionaries(
    st.text("abcdefgh", min_size=1, max_size=3),
    st.tuples(st.integers(1, 1000), st.floats(0, 10)),
    min_size=1,
    max_size=12,
)


@given(WEIGHTS, st.floats(4.01, 8))
def test_the_budget_holds_and_nothing_more_would_fit(weights, average):
    sizes = {name: size for name, (size, _) in weights.items()}
    losses = {name: loss for name, (_, loss) in weights.items()}
    chosen = choose_by_loss(losses, sizes, narrow=4, wide=8, average_bits=average)
    total = sum(sizes.values())
    used = sum(sizes[name] * (8 if name in chosen else 4) for name in sizes)
    assert used <= average * total * (1 + 1e-12)
    left = average * total - used
    assert all(4 * sizes[name] > left - 1e-6 * total for name in sizes if name not in chosen)


def test_one_that_loses_more_for_its_size_comes_first():
    sizes = {"small": 10, "large": 100, "rest": 390}
    losses = {"small": 1.0, "large": 5.0, "rest": 1.0}
    found = choose_by_loss(losses, sizes, narrow=2, wide=4, average_bits=2.04)
    assert found == {"small"}
    assert choose_by_loss(losses, sizes, narrow=2, wide=4, average_bits=2.45) == {"small", "large"}


def test_weights_without_a_loss_stay_narrow():
    assert choose_by_loss({}, {"a": 10}, narrow=4, wide=8, average_bits=8) == set()


@pytest.mark.parametrize("average", [4, 8.5, 2])
def test_a_budget_that_no_mixture_has_is_refused(average):
    with pytest.raises(RecipeError, match="between 4 and 8 bits"):
        choose_by_loss({}, {"a": 1}, narrow=4, wide=8, average_bits=average)


def test_places_are_those_of_k_quants():
    layers = 30
    branches = []
    for i in range(layers):
        branches.append(Branch(f"s{i}", (f"q{i}", f"v{i}", f"o{i}"), True, (f"v{i}",)))
        branches.append(Branch(f"t{i}", (f"up{i}", f"down{i}"), False, ()))
    edge = layers // 8
    more = [i for i in range(layers) if i < edge or i >= 7 * layers / 8 or (i - edge) % 3 == 2]
    wanted = {f"v{i}" for i in more} | {f"down{i}" for i in more}
    assert choose_by_place(branches) == wanted
