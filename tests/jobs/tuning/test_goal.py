"""A goal of tuning, and the words that it is given in."""

from bitwright.jobs.tuning.request import Goal, read_drop, read_time


def test_drops_and_times_are_read_from_words():
    assert read_drop("0.5%") == (0.005, True)
    assert read_drop(0.02) == (0.02, False)
    seconds = [read_time(time) for time in ("20m", "1.5h", 90, None)]
    assert seconds == [1200.0, 5400.0, 90.0, None]


def test_a_goal_is_what_words_say():
    assert Goal.asked("1%", False, "size", "2MB", False, None).max_size == 2_000_000
    assert Goal(max_drop=0.01, relative=True).limit(0.8) == 0.008
