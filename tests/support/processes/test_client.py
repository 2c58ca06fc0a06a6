import sys
import time

import pytest

from bitwright.support.processes import Child, ChildLost, ChildRefused, client

WORKER = """
import os, sys, time

class Worker:
    def add(self, a, b):
        print("not an answer")
        return a + b

    def fail(self, words):
        raise ValueError(words)

    def die(self, code):
        os._exit(code)

    def babble(self, words):
        # The pipe that answers go to, whatever its number is here.
        for number in range(3, 20):
            try:
                os.write(number, words.encode())
            except OSError:
                continue

    def stutter(self, words):
        self.babble(words)
        os._exit(3)

    def modules(self):
        return sorted(name.partition(".")[0] for name in sys.modules)

    def path(self):
        return sys.path

    def sleep(self, seconds):
        time.sleep(seconds)
"""


@pytest.fixture
def worker(tmp_path):
    file = tmp_path / "json.py"  # a name that must not shadow the standard library's
    file.write_text(WORKER)
    return file


@pytest.fixture
def child(worker):
    with Child(worker) as child:
        yield child


def test_a_child_answers_whatever_it_prints_besides(child):
    assert [child.ask("add", a=n, b=0.5) for n in range(3)] == [0.5, 1.5, 2.5]


def test_a_child_finds_the_same_modules_and_has_none_of_ours(child):
    assert child.ask("path") == sys.path
    assert not {"bitwright", "numpy"} & set(child.ask("modules"))


def test_what_goes_wrong_there_is_raised_here_and_the_child_lives_on(child):
    with pytest.raises(ChildRefused, match=r"^too warm$"):
        child.ask("fail", words="too warm")
    with pytest.raises(ChildRefused, match=r"^ValueError$"):
        child.ask("fail", words="")
    with pytest.raises(ChildRefused, match="dance"):
        child.ask("dance")
    assert child.is_alive and child.ask("add", a=1, b=1) == 2


def test_a_worker_that_does_not_load_says_why(tmp_path):
    (tmp_path / "broken.py").write_text("import nothing_like_this")
    with Child(tmp_path / "broken.py") as child:
        for _ in range(2):
            with pytest.raises(ChildRefused, match="nothing_like_this"):
                child.ask("add")


def test_a_child_that_dies_is_lost_with_its_code(child):
    with pytest.raises(ChildLost, match="ended with code 7"):
        child.ask("die", code=7)
    with pytest.raises(ChildLost, match="ended with code 7"):
        child.ask("add", a=1, b=1)
    assert not child.is_alive


@pytest.mark.parametrize("words", ["nonsense\n", "[1, 2]\n", "{}\n", "7\n"])
def test_a_child_that_talks_nonsense_is_lost_and_ended(child, words):
    with pytest.raises(ChildLost, match="makes no sense"):
        child.ask("babble", words=words)
    assert not child.is_alive


def test_half_an_answer_is_none(child):
    with pytest.raises(ChildLost, match="ended with code 3"):
        child.ask("stutter", words='{"answer": 12')


def test_nobody_answers_after_the_end(child):
    child.kill()
    with pytest.raises(ChildLost, match="ended with code"):
        child.ask("add", a=1, b=1)


def test_a_child_ends_by_itself_when_it_is_closed(worker):
    with Child(worker) as child:
        child.ask("add", a=1, b=1)
    assert child._process.returncode == 0
    child.close()  # a second time does no harm


def test_a_child_that_does_not_end_in_time_is_killed(worker, monkeypatch):
    monkeypatch.setattr(client, "_PATIENCE", 0.2)
    child = Child(worker)
    child._write({"do": "sleep", "seconds": 60})
    start = time.perf_counter()
    child.close()
    assert not child.is_alive and time.perf_counter() - start < 30
