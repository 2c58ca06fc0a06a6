"""A job that is stopped leaves nothing behind, and says so in its exit code."""

import os
import signal
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest

from bitwright import load_demo
from bitwright.cli import app, main
from bitwright.cli.stopping import Stopping

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")


@posix_only
@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGINT, 130, "error: interrupted."), (signal.SIGTERM, 143, "error: terminated.")],
)
@pytest.mark.sampled(1)
def test_a_stopped_job_leaves_no_files(tmp_path, number, code, said):
    scratch, out = tmp_path / "scratch", tmp_path / "out"
    scratch.mkdir()
    out.mkdir()
    demo = load_demo()
    np.save(tmp_path / "data.npy", np.concatenate([demo.calibration] * 50))
    words = ["quantize", str(demo.model_path), "--recipe", "int4-gptq", "-o", str(out / "q.onnx")]
    with subprocess.Popen(
        [sys.executable, "-m", "bitwright", *words, "--data", str(tmp_path / "data.npy")],
        env={**os.environ, "TMPDIR": str(scratch)},
        stderr=subprocess.PIPE,
        text=True,
        # Shells start jobs in the background deaf to Ctrl-C, and these tests with them.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as job:
        while not list(scratch.glob("bitwright-*")) and job.poll() is None:
            time.sleep(0.005)
        job.send_signal(number)
        _, told = job.communicate(timeout=30)
    assert (job.returncode, told.strip()) == (code, said)
    assert not list(scratch.glob("bitwright-*")) and not list(out.iterdir())


@posix_only
def test_termination_is_told_apart_from_ctrl_c(run, model, monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setitem(app._COMMANDS, "inspect", _terminated)
    answer = run("inspect", "--json")
    assert (answer.code, answer.json["error"]["type"]) == (143, "Terminated")
    assert signal.getsignal(signal.SIGTERM) == before


@posix_only
def test_an_interruption_that_an_extension_module_made_an_error_of_is_one(run, monkeypatch):
    monkeypatch.setitem(app._COMMANDS, "inspect", _terminated_while_importing)
    answer = run("inspect", "--json")
    assert (answer.code, answer.json["error"]["type"]) == (143, "Terminated")


def _terminated_while_importing(json: bool = False) -> None:
    """Raise what a module in C++ makes of an exception while it is imported."""
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)
    except KeyboardInterrupt as error:
        raise ImportError("initialization failed") from error


def _terminated(json: bool = False) -> None:
    """Be told to stop."""
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture
def hears_ctrl_c():
    """Shells start jobs in the background deaf to Ctrl-C, and these tests with them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@posix_only
@pytest.mark.usefixtures("hears_ctrl_c")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_that_a_callback_swallows_comes_again(monkeypatch, number):
    swallowed = []
    monkeypatch.setattr(sys, "unraisablehook", lambda event: swallowed.append(event.exc_value))
    with pytest.raises(KeyboardInterrupt), Stopping() as stopping:
        thing = _Thing()
        watched = weakref.ref(thing, lambda _: signal.raise_signal(number))
        del thing
        assert watched() is None and isinstance(swallowed[0], KeyboardInterrupt)
        threading.Event().wait(10)
    assert stopping.terminated is (number == signal.SIGTERM)


class _Thing:
    """What a weak reference may point at."""


@posix_only
@pytest.mark.usefixtures("hears_ctrl_c")
def test_an_interruption_on_its_way_lets_others_clean_up():
    cleaned = False
    with pytest.raises(KeyboardInterrupt), Stopping():
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            time.sleep(0.6)  # longer than it takes to come again
            cleaned = True
    assert cleaned


@posix_only
@pytest.mark.usefixtures("hears_ctrl_c")
@pytest.mark.parametrize("method", ["__enter__", "__exit__"])
def test_a_signal_on_the_threshold_is_told_as_any_other(monkeypatch, capsys, method):
    inner = getattr(Stopping, method)

    def interrupted(self, *arguments):
        result = inner(self, *arguments) if method == "__enter__" else None
        self._stop(signal.SIGTERM, None)
        return result

    monkeypatch.setattr(Stopping, method, interrupted)
    before = signal.getsignal(signal.SIGTERM)
    assert main(["--version"]) == 128 + signal.SIGTERM
    assert capsys.readouterr().err == "error: terminated.\n"
    assert signal.getsignal(signal.SIGTERM) is before


_STOPPED_INSIDE = """
import os, signal, sys
from bitwright.cli.stopping import Stopping

with Stopping() as stopping:
    try:
        exec("os.kill(os.getpid(), signal.SIGTERM)")
    except KeyboardInterrupt:
        pass
sys.exit(stopping.code)
"""


@posix_only
def test_a_signal_inside_a_string_of_code_has_the_same_exit_code(tmp_path):
    (tmp_path / "stopped.py").write_text(_STOPPED_INSIDE)
    ended = subprocess.run([sys.executable, "-m", "stopped"], cwd=tmp_path, check=False)
    assert ended.returncode == 128 + signal.SIGTERM


@pytest.fixture(scope="module")
def seconds_to_start(tmp_path_factory):
    """How long a command takes until it has calibrated on a few samples."""
    output = tmp_path_factory.mktemp("whole") / "q.onnx"
    words = ["quantize", str(load_demo().model_path), "-o", str(output), "--random-data", "64"]
    start = time.monotonic()
    subprocess.run([*_COMMAND, *words], check=True, capture_output=True)
    return time.monotonic() - start


# In parts, each of which ends in time on a machine that is busy.
@posix_only
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(10))
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_no_signal_is_lost_while_a_command_starts(tmp_path, seconds_to_start, number, part):
    words = ["quantize", str(load_demo().model_path), "-o", str(tmp_path / "q.onnx")]
    for moment in range(part, 50, 10):
        with subprocess.Popen(
            [*_COMMAND, *words, "--random-data", "64000"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        ) as job:
            time.sleep(seconds_to_start * moment / 50)
            job.send_signal(number)
            _, told = job.communicate(timeout=300)
        assert job.returncode % 256 in (128 + number, -number % 256), told
        # Before our first line runs, Python tells of Ctrl-C in its own way.
        ours = [line for line in told.splitlines() if not line.startswith("progress: ")]
        assert ours in ([], [f"error: {_WORDS[number]}."]) or "KeyboardInterrupt" in told
        assert not list(tmp_path.iterdir())


_COMMAND = (sys.executable, "-m", "bitwright")
_WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


def test_a_command_runs_in_any_thread(capsys):
    codes = []
    thread = threading.Thread(target=lambda: codes.append(main(["--version"])))
    thread.start()
    thread.join()
    assert codes == [0]
