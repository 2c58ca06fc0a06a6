import logging

from bitwright.support import progress
from bitwright.support.progress import ProgressLines, show_progress


def advance(monkeypatch, *moments):
    times = iter(moments)
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(times))


def test_without_a_terminal_a_line_comes_every_few_seconds(monkeypatch, caplog):
    caplog.set_level(logging.INFO, "bitwright.progress")
    advance(monkeypatch, 0.0, 1.0, 6.0, 7.0, 12.0)
    with show_progress(True, "Observing", 40) as update:
        for done in (1, 10, 11, 20):
            update(done, "a detail")
    assert caplog.messages == [
        "Observing: 10 of 40, 6 s so far",
        "Observing: 20 of 40, about 16 s left",
    ]


def test_one_slow_step_among_fast_ones_says_little_of_what_is_left(monkeypatch, caplog):
    caplog.set_level(logging.INFO, "bitwright.progress")
    advance(monkeypatch, 0.0, 7.0, *(7.0 + 0.1 * step for step in range(1, 60)))
    lines = ProgressLines("Weights")
    for done in range(1, 61):
        lines(done, 100)
    assert caplog.messages == [
        "Weights: 1 of 100, 7 s so far",
        "Weights: 51 of 100, about 5 s left",
    ]


def test_work_without_a_known_end_and_without_a_start_has_lines_too(monkeypatch, caplog):
    caplog.set_level(logging.INFO, "bitwright.progress")
    advance(monkeypatch, 0.0, 6.0, 12.0)
    lines = ProgressLines("Reading")
    lines(3, None)
    lines(0, 8)
    assert caplog.messages == ["Reading: 3 done in 6 s", "Reading: 0 of 8, 12 s so far"]


def test_nobody_is_told_where_no_progress_is_wanted(monkeypatch, caplog):
    caplog.set_level(logging.INFO, "bitwright.progress")
    with show_progress(False, "Observing", 40) as update:
        update(1)
    assert not caplog.messages


def test_a_program_without_streams_is_served(monkeypatch, caplog):
    monkeypatch.setattr("sys.stderr", None)
    with show_progress(True, "Observing", total=2) as update:
        update(1, "conv\x1b")
    assert caplog.records == []
