"""Models of a plan are made, scored and priced once, and compared by what counts."""

import math
from types import SimpleNamespace

import pytest

from bitwright.assess.clock import read_clock
from bitwright.assess.judge.sequential import Drop
from bitwright.jobs.improve.front import Edge, Option
from bitwright.jobs.improve.journal import Journal
from bitwright.jobs.improve.mixtures import (
    IN_FLOAT,
    Cost,
    Deadline,
    Mix,
    MixCandidate,
    MixMaker,
    Mixtures,
    UnitTable,
    planned_state,
)
from bitwright.jobs.improve.scorer import Score
from bitwright.jobs.improve.states import Unit


class Plan(Mixtures):
    """Two units: the first one costs 1 in integers and 4 in float, the second 1 and 2."""

    stays_float = False

    def __init__(self, measured=True):
        super().__init__(None, "low", None, "size")
        self.made = []
        if not measured:
            return
        self.table = UnitTable(
            units=tuple(Unit(node=name, op="Conv", nodes=(name,)) for name in "ab"),
            options=tuple(
                (Option("int8", 1.0, 0.3, "i"), Option("float", cost, 0.0, "float"))
                for cost in (4, 2)
            ),
            edges=(Edge(0, 1, 0.5),),
            fixed=10.0,
        )

    def make(self, states):
        self.made.append(dict(states))
        return SimpleNamespace(runnable=None)


def maker(purpose="speed", *, drops=(0.0,), journal=None, seconds=None):
    """Return a maker whose scorer finds these drops, one after the other, within 0.1."""
    left, asked = list(drops), []

    def score(name, open_model, limit, *, has_other, may_go_on):
        asked.append(has_other)
        drop = left.pop(0)
        verdict = "open" if drop == 0.05 else "pass" if drop <= limit else "fail"
        return Score(Drop(100, drop, 0.01), verdict)

    scorer = SimpleNamespace(
        score=score,
        score_of_float=lambda: Score(Drop(100, 0.0, 0.0), "pass"),
        models={"low/base"},
        first_look_seconds=1.0,
        asked=asked,
    )
    prices = iter(range(5, 99))
    return MixMaker(
        scorer,
        journal or Journal(None, {}),
        0.1,
        purpose,
        lambda made: timed(next(prices)) if purpose == "speed" else Cost(float(next(prices))),
        0.05,
        Deadline(seconds),
    )


def timed(milliseconds, in_float=100.0):
    return Cost.of_time(read_clock([(in_float / 1000, milliseconds / 1000)], apart=0.0))


def test_a_mix_is_named_by_what_is_not_as_planned():
    plan = Plan()
    assert Mix(plan).name == "low/base" == Mix.of(plan, (0, 0)).name
    one, other = Mix.of(plan, (1, 0)), Mix.of(plan, (0, 1))
    assert (one.states, other.states) == ({"a": "float"}, {"b": "float"})
    assert one.name == Mix(plan, {"a": "float"}).name != other.name
    assert [mix.is_float for mix in (Mix(plan), one, Mix.of(plan, (1, 1)))] == [False, False, True]
    plan.stays_float = True
    assert Mix(plan).is_float


def test_a_mix_knows_what_its_units_cost_once_that_is_measured():
    choice = Mix.of(Plan(), (1, 0)).choice
    assert (choice.states, choice.cost, choice.error) == ((1, 0), 4 + 1 + 0.5, 0.3)
    assert Mix(Plan(measured=False)).choice is None


def test_the_planned_state_is_int8_or_the_first():
    wide, narrow = Option("w4", 1, 0), Option("int8", 1, 0)
    assert planned_state([wide, narrow]) == 1
    assert planned_state([wide, Option("w8", 1, 0)]) == 0


def test_a_model_is_scored_and_priced_once():
    one, plan = maker(), Plan()
    first = one.make(Mix(plan))
    assert one.make(Mix(plan)) is first
    assert first.passes and first.is_new
    assert one.known_cost(Mix(plan)) == timed(5.0) == one.cost(Mix(plan))
    assert plan.made == [{}]
    assert one.known_cost(Mix.of(plan, (1, 0))) is None


def test_what_is_not_wanted_is_not_timed():
    one, plan = maker(drops=[0.2]), Plan()
    assert not one.make(Mix(plan)).passes
    assert one.known_cost(Mix(plan)) is None
    small = maker("size", drops=[0.2])
    small.make(Mix(plan))
    assert small.known_cost(Mix(plan)) == Cost(5.0)


def test_a_price_is_in_the_journal():
    journal = Journal(None, {})
    for purpose, cost in (("speed", timed(5.0)), ("size", Cost(5.0))):
        assert maker(purpose, journal=journal).cost(Mix(Plan())) == cost
        plan = Plan()
        assert maker(purpose, journal=journal).cost(Mix(plan)) == cost
        assert plan.made == []


def test_float_is_not_run_and_what_was_left_open_is_decided_by_its_mean():
    one, plan = maker(drops=[0.05]), Plan()
    assert one.make(Mix.of(plan, (1, 1))).score.drop.mean == 0
    found = one.make(Mix(plan))
    assert found.score.verdict == "pass"
    assert one.scorer.asked == [True]  # beside float, which is within the limit


@pytest.mark.parametrize("scored", [["before"], None])
def test_models_of_an_earlier_run_change_nothing(scored):
    journal = Journal(None, {})
    if scored:
        journal["scored"] = scored
    one = maker(journal=journal)
    one.make(Mix(Plan()))
    assert one.scorer.asked == [False]


def candidate(mix, drop, verdict="pass"):
    return MixCandidate(mix, Score(Drop(100, drop, 0.01), verdict))


def test_within_the_limit_the_cheaper_is_better_and_beyond_it_the_closer():
    one, plan = maker("size", drops=[]), Plan()
    cheap, dear = Mix(plan), Mix.of(plan, (1, 0))
    assert one.cost(cheap).value < one.cost(dear).value
    passing = candidate(cheap, 0.09), candidate(dear, 0.01)
    assert one.is_better(passing[1], passing[0]) and not one.is_better(*passing)
    assert not one.is_better(passing[0], passing[0])
    failing = candidate(cheap, 0.5, "fail"), candidate(dear, 0.4, "fail")
    assert one.is_better(*failing) and not one.is_better(*failing[::-1])
    assert one.is_better(failing[0], passing[1]) and not one.is_better(passing[1], failing[0])


@pytest.mark.parametrize("takes_slow", [False, True])
def test_what_is_slower_than_float_is_worse_than_float(takes_slow):
    one, plan = maker(drops=[]), Plan(measured=False)
    one.takes_slow = takes_slow
    prices = iter([timed(120.0), timed(100.0)])
    one.price = lambda made: next(prices)
    slow, in_float = Mix(plan), Mix.in_float(plan)
    assert one.cost(slow).is_slower and not one.cost(in_float).is_slower
    assert one.is_too_slow(slow) != takes_slow
    assert one.is_better(candidate(slow, 0.0), candidate(in_float, 0.0))


@pytest.mark.parametrize(("measured", "estimated"), [(True, True), (False, False)])
def test_times_of_one_plan_are_those_of_its_costs(measured, estimated):
    """Measured, the second one is the faster."""
    one, plan = maker(drops=[]), Plan(measured)
    cheap, dear = Mix(plan), Mix(plan, {"a": "float"})
    for mix in (dear, cheap):
        one.cost(mix)
    assert one.is_better(candidate(dear, 0.0), candidate(cheap, 0.0)) == estimated
    other = Mix(Plan())
    other.mixtures.name = "other"
    assert one.is_better(candidate(other, 0.0), candidate(cheap, 0.0))  # which was never timed


def test_time_that_is_used_up_ends_the_search():
    assert maker().budget() is None
    assert maker(seconds=60).budget() is None
    late = maker(seconds=0.5)  # a first look takes one
    assert late.budget() == "the time of 0 s is used up" == late.deadline.stopped
    assert Deadline(None).has(math.inf)


def test_shown_are_all_that_were_scored_and_other_points_of_the_last_plan():
    one, first, last = maker("size", drops=[0.0, 0.2]), Plan(), Plan()
    last.name = "medium"
    one.make(Mix(first))
    one.make(Mix(last))
    one.front = (Mix(last), Mix.of(last, (1, 1)), Mix.of(first, (1, 0)))
    one.cost(Mix.of(last, (0, 1)))
    one.cost(Mix.of(first, (0, 1)))
    names = [mix.name for mix in one.shown()]
    wanted = [Mix(last), Mix.of(last, (1, 1)), Mix.of(last, (0, 1)), Mix(first)]
    assert names == [mix.name for mix in wanted]


def test_shares_of_the_error_are_those_of_the_worst_units_as_planned():
    table = Plan().table
    assert table.planned_errors == {"a": 0.3, "b": 0.3}
    assert table.shares(1) == (("a", pytest.approx(0.5)),)
    assert sum(share for _, share in table.shares(100)) == pytest.approx(1)


def test_a_model_in_float_needs_no_units_to_be_told_apart():
    plan = Plan(measured=False)
    assert Mix.in_float(plan).is_float and not plan.is_measured
    assert Mix.in_float(plan).states == IN_FLOAT
    assert Mix.in_float(Plan()).states == {"a": "float", "b": "float"}


def test_what_units_cost_and_lose_is_measured_once_and_read_from_the_journal():
    wanted, kept, measured = Plan().table, Journal(None, {}), []

    class Measured(Mixtures):
        def measure(self):
            measured.append(self.name)
            return wanted

    for priced in ("size", "size", "speed"):
        assert Measured(None, "low", kept, priced).table == wanted
    assert len(measured) == 2
