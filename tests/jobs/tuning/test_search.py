"""The search finds the cheapest point within the limit in few evaluations."""

import math
from types import SimpleNamespace

import pytest

from bitwright.assess.judge.sequential import Drop
from bitwright.jobs.tuning.evaluation import Outcome
from bitwright.jobs.tuning.front import Option
from bitwright.jobs.tuning.goal import Goal
from bitwright.jobs.tuning.journal import Journal
from bitwright.jobs.tuning.latency import Timing
from bitwright.jobs.tuning.search import STEPS_BACK, Clock, Search
from bitwright.jobs.tuning.states import Unit

COUNT = 40
ERRORS = {f"n{index}": 2.0**-index for index in range(COUNT)}


class Candidates:
    """Units that each lose their error, and cost 1 in int8 and 2 in float."""

    def __init__(self, name="low", factor=1.0):
        self.name, self._factor, self.made = name, factor, []
        self.units = [Unit(node=node, op="Conv", nodes=(node,)) for node in ERRORS]
        self.options = [
            [Option("int8", 1.0, error), Option("float", 2.0, 0.0)] for error in ERRORS.values()
        ]
        self.edges, self.fixed = [], 5.0
        self.shares = (("n0", 0.5),)

    def make(self, states):
        self.made.append(dict(states))
        size = COUNT + sum(state == "float" for state in states.values())
        return SimpleNamespace(states=states, size=size, model=None, runnable=(self, states))

    def drop(self, states):
        return self._factor * sum(e for node, e in ERRORS.items() if node not in states)

    def probes(self):
        return {"W8A32": lambda: (self, {"n0": "float"}), "A8W32": lambda: (self, {})}


class Evaluator:
    sample_seconds = 0.0

    def __init__(self):
        self.runs, self.drops = 0, {}

    def __len__(self):
        return 100

    def knows(self, name, limit):
        return name in self.drops

    def test_float(self):
        return Outcome(Drop(100, 0.0, 0.0), "pass")

    def test(self, name, open_model, limit, **_):
        if name not in self.drops:
            self.runs += 1
            candidates, states = open_model()
            self.drops[name] = candidates.drop(states)
        drop = self.drops[name]
        return Outcome(Drop(100, drop, 1e-6), "pass" if drop <= limit else "fail")


def make_search(limit, candidates=None, seconds=None, **options):
    goal = Goal(purpose="size")
    found = candidates or Candidates()
    return Search(found, Evaluator(), Journal(None, {}), goal, limit, Clock(seconds), **options)


def test_with_another_limit_the_points_that_are_known_come_first():
    first = make_search(0.3)
    first.test_base()
    first.run()
    second = make_search(0.3)
    second.evaluator = first.evaluator
    runs = first.evaluator.runs
    second.test_base()
    second.run()
    assert second.evaluator.runs == runs
    assert second.best.name == first.best.name
    third = make_search(0.31)  # the same points are within it
    third.evaluator = first.evaluator
    third.test_base()
    third.points = third._front()
    third._bisect()
    assert third.evaluator.runs == runs


@pytest.mark.parametrize("limit", [0.9, 0.3, 0.05, 0.004, 1e-5])
def test_the_best_is_within_a_point_of_the_cheapest_that_passes(limit):
    search = make_search(limit)
    assert not search.test_base().passes
    search.run()
    assert search.best.passes
    needed = next(n for n in range(COUNT + 1) if sum(list(ERRORS.values())[n:]) <= limit)
    found = sum(state == "float" for state in search.best.states.values())
    assert needed <= found <= needed + 5  # points are apart, and three steps go back
    assert search.evaluator.runs <= 1 + math.ceil(math.log2(12)) + 2 + STEPS_BACK


@pytest.mark.parametrize(("most", "in_float"), [(COUNT + 5, 5), (COUNT, 0), (3 * COUNT, COUNT)])
def test_what_loses_least_in_a_budget_is_evaluated_alone(most, in_float):
    search = make_search(10.0)
    search.candidates.fixed = 0.0
    found = search.run_within(most)
    assert found is search.best
    assert sorted(found.states) == sorted(list(ERRORS)[:in_float])
    assert found.measured_cost <= most
    assert search.evaluator.runs == (in_float < COUNT)  # float itself is not run


def test_a_file_that_is_larger_than_its_units_say_gets_less():
    search = make_search(10.0)
    search.candidates.fixed = -3.0  # three more bytes than were expected
    found = search.run_within(COUNT + 5)
    assert len(found.states) == 5
    assert [point for point, _ in search.front_points() if point is found]


def test_where_nothing_fits_the_smallest_is_evaluated():
    search = make_search(10.0)
    found = search.run_within(COUNT)  # of 5 more at least
    assert found is search.best
    assert found.states == {}


def test_steps_back_take_the_units_that_save_most_for_their_error():
    search = make_search(0.3)
    search.test_base()
    search.run()
    steps = [found for found in search.aside if found.refined]
    assert steps
    quantized = set(ERRORS) - set(steps[0].states)
    assert min(quantized, key=ERRORS.get) not in steps[0].states


def test_a_base_that_passes_stays_where_nothing_is_cheaper():
    search = make_search(10.0)
    assert search.test_base().passes
    search.run()
    assert search.best.states == {}
    assert search.evaluator.runs == 1


@pytest.mark.parametrize(("limit", "kept"), [(10.0, 1.0), (0.05, 0.8)])
def test_what_the_best_keeps_of_the_saving_is_known(limit, kept):
    search = make_search(limit)
    assert search.kept == 0.0
    search.test_base()
    search.run()
    left = COUNT - sum(state == "float" for state in search.best.states.values())
    assert search.kept == pytest.approx(left / COUNT)
    assert search.kept >= kept


def test_models_of_two_plans_are_compared_by_what_was_measured_of_them():
    first = make_search(0.05, Candidates("standard"))
    first.test_base()
    first.run()
    assert first.best.states
    second = make_search(0.05, Candidates("medium", factor=0.01), best=first.best)
    assert second.test_base().passes
    assert second.best.name == "medium/base"


def test_the_best_of_another_plan_is_made_by_that_plan():
    good, bad = Candidates("standard", 1.0), Candidates("medium", 3.0)
    first = make_search(0.0, good)
    first.test_base()
    second = make_search(0.0, bad, best=first.best)
    second.test_base()
    assert second.best.name == "standard/base"
    made = len(bad.made)
    second.make(second.best)
    assert len(bad.made) == made
    assert good.made


def test_probes_say_which_side_is_beyond_the_limit():
    search = make_search(1.5)
    search.probe()
    assert [(probe.name, probe.passes) for probe in search.probes] == [
        ("W8A32", True),
        ("A8W32", False),
    ]


def test_every_better_model_is_handed_over_once():
    seen = []
    search = make_search(0.05)
    search.on_best = lambda found, made: seen.append(search.rank(found))
    search.test_base()
    search.run()
    assert seen == sorted(seen, reverse=True)
    assert len(seen) == len(set(seen))


@pytest.mark.parametrize(("purpose", "most"), [("size", 0.02), ("speed", 0.05)])
def test_no_model_is_evaluated_that_would_save_next_to_nothing(purpose, most):
    """Of the points below the best, one may be cheaper by less than that."""
    search = make_search(0.05)
    search.goal = Goal(purpose=purpose)
    search.latency = lambda model: Timing(1.0, 1.0, 1.0)
    search.test_base()
    search.run()
    cheaper = [point for point in search.points if point.choice.cost < search.best.choice.cost]
    untested = [point for point in cheaper if point.tested is None]
    failed = max(p.choice.cost for p in search.points if p.tested and not p.passes)
    left = [point for point in untested if point.choice.cost > failed]
    best = search.best.choice.cost
    assert all(best - point.choice.cost < most * (best + 5.0) for point in left)


def test_what_other_plans_lost_tells_where_to_begin():
    """Their errors are known by then, and so is the drop that goes with them."""
    first = make_search(0.01, Candidates("low"))
    first.test_base()
    cold, warm = make_search(0.01, Candidates("trimmed")), make_search(0.01, Candidates("trimmed"))
    first.add_errors()
    warm.aside = [first.base]
    for search in (cold, warm):
        search.run()
    assert first.base.choice.error == pytest.approx(sum(ERRORS.values()))
    assert warm.best.states == cold.best.states
    assert warm.evaluator.runs < cold.evaluator.runs


def test_the_least_error_beyond_the_limit_is_a_share_of_the_whole():
    search = make_search(1e-9)
    assert search.least_failed == 1.0
    search.test_base()
    search.run()
    failed = [p.choice.error for p in search.points if p.tested and not p.passes]
    assert search.least_failed == pytest.approx(min(failed) / sum(ERRORS.values()))
    assert search.least_failed < 0.02


def test_without_time_only_the_base_is_evaluated():
    search = make_search(0.0, seconds=-1.0)
    search.test_base()
    search.run()
    assert search.evaluator.runs == 1
    assert search.clock.stopped is not None


def test_points_tell_what_fell_and_why():
    search = make_search(0.3)
    search.test_base()
    search.run()
    points = [point for _, point in search.front_points()]
    assert [point.cost for point in points] == sorted(point.cost for point in points)
    assert points[0].cost == COUNT + 5
    chosen = next(point for found, point in search.front_points() if found is search.best)
    assert {unit.node for unit in chosen.fallen} == set(search.best.states)
    assert "% of the error, for" in chosen.fallen[0].reason
