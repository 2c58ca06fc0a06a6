"""Temporary files go with the job, and those of killed jobs with the next one."""

import subprocess
import sys
from pathlib import Path

import pytest

from bitwright.graph import load_model, save_model
from bitwright.graph.temporaries import temporary_beside

WRITER = """
import sys, time
from pathlib import Path
from bitwright.graph.temporaries import temporary_beside
with temporary_beside(Path(sys.argv[1])) as path:
    path.write_bytes(b"half of it")
    print("ready", flush=True)
    time.sleep(100)
"""


@pytest.fixture
def writer(tmp_path):
    """A process that writes data beside a model and never ends by itself."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "m.onnx.data")],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def test_what_a_killed_job_left_goes_when_the_model_is_written_again(tmp_path, builders, writer):
    (left,) = tmp_path.iterdir()
    writer.kill()
    writer.wait()
    assert left.read_bytes() == b"half of it"
    save_model(load_model(builders.mlp()), tmp_path / "m.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_what_another_job_is_writing_stays(tmp_path, builders, writer):
    (other,) = tmp_path.iterdir()
    save_model(load_model(builders.mlp()), tmp_path / "m.onnx")
    assert set(tmp_path.iterdir()) == {other, tmp_path / "m.onnx"}
    assert writer.poll() is None


def test_files_of_others_stay(tmp_path):
    others = [".m.onnx.tmp", ".m.onnx.12345.tmp", ".n.onnx.0123456789ab.tmp", "m.0123456789ab.tmp"]
    for name in others:
        (tmp_path / name).touch()
    with temporary_beside(tmp_path / "m.onnx"):
        assert len(list(tmp_path.iterdir())) == len(others) + 1
    assert {path.name for path in tmp_path.iterdir()} == set(others)


def test_a_failure_leaves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt), temporary_beside(tmp_path / "m.onnx") as path:
        assert path.parent == tmp_path and Path(path).exists()
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())
