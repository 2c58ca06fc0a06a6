"""The mixtures of a plan: the cheapest within the limit is found in few scorings."""

import math
from functools import partial
from types import SimpleNamespace

import msgspec
import pytest

from bitwright.assess.judge.sequential import Drop
from bitwright.jobs.improve.front import Option
from bitwright.jobs.improve.journal import Journal
from bitwright.jobs.improve.loop import Attempt, improve
from bitwright.jobs.improve.mixtures import Cost, Deadline, Mix, MixMaker, Mixtures, UnitTable
from bitwright.jobs.improve.proposals.mixtures import (
    STEPS_BACK,
    least_failed,
    least_loss,
    saving_kept,
    search_front,
)
from bitwright.jobs.improve.scorer import Score
from bitwright.jobs.improve.states import Unit
from bitwright.jobs.tuning.points import front_points

COUNT = 40
ERRORS = {f"n{index}": 2.0**-index for index in range(COUNT)}


class Plan(Mixtures):
    """Units that each lose their error, and cost 1 in int8 and 2 in float."""

    stays_float = False

    def __init__(self, name="low", factor=1.0):
        super().__init__(None, name, None, "size")
        self._factor, self.made = factor, []
        self.table = UnitTable(
            units=tuple(Unit(node=node, op="Conv", nodes=(node,)) for node in ERRORS),
            options=tuple(
                (Option("int8", 1.0, error), Option("float", 2.0, 0.0)) for error in ERRORS.values()
            ),
            fixed=5.0,
        )

    def make(self, states):
        self.made.append(dict(states))
        size = COUNT + sum(state == "float" for state in states.values())
        return SimpleNamespace(states=states, size=size, model=None, runnable=(self, states))

    def drop(self, states):
        return self._factor * sum(e for node, e in ERRORS.items() if node not in states)

    def probes(self):
        return {"W8A32": lambda: (self, {"n0": "float"}), "A8W32": lambda: (self, {})}


class Scorer:
    """Scores each model once, and says how often it did."""

    sample_seconds = first_look_seconds = 0.0

    def __init__(self):
        self.models, self.drops = set(), {}

    @property
    def runs(self):
        return len(self.models)

    def __len__(self):
        return 100

    def score_of_float(self):
        return Score(Drop(100, 0.0, 0.0), "pass")

    def score(self, name, open_model, limit, **_):
        if name not in self.drops:
            self.models.add(name)
            plan, states = open_model().runnable
            self.drops[name] = plan.drop(states)
        drop = self.drops[name]
        return Score(Drop(100, drop, 1e-6), "pass" if drop <= limit else "fail")


def make_maker(limit, *, seconds=None, scorer=None, purpose="size"):
    return MixMaker(
        scorer or Scorer(),
        Journal(None, {}),
        limit,
        purpose,
        lambda made: Cost(float(made.size)),
        {"size": 0.02, "speed": 0.05}[purpose],
        Deadline(seconds),
    )


def as_it_is(plan, trail):
    yield Attempt(Mix(plan))


def walk(maker, plan):
    """Return proposals: a plan as it is, and its front."""
    return [partial(as_it_is, plan), partial(search_front, maker, plan)]


def run(maker, proposals, **options):
    return improve(None, proposals, maker.make, maker.is_better, maker.budget, **options)


def searched(limit, plan=None, **options):
    maker = make_maker(limit, **options)
    return maker, run(maker, walk(maker, plan or Plan()))


def test_what_an_earlier_run_scored_takes_no_time_and_changes_nothing():
    fresh = searched(0.31)[1]
    first = searched(0.3)[0]
    runs = first.scorer.runs
    assert searched(0.3, scorer=first.scorer)[0].scorer.runs == runs
    again = searched(0.31, scorer=first.scorer)[1]  # the same points are within it
    assert [one.mix.name for one in again.candidates] == [one.mix.name for one in fresh.candidates]
    assert first.scorer.runs <= runs + STEPS_BACK


@pytest.mark.parametrize("limit", [0.9, 0.3, 0.05, 0.004, 1e-5])
def test_the_best_is_within_a_point_of_the_cheapest_that_passes(limit):
    maker, trail = searched(limit)
    assert not trail.candidates[0].passes
    assert trail.best.passes
    needed = next(n for n in range(COUNT + 1) if sum(list(ERRORS.values())[n:]) <= limit)
    found = sum(state == "float" for state in trail.best.mix.states.values())
    assert needed <= found <= needed + 5  # points are apart, and three steps go back
    assert maker.scorer.runs <= 1 + math.ceil(math.log2(12)) + 2 + STEPS_BACK


@pytest.mark.parametrize(("most", "in_float"), [(COUNT + 5, 5), (COUNT, 0), (3 * COUNT, COUNT)])
def test_what_loses_least_in_a_budget_is_scored_alone(most, in_float):
    maker, plan = make_maker(10.0), Plan()
    plan.table = msgspec.structs.replace(plan.table, fixed=0.0)
    trail = run(maker, [lambda trail: least_loss(maker, plan, most)])
    assert sorted(trail.best.mix.states) == sorted(list(ERRORS)[:in_float])
    assert maker.cost(trail.best.mix).value <= most
    assert maker.scorer.runs == (in_float < COUNT)  # float itself is not run


def test_a_file_that_is_larger_than_its_units_say_gets_less():
    maker, plan = make_maker(10.0), Plan()
    plan.table = msgspec.structs.replace(
        plan.table, fixed=-3.0
    )  # three more bytes than were expected
    trail = run(maker, [lambda trail: least_loss(maker, plan, COUNT + 5)])
    assert len(trail.best.mix.states) == 5
    assert [point for mix, point in front_points(maker, 0.0) if mix.name == trail.best.mix.name]


def test_where_nothing_fits_the_smallest_is_scored():
    maker = make_maker(10.0)  # of 5 more at least
    trail = run(maker, [lambda trail: least_loss(maker, Plan(), COUNT)])
    assert trail.best.mix.states == {}


def test_steps_back_take_the_units_that_save_most_for_their_error():
    _, trail = searched(0.3)
    steps = [one.mix for one in trail.candidates if one.mix.refined]
    assert steps
    quantized = set(ERRORS) - set(steps[0].states)
    assert min(quantized, key=ERRORS.get) not in steps[0].states


def test_a_plan_that_passes_stays_where_nothing_is_cheaper():
    maker, trail = searched(10.0)
    assert trail.best.mix.states == {}
    assert maker.scorer.runs == 1


@pytest.mark.parametrize(("limit", "kept"), [(10.0, 1.0), (0.05, 0.8)])
def test_what_the_best_keeps_of_the_saving_is_known(limit, kept):
    plan = Plan()
    assert saving_kept(plan, None) == 0.0
    _, trail = searched(limit, plan)
    left = COUNT - sum(state == "float" for state in trail.best.mix.states.values())
    assert saving_kept(plan, trail.best) == pytest.approx(left / COUNT)
    assert saving_kept(plan, trail.best) >= kept


def test_models_of_two_plans_are_compared_by_what_was_measured_of_them():
    maker = make_maker(0.05)
    better = partial(as_it_is, Plan("medium", factor=0.01))
    trail = run(maker, [*walk(maker, Plan("standard")), better])
    assert trail.steps[-2].after.mix.states
    assert trail.best.mix.name == "medium/base"


def test_the_best_of_another_plan_is_made_by_that_plan():
    good, bad = Plan("standard", 1.0), Plan("medium", 3.0)
    maker = make_maker(0.0)
    trail = run(maker, [partial(as_it_is, good), partial(as_it_is, bad)])
    assert trail.best.mix.name == "standard/base"
    made = len(bad.made)
    maker.model(trail.best.mix)
    assert len(bad.made) == made == 1
    assert good.made == [{}, {}]


def test_every_better_model_is_handed_over_once():
    seen = []
    maker = make_maker(0.05)
    run(maker, walk(maker, Plan()), on_best=lambda one: seen.append(one.mix.name))
    assert len(seen) == len(set(seen)) > 1
    passing = [maker.cost(one.mix).value for one in map(maker._candidates.get, seen) if one.passes]
    assert passing == sorted(passing, reverse=True)


@pytest.mark.parametrize(("purpose", "most"), [("size", 0.02), ("speed", 0.05)])
def test_no_model_is_scored_that_would_save_next_to_nothing(purpose, most):
    """Of the points below the best, one may be cheaper by less than that."""
    maker, trail = searched(0.05, purpose=purpose)
    best = trail.best.mix.choice.cost
    cheaper = [point for point in maker.front if point.choice.cost < best]
    found = {point.name: maker.found(point) for point in cheaper}
    failed = [p.choice.cost for p in cheaper if found[p.name] and not found[p.name].passes]
    left = [p for p in cheaper if not found[p.name] and p.choice.cost > max(failed)]
    assert all(best - point.choice.cost < most * (best + 5.0) for point in left)


def test_what_other_plans_lost_tells_where_to_begin():
    """Their errors are known by then, and so is the drop that goes with them."""
    cold, alone = searched(0.01, Plan("trimmed"))
    warm, plan = make_maker(0.01), Plan("trimmed")
    both = run(warm, [partial(as_it_is, Plan("low")), partial(search_front, warm, plan)])
    assert both.candidates[0].mix.choice.error == pytest.approx(sum(ERRORS.values()))
    assert both.best.mix.states == alone.best.mix.states
    assert warm.scorer.runs <= cold.scorer.runs


def test_the_least_error_beyond_the_limit_is_a_share_of_the_whole():
    plan = Plan()
    _, trail = searched(1e-9, plan)
    failed = [one.mix.choice.error for one in trail.candidates if not one.passes]
    assert least_failed(plan, trail) == pytest.approx(min(failed) / sum(ERRORS.values()))
    assert least_failed(plan, trail) < 0.02
    assert least_failed(Plan(), trail) == 1.0


def test_without_time_only_the_first_model_is_scored():
    maker, trail = searched(0.0, seconds=-1.0)
    assert maker.scorer.runs == 1
    assert trail.stopped == maker.deadline.stopped is not None


def test_points_tell_what_fell_and_why():
    maker, trail = searched(0.3)
    points = front_points(maker, 0.0)
    assert [point.cost for _, point in points] == sorted(point.cost for _, point in points)
    assert points[0][1].cost == COUNT + 5
    chosen = next(point for mix, point in points if mix.name == trail.best.mix.name)
    assert {unit.node for unit in chosen.fallen} == set(trail.best.mix.states)
    assert "% of the error, for" in chosen.fallen[0].reason
