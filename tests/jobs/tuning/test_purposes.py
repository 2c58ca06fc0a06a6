"""How many models tuning scores."""

from bitwright.jobs.tuning.purposes import searches_at_most


def test_each_search_costs_a_bisection_and_steps_back():
    assert searches_at_most(1) == 11
    assert searches_at_most(2) == 19
    assert searches_at_most(2, tried=3) == 22
