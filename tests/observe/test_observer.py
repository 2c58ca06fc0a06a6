import threading
import weakref

import numpy as np
import pytest

from bitwright.errors import DataError
from bitwright.observe import Observation, TensorSketch, observe, observer


class Doubling:
    """Returns 2x and -x, each group in a run of its own."""

    def __init__(self, groups=(("double", "minus"),)):
        self.cut = [tuple(group) for group in groups]
        self.runs = []

    def groups(self, feeds):
        return self.cut

    def run(self, group, feeds):
        self.runs.append(group)
        values = {"double": 2 * feeds["x"], "minus": -feeds["x"]}
        return {name: values[name] for name in group}


def samples(count, size=6):
    rng = np.random.default_rng(0)
    return [{"x": rng.normal(size=(2, size)).astype(np.float32)} for _ in range(count)]


def test_every_tensor_gets_the_sketch_of_all_its_values():
    data = samples(5)
    seen = observe(Doubling(), ["double", "minus"], data)
    assert seen.sketches["double"] == TensorSketch.of(*(2 * s["x"] for s in data))
    assert seen.sketches["minus"] == TensorSketch.of(*(-s["x"] for s in data))
    assert (seen.samples, seen.shapes) == (5, {"double": (2, 6), "minus": (2, 6)})


def test_groups_change_nothing_and_generators_are_read_once():
    data = samples(4)
    runner = Doubling([["double"], ["minus"]])
    in_groups = observe(runner, ["double", "minus"], (s for s in data))
    assert in_groups.sketches == observe(Doubling(), ["double", "minus"], data).sketches
    assert runner.runs == [("double",), ("minus",)] * 4


def test_parts_merge_to_the_whole():
    data = samples(7)
    whole = observe(Doubling(), ["double"], data)
    merged = observe(Doubling(), ["double"], data[:3]) | observe(Doubling(), ["double"], data[3:])
    assert merged == whole


def count_few(monkeypatch):
    monkeypatch.setattr(observer, "COUNTED", 2000)


def test_all_samples_together_count_so_many_values_of_a_large_tensor(monkeypatch):
    count_few(monkeypatch)
    data = samples(20, 500)  # 1000 values each, of which 100 are to be counted
    seen = observe(Doubling(), ["double"], data).sketches["double"]
    share = TensorSketch.empty(most_counted=100)
    whole = TensorSketch.of(*(2 * s["x"] for s in data))
    for sample in data:
        share.update(2 * sample["x"])
    assert seen == share
    assert (seen.low, seen.high, seen.count) == (whole.low, whole.high, whole.count)
    assert np.gcd.reduce(seen.counts()) == 11  # each of them stands for so many
    assert seen.counts().sum() == pytest.approx(whole.count, rel=0.01)


def test_parts_that_know_the_number_of_all_samples_merge_to_the_whole(monkeypatch):
    count_few(monkeypatch)
    data = samples(20, 500)
    parts = [observe(Doubling(), ["double"], d, sample_count=20) for d in (data[:3], data[3:])]
    assert parts[0] | parts[1] == observe(Doubling(), ["double"], data)


def test_every_sample_counts_some_values_however_many_there_are(monkeypatch):
    count_few(monkeypatch)
    few = samples(2, 500)
    seen = observe(Doubling(), ["double"], few, sample_count=1_000_000).sketches["double"]
    assert seen.counts().sum() == pytest.approx(2000, rel=0.05)
    assert np.gcd.reduce(seen.counts()) == 17  # 1000 // 64, and odd


@pytest.mark.parametrize("known", [True, False])
def test_few_values_and_samples_of_unknown_number_are_counted_whole(known, monkeypatch):
    count_few(monkeypatch)
    data = samples(20, 50) if known else samples(20, 500)
    seen = observe(Doubling(), ["double"], data if known else iter(data))
    assert seen.sketches["double"] == TensorSketch.of(*(2 * s["x"] for s in data))


def test_shapes_may_vary():
    data = samples(1, 4) + samples(1, 9)
    seen = observe(Doubling(), ["double", "minus"], data)
    assert seen.sketches["double"].count == 2 * (4 + 9)
    assert seen.shapes["double"] == (2, 4)


def test_extremes_and_channels():
    data = samples(3)
    seen = observe(Doubling(), ["double"], data, detail="extremes", per_channel={"double": 1})
    sketch = seen.sketches["double"]
    assert not sketch.has_histogram
    expected = np.concatenate([2 * s["x"] for s in data]).max(axis=0)
    assert np.array_equal(sketch.channel_high, expected)


def test_at_most_two_sets_of_values_are_alive():
    class Watching(Doubling):
        def __init__(self):
            super().__init__([["double"]])
            self.alive, self.most = [], 0

        def run(self, group, feeds):
            value = np.ones(1000, np.float32)
            self.alive.append(weakref.ref(value))
            self.most = max(self.most, sum(ref() is not None for ref in self.alive))
            return {"double": value}

    runner = Watching()
    observe(runner, ["double"], samples(12))
    # the one being sketched and the one being made
    assert runner.most <= 2


def test_values_that_are_no_numbers_are_counted():
    data = [{"x": np.array([np.nan, np.inf, 1.0], np.float32)}]
    sketch = observe(Doubling(), ["double"], data).sketches["double"]
    assert (sketch.nan, sketch.inf, sketch.finite, sketch.count) == (1, 1, 1, 3)


def test_a_tensor_that_never_came_has_no_values():
    seen = observe(Doubling([["double"]]), ["double", "minus"], samples(2))
    assert seen.sketches["minus"].count == 0


def test_no_data_is_an_error_and_no_tensors_is_not():
    with pytest.raises(DataError, match="not a single sample"):
        observe(Doubling(), ["double"], [])
    assert observe(Doubling(), [], samples(1)) == Observation()


def test_an_error_in_the_sketching_thread_reaches_the_caller_with_the_tensor():
    data = [{"x": np.ones((1, 3), np.float32)}, {"x": np.ones((1, 4), np.float32)}]
    with pytest.raises(DataError, match="tensor 'double': the number of channels changed"):
        observe(Doubling(), ["double", "minus"], data, per_channel={"double": 1})


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_error_or_ctrl_c_in_the_data_stops_cleanly(error):
    def broken():
        yield from samples(2)
        raise error

    with pytest.raises(error):
        observe(Doubling(), ["double", "minus"], broken())
    assert not [t for t in threading.enumerate() if t.name.startswith("bitwright-sketch")]


def test_progress_is_a_call_a_sample_and_quiet_without_a_terminal(capsys):
    calls = []
    observe(Doubling(), ["double"], samples(3), progress=lambda *done: calls.append(done))
    assert calls == [(1, 3), (2, 3), (3, 3)]
    observe(Doubling(), ["double"], samples(3), progress=True)
    assert capsys.readouterr() == ("", "")


def test_a_bar_on_a_terminal(monkeypatch):
    import io
    import sys

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    observe(Doubling(), ["double"], samples(3))
    assert "Observing" in terminal.getvalue()


def test_wrong_options_are_refused():
    with pytest.raises(DataError, match="unknown detail"):
        observe(Doubling(), ["double"], samples(1), detail="everything")
    with pytest.raises(DataError, match="memory budget"):
        observe(Doubling(), ["double"], samples(1), memory_budget=0)
