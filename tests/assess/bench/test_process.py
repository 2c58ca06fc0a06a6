"""Models run interleaved, so that none is always first."""

import pytest

from bitwright.assess.bench.process import run_interleaved


def run_all(runners, **options):
    """Return the seconds of all runs of each runner."""
    rounds = run_interleaved(runners, **options)
    return [[one for times in found for one in times] for found in zip(*rounds, strict=True)]


class Recorder:
    """Says when it was asked to run."""

    def __init__(self, name, log, step=0.001):
        self.name, self.log, self.step = name, log, step

    def burst(self, *, runs=None, seconds=0.0):
        count = runs if runs is not None else max(1, round(seconds / self.step))
        self.log.append(self.name)
        return [self.step] * count


def test_models_run_interleaved_and_none_is_always_first():
    log = []
    run_interleaved([Recorder(name, log) for name in "abc"], runs=10, seconds=0)
    rounds = ["".join(log[start : start + 3]) for start in range(0, len(log), 3)]
    assert rounds == ["abc", "cba"] * 5


@pytest.mark.parametrize("runs", [1, 7, 10, 33])
def test_each_model_runs_exactly_as_often_as_asked(runs):
    times = run_all([Recorder("a", []), Recorder("b", [])], runs=runs, seconds=0)
    assert [len(each) for each in times] == [runs, runs]


def test_time_is_shared_out_whatever_a_model_takes():
    times = run_all([Recorder("a", [], 0.01), Recorder("b", [], 0.1)], runs=None, seconds=1.0)
    assert [round(sum(each), 6) for each in times] == [1.0, 1.0]


def test_a_run_longer_than_all_the_time_is_made_once():
    log = []
    times = run_all([Recorder("a", log, 5.0)], runs=None, seconds=1.0)
    assert times == [[5.0]]


def test_progress_is_told_round_by_round():
    seen = []
    run_interleaved([Recorder("a", [])], runs=3, seconds=0, on_round=seen.append)
    assert seen == [1, 2, 3]
