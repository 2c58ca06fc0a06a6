"""The most sensitive nodes are left float where that regains much and costs little work."""

from types import SimpleNamespace

import pytest

from bitwright.assess import NodeSensitivity
from bitwright.jobs.improve.loop import Trail
from bitwright.jobs.improve.proposals import fallback, learning
from bitwright.recipe import AdaRound, Recipe


def node(name, regained, op="Conv", alone=0.1):
    return NodeSensitivity(name, op, alone, 1 - regained, 1.0)


def proposed(monkeypatch, nodes, share_of, recipe=None):
    """Return the names of nodes that each change leaves float."""
    recipe = recipe or Recipe()
    found = []
    monkeypatch.setattr(fallback, "measure_nodes", lambda *_: nodes)
    monkeypatch.setattr(
        fallback,
        "try_changes",
        lambda maker, trail, changes: found.extend(changes) or iter(()),
    )

    def coverage(recipe):
        share = share_of(recipe.select.exclude)
        return None if share is None else SimpleNamespace(share=share)

    best = SimpleNamespace(recipe=recipe, plan=None)
    list(fallback.float_nodes(SimpleNamespace(coverage=coverage), Trail(best)))
    return [change.fields["select"].exclude for change in found]


def test_nodes_are_added_one_by_one_the_worst_first(monkeypatch):
    nodes = [node("a", 0.1), node("b", 0.5), node("c", 0.049), node("d", 0.05)]
    found = proposed(monkeypatch, nodes, lambda names: 0.9)
    assert found == [("b",), ("b", "a"), ("b", "a", "d")]


def test_where_noise_has_a_price_it_is_raised_instead():
    recipe = Recipe().replace(place={"purpose": "balanced", "cpu": "x86-vnni"})
    tried = []
    maker = SimpleNamespace(prepared=SimpleNamespace(recipe=recipe))
    best = SimpleNamespace(recipe=recipe, plan=None, is_final=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fallback, "try_changes", lambda maker, trail, changes: iter(changes))
        tried = list(fallback.float_nodes(maker, Trail(best)))
    [change] = tried
    raised = recipe.replace(**change.fields)
    assert raised.place.noise_price == 4 * recipe.place.noise_price
    assert raised.place.purpose == "balanced" and raised.place.cpu == "x86-vnni"


def test_they_are_four_at_most_and_come_behind_those_of_the_recipe(monkeypatch):
    recipe = Recipe()
    recipe = recipe.replace(select=type(recipe.select)(exclude=("own",)))
    nodes = [node(str(n), 0.5 - n / 100) for n in range(6)]
    found = proposed(monkeypatch, nodes, lambda names: 0.9, recipe)
    assert found[-1] == ("own", "0", "1", "2", "3")


@pytest.mark.parametrize(("lost", "count"), [(0.02, 1), (0.021, 0)])
def test_little_work_may_leave_the_integer_kernels(monkeypatch, lost, count):
    found = proposed(monkeypatch, [node("a", 0.5)], lambda names: 1.0 - lost * len(names))
    assert len(found) == count


@pytest.mark.parametrize("share", [0.0, None])
def test_where_work_in_integers_is_none_or_not_known_nothing_is_tried(monkeypatch, share):
    assert proposed(monkeypatch, [node("a", 0.5)], lambda names: share) == []


@pytest.mark.parametrize(
    ("weights", "chosen"),
    [([8, 1, 1], ("0",)), ([7.9, 1.1, 1], ("0", "1")), ([1, 1, 8], ("2",)), ([0, 0, 0], ())],
)
def test_what_makes_four_fifths_of_the_error_learns(monkeypatch, weights, chosen):
    nodes = [node(str(n), 0.0, alone=weight) for n, weight in enumerate(weights)]
    nodes.append(node("relu", 0.0, op="Relu", alone=99.0))
    monkeypatch.setattr(learning, "measure_nodes", lambda *_: nodes)
    assert learning._most_sensitive(None, None) == chosen


def test_without_nodes_that_can_learn_there_is_nothing_to_try(monkeypatch):
    monkeypatch.setattr(learning, "measure_nodes", lambda *_: [])
    best = SimpleNamespace(recipe=Recipe(), plan=None)
    maker = SimpleNamespace(learning=AdaRound(), prepared=SimpleNamespace(recipe=Recipe()))
    [step] = learning.learn(maker, Trail(best))
    assert (step.name, step.after) == ("AdaRound", None)
