"""The front of a tuning run in a report: its sentence, its costs, its drops."""

import json

from support.report_examples import tuned

from bitwright.assess.report.data import build_front_data


def test_the_drop_on_unseen_samples_is_the_one_that_is_told():
    found = build_front_data(tuned())
    assert found["sentence"] == (
        "Within the allowed drop of 0.01: top1 falls by 0.006 on 100 samples that the search never "
        "saw; 2 units of it not as planned."
    )
    assert [state for *_, state, _ in found["fallen"]] == ["float", "a16"]


def test_a_goal_that_was_missed_is_told_with_what_was_measured():
    found = build_front_data(tuned(met=False, final=None, stopped="time ran out"))
    assert found["sentence"].startswith("Not within the allowed drop of 0.01: top1 falls by 0.004")
    assert "on 400 samples of the search" in found["sentence"]
    assert found["notes"][0] == "Stopped early: time ran out."


def test_measured_costs_count_before_predicted_ones_and_have_a_unit():
    found = build_front_data(tuned())
    texts = [point["cost_text"] for point in found["points"]]
    assert texts == ["2 ms, predicted", "2.6 ms (2.6 to 3)", "3.5 ms, predicted"]
    assert (found["unit"], found["unit_size"]) == ("ms", 1)
    small = build_front_data(tuned(purpose="size", float_cost=4_000_000.0))
    assert (small["unit"], small["unit_size"]) == ("MB", 10**6)
    assert (found["float_name"], small["float_name"]) == ("prepared float", "float")


def test_a_point_that_was_not_evaluated_has_no_drop():
    last = build_front_data(tuned())["points"][2]
    assert last["drop"] is None and last["interval_text"] == "\N{EN DASH}"
    json.dumps(last, allow_nan=False)
