"""The loop keeps what is accepted, in the order in which proposals try it, within a budget."""

from itertools import count

import pytest

from bitwright.jobs.improve.loop import Attempt, Step, improve


def lower(before, after):
    return after < before


def attempts(*changes, heard=None):
    """Return a proposal that tries these, whatever becomes of them."""

    def propose(trail):
        for change in changes:
            trail = yield Attempt(change, f"try {change}")
            if heard is not None:
                heard.append((trail.last, trail.best))

    return propose


def test_the_best_is_what_was_accepted_last_and_the_trail_has_all():
    heard, best = [], []
    trail = improve(
        5, [attempts(7, 3, heard=heard), attempts(4, 2)], int, lower, on_best=best.append
    )
    assert trail.best == 2
    assert trail.stopped is None
    assert [(step.name, step.before, step.after, step.kept) for step in trail.steps] == [
        ("try 7", 5, 7, False),
        ("try 3", 5, 3, True),
        ("try 4", 3, 4, False),
        ("try 2", 3, 2, True),
    ]
    assert heard == [(7, 5), (3, 3)]
    assert best == [3, 2]


def test_what_is_no_better_is_not_kept():
    trail = improve(5, [attempts(5)], int, lower)
    assert not trail.steps[0].kept


def test_each_proposal_begins_with_the_trail_so_far():
    seen = []

    def look(trail):
        seen.append(trail.best)
        return
        yield

    improve(5, [look, attempts(3), look], int, lower)
    assert seen == [5, 3]


def test_an_attempt_may_have_to_be_better_than_another_than_the_best():
    """What it is held against takes its place where it is not."""

    def propose(trail):
        trail = yield Attempt(4, instead_of=3)
        assert trail.best == 3
        trail = yield Attempt(6, instead_of=8)
        assert trail.best == 6

    trail = improve(1, [propose], int, lower)
    assert [(step.before, step.after, step.kept) for step in trail.steps] == [
        (3, 4, False), (8, 6, True),
    ]  # fmt: skip


def test_what_a_proposal_says_changes_nothing_about_the_best():
    def propose(trail):
        trail = yield "left out"
        trail = yield Step("noted", 9, 1, kept=True)
        trail = yield Attempt(4)
        assert trail.last == 4

    trail = improve(5, [propose], int, lower)
    assert trail.best == 4
    assert trail.steps[0] == "left out"


def test_without_a_start_the_first_attempt_is_the_best_so_far_whatever_the_budget():
    made = []
    trail = improve(None, [attempts(9, 3)], lambda c: made.append(c) or c, lower, lambda: "no time")
    assert (trail.best, trail.stopped, made) == (9, "no time", [9])


def test_a_budget_that_is_spent_ends_all_proposals():
    left = count(2, -1)
    trail = improve(
        9, [attempts(8, 7), attempts(6, 5)], int, lower, lambda: "spent" if next(left) < 0 else None
    )
    assert trail.best == 6
    assert trail.stopped == "spent"
    assert len(trail.steps) == 3


def test_an_error_is_the_callers():
    with pytest.raises(ValueError, match="invalid literal"):
        improve("5", [attempts("x")], int, lower)
