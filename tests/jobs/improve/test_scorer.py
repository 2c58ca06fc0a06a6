"""Scores end as early as they may, and go on from what the journal has."""

import numpy as np
import pytest

from bitwright.data import InputSpec
from bitwright.data.labelled import open_labelled
from bitwright.jobs.improve.journal import Journal
from bitwright.jobs.improve.metrics import Metric, open_metric
from bitwright.jobs.improve.scorer import Runnable, Scorer
from bitwright.jobs.tuning.request import split_parts

COUNT = 320
SPEC = InputSpec("x", np.dtype("float32"), (1, 1))
NUMBERS = np.arange(COUNT, dtype=np.float32)[:, None]
LABELS = NUMBERS[:, 0] % 2
ORDER = tuple(int(n) for n in np.random.default_rng(3).permutation(COUNT))


class Session:
    """A model that gives its input back, wrong for every so many of them, and counts its runs."""

    def __init__(self, wrong_every=None, wrong=()):
        self.runs, self.wrong_every, self.wrong = 0, wrong_every, wrong

    def run(self, feeds):
        self.runs += 1
        number = int(feeds["x"][0, 0])
        wrong = self.wrong_every is not None and number % self.wrong_every == 0
        wrong = wrong or number in self.wrong
        return {"y": np.array([number % 2 if not wrong else 2.0])}


def right(outputs, sample):
    return float(outputs["y"][0] == sample["label"])


def scorer(journal, metric=None, session=None):
    samples = open_labelled({"x": NUMBERS, "label": LABELS}, [SPEC])
    return Scorer(
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
    tested = scorer(journal()).score("bad", lambda: Runnable(bad, None), 0.01)
    assert tested.verdict == "fail"
    assert bad.runs == tested.drop.samples == COUNT // 8


def test_one_close_to_the_limit_takes_all_samples_and_its_mean_decides():
    close = Session(wrong_every=100)
    tested = scorer(journal()).score("close", lambda: Runnable(close, None), 0.0125)
    assert close.runs == COUNT
    assert tested.drop.mean == pytest.approx(4 / COUNT)
    assert tested.verdict == "pass"
    assert not tested.drop.is_sure(0.0125)


def test_beside_a_model_within_the_limit_one_that_hardly_will_be_takes_no_more_samples():
    runs = {}
    for has_other in (False, True):
        session = Session(wrong_every=12)
        one = scorer(journal(), metric=Metric("unbounded", lambda o, s: 2 * right(o, s)))
        tested = one.score("a", lambda s=session: Runnable(s, None), 0.08, has_other=has_other)
        assert tested.verdict == "fail"
        assert tested.drop.mean > 0.08
        runs[has_other] = session.runs
    assert runs[True] < runs[False]


def test_another_limit_goes_on_where_the_first_ended():
    kept, first, second = journal(), Session(wrong_every=10), Session(wrong_every=10)
    scorer(kept).score("a", lambda: Runnable(first, None), 0.5)
    tested = scorer(kept).score("a", lambda: Runnable(second, None), 0.1)
    assert first.runs < COUNT
    assert first.runs + second.runs == tested.drop.samples == COUNT


def test_float_is_run_once():
    kept, session = journal(), Session()
    one = scorer(kept, session=session)
    assert one.float_score(whole=True) == (1.0, COUNT)
    one.score("a", lambda: Runnable(Session(), None), 0.01)
    assert scorer(kept, session=session).float_score() == (1.0, COUNT)
    assert session.runs == COUNT


def test_float_is_run_no_further_than_the_models_beside_it():
    kept, session, bad = journal(), Session(), Session(wrong_every=1)
    one = scorer(kept, session=session)
    assert one.float_score() == (1.0, COUNT // 8)
    one.score("bad", lambda: Runnable(bad, None), 0.01)
    assert session.runs == bad.runs == COUNT // 8
    one.score("close", lambda: Runnable(Session(wrong_every=100), None), 0.0125)
    assert session.runs == COUNT
    assert scorer(kept, session=session).float_score() == (1.0, COUNT)
    assert session.runs == COUNT


def test_where_float_is_often_wrong_it_is_not_run_on_all_samples_to_find_the_hard_ones():
    session, bad = Session(wrong_every=2), Session(wrong_every=1)
    one = scorer(journal(), session=session)
    tested = one.score("bad", lambda: Runnable(bad, None), 0.3)
    assert tested.verdict == "fail"
    assert session.runs == bad.runs == tested.drop.samples < COUNT


def test_one_that_is_likely_to_pass_does_not_have_float_run_on_all_samples():
    session, good = Session(), Session(wrong_every=40)
    one = scorer(journal(), session=session)
    tested = one.score("good", lambda: Runnable(good, None), 0.15)
    assert tested.verdict == "pass"
    assert session.runs == good.runs == tested.drop.samples < COUNT


def test_in_order_no_sample_is_taken_before_others():
    """Else the drop would be known at one end only."""
    judge, lost = scorer(journal()), range(0, COUNT, 60)
    for name in ("first", "second"):
        session = Session(wrong=lost)
        opened = Runnable(session, None)
        tested = judge.score(name, lambda opened=opened: opened, 0.0125, in_order=True)
        assert tested.drop.interval is not None
        assert session.runs == COUNT


def test_a_stop_between_two_looks_keeps_what_was_seen():
    session = Session(wrong_every=20)
    tested = scorer(journal()).score(
        "a", lambda: Runnable(session, None), 0.05, may_go_on=lambda seconds: False
    )
    assert tested.verdict == "open"
    assert session.runs == tested.drop.samples == COUNT // 8


def test_the_mean_as_a_metric_of_the_set_drops_as_far_as_sample_by_sample():
    def share(outputs, samples):
        return float(np.mean([right(o, s) for o, s in zip(outputs, samples, strict=True)]))

    opened = Runnable(Session(wrong_every=8), None)
    alone = scorer(journal()).score("a", lambda: opened, 1 / 8)
    of_set = scorer(journal(), Metric("share", share, "set")).score("a", lambda: opened, 1 / 8)
    assert alone.drop.samples == of_set.drop.samples == COUNT
    assert of_set.drop.mean == pytest.approx(alone.drop.mean)
    assert of_set.drop.error == pytest.approx(alone.drop.error, rel=0.5)


def test_agreement_needs_no_labels_and_counts_what_changed():
    metric = Metric("same", lambda o, s, e: float(o["y"][0] == e["y"][0]), against_float=True)
    opened = Runnable(Session(wrong_every=4), None)
    tested = scorer(journal(), metric).score("a", lambda: opened, 1 / 4)
    assert tested.drop.mean == pytest.approx(1 / 4)
    assert open_metric("agreement").against_float


def test_what_an_earlier_model_lost_comes_first_and_is_counted():
    """Six samples are lost where four may be: they are enough, once they are known."""
    judge, lost = scorer(journal()), range(0, COUNT, 60)
    first, second = Session(wrong=lost), Session(wrong=lost)
    slow = judge.score("first", lambda: Runnable(first, None), 0.0125)
    quick = judge.score("second", lambda: Runnable(second, None), 0.0125)
    assert slow.verdict == quick.verdict == "fail"
    assert quick.drop.at_least and quick.drop.mean > 0.0125
    assert quick.drop.is_sure(0.0125)
    assert first.runs == COUNT
    assert second.runs == quick.drop.samples <= COUNT // 8 + 6


def test_samples_that_float_is_unsure_of_come_first():
    def scores(model, feeds):
        number = int(feeds["x"][0, 0])
        margin = 0.01 if number % 60 == 0 else 1.0
        best = number % 2 if model.wrong_every is None or number % 60 else 1 - number % 2
        return {"y": np.array([[margin, 0.0] if best == 0 else [0.0, margin]], np.float32)}

    class Classes(Session):
        def run(self, feeds):
            self.runs += 1
            return scores(self, feeds)

    def correct(outputs, sample):
        return float(outputs["y"].argmax() == sample["label"])

    judge = scorer(journal(), Metric("correct", correct), Classes())
    bad = Classes(wrong_every=60)
    tested = judge.score("bad", lambda: Runnable(bad, None), 0.0125)
    assert tested.verdict == "fail" and tested.drop.at_least
    assert bad.runs <= COUNT // 8 + 6


@pytest.mark.parametrize("seed", range(12))
def test_counting_never_contradicts_all_samples(seed):
    """Whatever float gets wrong and the model gains, and wherever that is."""
    random = np.random.default_rng(seed)
    limit = float(random.choice([0.0, 0.01, 0.03]))

    def some(share):
        return set(np.flatnonzero(random.random(COUNT) < share).tolist())

    missed, wrong = some(random.choice([0, 0.05, 0.3])), some(0.03)
    judge = scorer(journal(), session=Session(wrong=missed))
    for name in ("first", "second"):
        # What float gets wrong, this may get right.
        wrong = (wrong | some(0.01)) ^ (missed & some(0.5))
        tested = judge.score(name, lambda wrong=wrong: Runnable(Session(wrong=wrong), None), limit)
        drop = (len(wrong) - len(missed)) / COUNT
        if tested.drop.at_least:
            assert drop > limit
            assert tested.drop.samples < COUNT


def test_what_other_samples_may_gain_is_counted_as_gained():
    """The second model loses the same six, and gains as many that float got wrong."""
    lost, missed = set(range(0, COUNT, 60)), set(range(1, COUNT, 60))
    judge = scorer(journal(), session=Session(wrong=missed))
    first = judge.score("first", lambda: Runnable(Session(wrong=lost | missed), None), 0.0125)
    second = judge.score("second", lambda: Runnable(Session(wrong=lost), None), 0.0125)
    assert first.verdict == "fail"
    assert second.verdict == "pass"
    assert second.drop.mean == 0


def test_without_a_largest_score_nothing_is_counted():
    """Another sample could gain what these lost."""
    metric = Metric("size", lambda outputs, sample: 0.5 + right(outputs, sample))
    judge, lost = scorer(journal(), metric), range(0, COUNT, 60)
    for name in ("first", "second"):
        session = Session(wrong=lost)
        tested = judge.score(name, lambda session=session: Runnable(session, None), 0.0125)
        assert tested.verdict == "fail" and not tested.drop.at_least
        assert session.runs == COUNT


def test_what_the_journal_tells_needs_no_run():
    kept, session = journal(), Session(wrong_every=10)
    for limit in (0.5, 0.1, 0.1, 0.5):  # the first passes early
        scorer(kept).score("a", lambda: Runnable(session, None), limit)
    assert session.runs == COUNT


def test_what_is_known_of_a_model_is_not_counted_again():
    """With another limit, its own scores of all samples tell more than hard samples would."""
    kept, fewer, more = journal(), range(0, COUNT, 160), range(40, COUNT, 60)
    sessions = [Session(wrong=lost) for lost in (fewer, more, fewer)]
    scorer(kept).score("a", lambda: Runnable(sessions[0], None), 0.0125)
    judge = scorer(kept)
    judge.score("b", lambda: Runnable(sessions[1], None), 0.0125)  # loses samples that are hard now
    judge.score("a", lambda: Runnable(sessions[2], None), 0.0125)
    assert sessions[0].runs == COUNT
    assert sessions[2].runs == 0


def test_counted_samples_are_not_run_again():
    kept, lost = journal(), range(0, COUNT, 60)
    sessions = [Session(wrong=lost) for _ in range(3)]
    scorer_ = scorer(kept)
    for name, session in zip("abb", sessions, strict=True):
        limit = 0.0125 if session is not sessions[2] else 6 / COUNT
        tested = scorer_.score(name, lambda session=session: Runnable(session, None), limit)
    assert tested.verdict == "pass"
    assert sessions[1].runs + sessions[2].runs == tested.drop.samples == COUNT


@pytest.mark.parametrize("count", [32, 100, 1000])
@pytest.mark.parametrize("calibrates", [True, False])
def test_no_sample_is_in_two_parts_and_none_is_lost(calibrates, count):
    parts = split_parts(count, calibrates=calibrates)
    everything = [index for part in parts for index in part]
    assert sorted(everything) == list(range(count))
    assert len(parts.final) >= min(50, count // 4)
    assert bool(parts.calibration) == calibrates
    assert parts == split_parts(count, calibrates=calibrates)


def test_of_a_function_that_gives_float_nothing_the_user_is_told():
    nothing = Metric("own", lambda outputs, sample: 0.0)
    with pytest.warns(UserWarning, match=r"itself has own 0 on .*, so that no drop says anything"):
        scorer(journal(), nothing).float_score()
    errors = Metric("own", lambda outputs, sample: 0.0, sign=-1.0)
    assert scorer(journal(), errors).float_score()[0] == 0
