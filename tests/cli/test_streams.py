"""Standard streams that are closed, full or have no reader, as cron, daemons and `| head` have."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bitwright.cli.streams import LastingStream

needs_shell = pytest.mark.skipif(sys.platform == "win32", reason="needs a Unix shell")


def shell(line, **places):
    """Run a line with `{bitwright}` in it, and return its exit code and standard error."""
    line = line.format(bitwright=f"{sys.executable} -m bitwright", **places)
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


@needs_shell
def test_a_job_without_any_stream_writes_its_result(model, out):
    line = "{bitwright} quantize {model} -o {out} --random-data 2 <&- >&- 2>&-"
    assert shell(line, model=model, out=out) == (0, "")
    assert out.stat().st_size > 1000


@needs_shell
@pytest.mark.slow
@pytest.mark.parametrize("streams", [">&-", "2>&-", ">&- 2>&-"])
def test_a_closed_stream_is_no_error(model, streams):
    code, error = shell("{bitwright} inspect {model} " + streams, model=model)
    assert (code, error) == (0, "")


@needs_shell
@pytest.mark.slow
def test_a_full_disk_behind_both_streams_leaves_the_result(model, out):
    line = "{bitwright} quantize {model} -o {out} --random-data 2 >/dev/full 2>/dev/full"
    assert shell(line, model=model, out=out)[0] == 1
    assert out.stat().st_size > 1000


@needs_shell
@pytest.mark.parametrize("words", ["inspect {model}", "--help"])
def test_a_full_disk_behind_the_output_is_one_sentence(model, words):
    code, error = shell("{bitwright} " + words + " >/dev/full", model=model)
    assert code == 1
    assert error.startswith("error: what the command says could not be written (No space left")
    assert error.count("\n") == 1


@needs_shell
@pytest.mark.parametrize(
    "words", ["inspect {model} --json", "quantize {model} -o - --random-data 2 -q"]
)
def test_a_reader_that_leaves_early_ends_nothing(model, words):
    line = "{bitwright} " + words + " | true; exit ${{PIPESTATUS[0]}}"
    code, error = shell(line, model=model)
    assert (code, error) == (0, "")


def test_what_follows_a_failure_is_dropped_and_the_first_reason_kept():
    class Full:
        def write(self, text):
            raise OSError(28, f"full at {text}")

        def fileno(self):
            return file.fileno()

    with Path(os.devnull).open("w") as file:
        stream = LastingStream(Full())
        assert (stream.write("ab"), stream.write("c")) == (2, 1)
    assert stream.problem == "full at ab"
