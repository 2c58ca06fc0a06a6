import subprocess
import sys
import time
from pathlib import Path

import pytest

from bitwright.support.processes import WorkerError, WorkerLost, WorkerProcess, client

WORKER = """
import os, sys, time

class Worker:
    def add(self, a, b):
        print("not a result")
        return a + b

    def fail(self, words):
        raise ValueError(words)

    def die(self, code):
        os._exit(code)

    def babble(self, words):
        # The pipe that results go to, whatever its number is here.
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
def process(worker):
    with WorkerProcess(worker) as process:
        yield process


def test_a_worker_returns_results_whatever_it_prints_besides(process):
    assert [process.call("add", a=n, b=0.5) for n in range(3)] == [0.5, 1.5, 2.5]


def test_a_worker_finds_the_same_modules_and_has_none_of_ours(process):
    assert process.call("path") == sys.path
    assert not {"bitwright", "numpy"} & set(process.call("modules"))


def test_what_goes_wrong_there_is_raised_here_and_the_worker_lives_on(process):
    with pytest.raises(WorkerError, match=r"^too warm$"):
        process.call("fail", words="too warm")
    with pytest.raises(WorkerError, match=r"^ValueError$"):
        process.call("fail", words="")
    with pytest.raises(WorkerError, match="dance"):
        process.call("dance")
    assert process.is_alive and process.call("add", a=1, b=1) == 2


def test_a_worker_that_does_not_load_says_why(tmp_path):
    (tmp_path / "broken.py").write_text("import nothing_like_this")
    with WorkerProcess(tmp_path / "broken.py") as process:
        for _ in range(2):
            with pytest.raises(WorkerError, match="nothing_like_this"):
                process.call("add")


def test_a_worker_that_dies_is_lost_with_its_code(process):
    with pytest.raises(WorkerLost, match="ended with code 7"):
        process.call("die", code=7)
    with pytest.raises(WorkerLost, match="ended with code 7"):
        process.call("add", a=1, b=1)
    assert not process.is_alive


@pytest.mark.parametrize("words", ["nonsense\n", "[1, 2]\n", "{}\n", "7\n"])
def test_a_worker_that_talks_nonsense_is_lost_and_ended(process, words):
    with pytest.raises(WorkerLost, match="is no result"):
        process.call("babble", words=words)
    assert not process.is_alive


def test_half_a_result_is_none(process):
    with pytest.raises(WorkerLost, match="ended with code 3"):
        process.call("stutter", words='{"result": 12')


def test_a_call_after_the_end_fails(process):
    process.kill()
    with pytest.raises(WorkerLost, match="ended with code"):
        process.call("add", a=1, b=1)


def test_a_worker_ends_by_itself_when_it_is_closed(worker):
    with WorkerProcess(worker) as process:
        process.call("add", a=1, b=1)
    assert process._process.returncode == 0
    process.close()  # a second time does no harm


def test_a_worker_that_does_not_end_in_time_is_killed(worker, monkeypatch):
    monkeypatch.setattr(client, "_CLOSE_TIMEOUT", 0.2)
    process = WorkerProcess(worker)
    process._write({"method": "sleep", "arguments": {"seconds": 60}})
    start = time.perf_counter()
    process.close()
    assert not process.is_alive and time.perf_counter() - start < 30


_CLIENT = """
import sys
from pathlib import Path
from bitwright.support.processes import WorkerProcess

worker = WorkerProcess(Path(sys.argv[1]))
print(worker._process.pid, flush=True)
worker.call("sleep", seconds=60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")
def test_a_worker_ends_with_a_client_that_is_killed(tmp_path):
    (tmp_path / "worker.py").write_text(WORKER)
    with subprocess.Popen(
        [sys.executable, "-c", _CLIENT, str(tmp_path / "worker.py")],
        stdout=subprocess.PIPE,
        text=True,
    ) as job:
        worker = int(job.stdout.readline())
        time.sleep(0.5)
        job.kill()
    end = time.monotonic() + 20
    while _is_running(worker):
        assert time.monotonic() < end
        time.sleep(0.1)


def _is_running(number):
    """Whether a process is there; one that ended waits for its new parent to notice."""
    try:
        state = Path(f"/proc/{number}/stat").read_text()
    except FileNotFoundError:
        return False
    return state.rpartition(")")[2].split()[0] != "Z"
