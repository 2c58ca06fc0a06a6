"""Evaluations end as early as they may, and go on from what the journal has."""

from types import SimpleNamespace

import numpy as np
import pytest

from bitwright.data import InputSpec
from bitwright.data.labelled import open_labelled
from bitwright.jobs.tuning.evaluation import Evaluator, Runnable
from bitwright.jobs.tuning.journal import Journal
from bitwright.jobs.tuning.metrics import Metric, open_metric
from bitwright.jobs.tuning.splits import split_all, split_evaluation

COUNT = 320
SPEC = InputSpec("x", np.dtype("float32"), (1, 1))
NUMBERS = np.arange(COUNT, dtype=np.float32)[:, None]
LABELS = NUMBERS[:, 0] % 2
ORDER = tuple(int(n) for n in np.random.default_rng(3).permutation(COUNT))


class Session:
    """A model that gives its input back, wrong for every so many of them, and counts its runs."""

    def __init__(self, wrong_every=None):
        self.runs, self.wrong_every = 0, wrong_every

    def get_outputs(self):
        return [SimpleNamespace(name="y", type="tensor(float)")]

    def run(self, names, feeds, *_):
        self.runs += 1
        number = int(feeds["x"][0, 0])
        wrong = self.wrong_every is not None and number % self.wrong_every == 0
        return [np.array([number % 2 if not wrong else 2.0])]


def right(outputs, sample):
    return float(outputs["y"][0] == sample["label"])


def evaluator(journal, metric=None, session=None):
    samples = open_labelled({"x": NUMBERS, "label": LABELS}, [SPEC])
    return Evaluator(
        metric or Metric("right", right),
        lambda: samples,
        ORDER,
        journal,
        lambda: Runnable(session or Session(), None),
        part="eval",
    )


def journal():
    return Journal(None, {})


def test_a_model_far_beyond_the_limit_is_run_on_an_eighth_of_the_samples():
    bad = Session(wrong_every=1)
    tested = evaluator(journal()).test("bad", lambda: Runnable(bad, None), 0.01)
    assert tested.verdict == "fail"
    assert bad.runs == tested.drop.samples == COUNT // 8


def test_one_close_to_the_limit_takes_all_samples_and_its_mean_decides():
    close = Session(wrong_every=100)
    tested = evaluator(journal()).test("close", lambda: Runnable(close, None), 0.0125)
    assert close.runs == COUNT
    assert tested.drop.mean == pytest.approx(4 / COUNT)
    assert tested.verdict == "pass"
    assert not tested.drop.is_sure(0.0125)


def test_another_limit_goes_on_where_the_first_ended():
    kept, first, second = journal(), Session(wrong_every=10), Session(wrong_every=10)
    evaluator(kept).test("a", lambda: Runnable(first, None), 0.5)
    tested = evaluator(kept).test("a", lambda: Runnable(second, None), 0.1)
    assert first.runs < COUNT
    assert first.runs + second.runs == tested.drop.samples == COUNT


def test_float_is_run_once():
    kept, session = journal(), Session()
    one = evaluator(kept, session=session)
    assert one.float_score == 1.0
    one.test("a", lambda: Runnable(Session(), None), 0.01)
    assert evaluator(kept, session=session).float_score == 1.0
    assert session.runs == COUNT


def test_a_stop_between_two_looks_keeps_what_was_seen():
    session = Session(wrong_every=20)
    tested = evaluator(journal()).test(
        "a", lambda: Runnable(session, None), 0.05, may_go_on=lambda seconds: False
    )
    assert tested.verdict == "open"
    assert session.runs == tested.drop.samples == COUNT // 8


def test_the_mean_as_a_metric_of_the_set_drops_as_far_as_sample_by_sample():
    def share(outputs, samples):
        return float(np.mean([right(o, s) for o, s in zip(outputs, samples, strict=True)]))

    opened = Runnable(Session(wrong_every=8), None)
    alone = evaluator(journal()).test("a", lambda: opened, 0.0, in_one=True)
    of_set = evaluator(journal(), Metric("share", share, "set")).test(
        "a", lambda: opened, 0.0, in_one=True
    )
    assert of_set.drop.mean == pytest.approx(alone.drop.mean)
    assert of_set.drop.error == pytest.approx(alone.drop.error, rel=0.5)


def test_agreement_needs_no_labels_and_counts_what_changed():
    metric = Metric("same", lambda o, s, e: float(o["y"][0] == e["y"][0]), against_float=True)
    opened = Runnable(Session(wrong_every=4), None)
    tested = evaluator(journal(), metric).test("a", lambda: opened, 1.0, in_one=True)
    assert tested.drop.mean == pytest.approx(1 / 4)
    assert open_metric("agreement").against_float


@pytest.mark.parametrize("count", [32, 100, 1000])
@pytest.mark.parametrize("split", [split_all, split_evaluation])
def test_no_sample_is_in_two_parts_and_none_is_lost(split, count):
    parts = split(count)
    everything = [index for part in parts for index in part]
    assert sorted(everything) == list(range(count))
    assert len(parts.final) >= min(50, count // 4)
    assert parts == split(count)
