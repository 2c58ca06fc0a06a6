"""A job that is stopped leaves nothing behind, and says so in its exit code."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from bitwright import load_demo
from bitwright.cli import app, main

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")


@posix_only
@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGINT, 130, "error: interrupted."), (signal.SIGTERM, 143, "error: terminated.")],
)
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
    # Python ends itself by the signal where that came while a dataclass was being made; a shell
    # sees the same number.
    assert (job.returncode % 256, told.strip()) in ((code, said), (-number % 256, said))
    assert not list(scratch.glob("bitwright-*")) and not list(out.iterdir())


@posix_only
def test_termination_is_told_apart_from_ctrl_c(run, model, monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setitem(app._COMMANDS, "inspect", _terminated)
    answer = run("inspect", "--json")
    assert (answer.code, answer.json["error"]["type"]) == (143, "Terminated")
    assert signal.getsignal(signal.SIGTERM) == before


def _terminated(json: bool = False) -> None:
    """Be told to stop."""
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_command_runs_in_any_thread(capsys):
    codes = []
    thread = threading.Thread(target=lambda: codes.append(main(["--version"])))
    thread.start()
    thread.join()
    assert codes == [0]
