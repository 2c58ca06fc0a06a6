"""The clock is tested with fakes: never how long anything takes."""

import itertools
import math
import random
import statistics
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from onnx import TensorProto
from support.models import make_mlp, make_samples, retype

from bitwright import graph
from bitwright.assess import clock
from bitwright.assess.clock import (
    FEWEST_ROUNDS,
    MAX_ROUNDS,
    MIN_ROUNDS,
    read_clock,
    take_turns,
    time_models,
    time_runners,
)


class Time:
    """A clock that goes on only when something runs."""

    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        return self.seconds

    def runner(self, seconds):
        """Return what takes these seconds, one after the other, again and again."""

        def run(number):
            found = seconds[number % len(seconds)]
            self.seconds += found
            return found

        return run


def test_each_runs_once_in_a_round_and_none_is_always_first():
    order = []
    runners = [lambda number, name=name: order.append(name) or name for name in "abc"]
    assert list(take_turns(runners, range(2))) == [["a", "b", "c"]] * 2
    assert "".join(order) == "abccba"


def test_the_ratio_is_of_runs_of_the_same_round():
    """The machine is ten times slower in every other round, and the ratio stays."""
    rounds = [(slow * 2.0, slow * 1.0) for slow in (1, 10) * 5]
    found = read_clock(rounds)
    assert found.ratio == 0.5 and (found.low, found.high) == (0.48, 0.52)
    assert found.is_faster and not found.is_slower


def test_a_ratio_within_what_sessions_differ_by_is_no_difference():
    for ratio in (0.97, 1.0, 1.03):
        found = read_clock([(1.0, ratio)] * 41)
        assert not found.is_faster and not found.is_slower
    assert read_clock([(1.0, 1.05)] * 41).is_slower
    # Where each round opened its own, the rounds show what sessions differ by.
    assert read_clock([(1.0, 1.03)] * 41, apart=clock.ROUNDS_DIFFER).is_slower


def test_models_that_are_opened_quickly_are_opened_for_each_round(monkeypatch):
    """Sessions of one model differ: with one for all rounds, it would be slower than itself."""
    pace = itertools.cycle([1.0, 1.05, 0.97, 1.02, 0.95, 1.01, 1.04])
    monkeypatch.setattr(clock, "Session", lambda *_, **__: next(pace))
    monkeypatch.setattr(clock._Runner, "_run", lambda self, times: 0.01 * self._session)
    loaded, sample = graph.load_model(make_mlp()), make_samples(make_mlp(), 1)[0]
    monkeypatch.setattr(clock, "_QUICK_TO_OPEN", math.inf)
    [found] = time_models([loaded] * 2, [sample] * 2)
    assert not found.is_slower and not found.is_faster and found.high / found.low > 1.02
    # Those that take long to open are not: their interval is as wide as sessions differ.
    monkeypatch.setattr(clock, "_QUICK_TO_OPEN", -1.0)
    [found] = time_models([loaded] * 2, [sample] * 2)
    assert found.rounds == MIN_ROUNDS
    assert found.high / found.low == pytest.approx(1.04 / 0.96)


def test_the_interval_holds_the_ratio_as_often_as_it_says():
    rng = np.random.default_rng(0)
    for count in (5, 9, 25):
        held = 0
        for _ in range(1000):
            noise = rng.lognormal(0.0, 0.3, (count, 2))  # the median of the ratio is 0.8
            found = read_clock([(a, 0.8 * b) for a, b in noise])
            assert found.low <= found.ratio <= found.high
            held += found.low <= 0.8 <= found.high
        assert held > 920
    assert held < 990  # it is no wider than it must be


def test_the_cut_is_that_of_the_binomial():
    for count in range(3, 60):
        cut = clock._cut(count)
        below = [math.comb(count, k) / 2**count for k in range(count)]
        assert cut == 0 or 2 * sum(below[: cut + 1]) <= 0.05
        assert 2 * sum(below[: cut + 2]) > 0.05 or cut + 1 >= count // 2


def test_timing_stops_as_soon_as_the_interval_is_narrow():
    time = Time()
    [found] = time_runners([time.runner([0.02]), time.runner([0.01])], now=time)
    assert found.rounds == MIN_ROUNDS


def test_timing_goes_on_while_the_rounds_differ():
    time, draw = Time(), random.Random(0)
    noisy = [0.001 * draw.uniform(1, 2) for _ in range(97)]
    [found] = time_runners([time.runner([0.001]), time.runner(noisy)], now=time)
    assert found.rounds == MAX_ROUNDS
    assert found.ratio == pytest.approx(1000 * statistics.median(noisy[:MAX_ROUNDS]))


def test_timing_ends_with_the_budget():
    time = Time()
    noisy = time.runner([0.1, 0.3])
    [found] = time_runners([time.runner([0.1]), noisy], budget=2.0, now=time)
    assert MIN_ROUNDS <= found.rounds < MAX_ROUNDS and time() <= 2.0


def test_too_few_rounds_tell_nothing():
    time = Time()
    assert time_runners([time.runner([0.5])] * 2, budget=2.0, now=time) is None
    assert time() <= 2.0
    time = Time()
    [found] = time_runners([time.runner([0.3])] * 2, budget=2.0, now=time)
    assert found.rounds == FEWEST_ROUNDS


def test_what_must_be_timed_is_however_long_it_takes(monkeypatch):
    time = Time()
    [found] = time_runners([time.runner([5.0])] * 2, fewest=FEWEST_ROUNDS, now=time)
    assert found.rounds == FEWEST_ROUNDS
    monkeypatch.setattr(clock._Runner, "_run", lambda self, times: 5.0)
    loaded, samples = graph.load_model(make_mlp()), make_samples(make_mlp(), 1) * 2
    assert time_models([loaded] * 2, samples) is None
    [found] = time_models([loaded] * 2, samples, however_long=True)
    assert found.interval_ms == pytest.approx((found.low * 5000, found.high * 5000))


def test_models_are_timed_beside_the_first():
    model = make_mlp()
    loaded = graph.load_model(model)
    found = time_models([loaded] * 3, make_samples(model, 1) * 3, budget=0.2)
    assert len(found) == 2
    for one in found:
        assert one.rounds >= FEWEST_ROUNDS and one.low <= one.ratio <= one.high
        assert one.where == "one thread"


def test_runs_that_fill_the_budget_are_not_timed(monkeypatch):
    model = make_mlp()
    loaded = graph.load_model(model)
    monkeypatch.setattr(clock._Runner, "_run", lambda self, times: 1.0)
    assert time_models([loaded] * 2, make_samples(model, 1) * 2) is None


def test_the_shortest_of_the_runs_of_a_turn_counts(monkeypatch):
    model = make_mlp()
    runner = clock._Runner(graph.load_model(model), make_samples(model, 1)[0], 1, None, False)
    taken, seconds = iter([5.0, 3.0, 4.0]), [0.0]
    run = lambda feeds: seconds.append(seconds[-1] + next(taken))  # noqa: E731
    monkeypatch.setattr(runner._session, "run", run)
    runner._clock = lambda: seconds[-1]
    assert runner._run(3) == 3.0


def test_a_clock_that_goes_in_steps_times_short_runs_all_the_same(monkeypatch):
    monkeypatch.setattr(clock.time, "process_time", lambda: 7.0)
    model = make_mlp()
    loaded = graph.load_model(model)
    [found] = time_models([loaded] * 2, make_samples(model, 1) * 2, budget=0.2)
    assert 0 < found.ratio < math.inf


def test_a_sample_is_fed_in_the_types_of_the_model():
    model = make_mlp()
    halves = graph.load_model(retype(model, np.float16, TensorProto.FLOAT16))
    [array] = clock.fit_sample(make_samples(model, 1)[0], halves).values()
    assert array.dtype == np.float16


def test_all_cores_and_other_providers_are_timed_by_the_seconds_that_pass(monkeypatch):
    seen = []

    def open_runner(model, sample, threads, providers, elapsed):
        seen.append(elapsed)
        return SimpleNamespace(first_seconds=math.inf)

    monkeypatch.setattr(clock, "_Runner", open_runner)
    for threads, providers in ((1, None), (None, None), (1, ["CUDAExecutionProvider"])):
        time_models([None], [{}], threads=threads, providers=providers)
    assert seen == [sys.platform == "win32", True, True]
