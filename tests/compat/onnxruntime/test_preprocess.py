"""`python -m bitwright.compat.onnxruntime.preprocess`."""

import subprocess
import sys
from pathlib import Path

import onnx
import onnxruntime
import pytest
from support.models import (
    ops,
    with_batch_norm,
)

from bitwright.compat.onnxruntime.preprocess import main


def peer_flags():
    package = Path(onnxruntime.__file__).parent / "quantization" / "preprocess.py"
    text = package.read_text()
    return {word.split('"')[0] for word in text.split('"--')[1:]}


def test_the_module_has_the_flags_of_the_peer(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    assert peer_flags() and all(f"--{flag}" in shown for flag in peer_flags())


@pytest.mark.slow
def test_the_module_runs_as_a_command(tmp_path):
    onnx.save(with_batch_norm(), tmp_path / "in.onnx")
    command = [sys.executable, "-m", "bitwright.compat.onnxruntime.preprocess"]
    command += ["--input", str(tmp_path / "in.onnx"), "--output", str(tmp_path / "out.onnx")]
    subprocess.run(command, check=True, timeout=120)
    assert "BatchNormalization" not in ops(tmp_path / "out.onnx")


@pytest.mark.parametrize(
    ("words", "folded"),
    [
        (["--skip_optimization", "True"], False),
        (["--skip_optimization"], False),
        (["--skip_optimization", "False"], True),
        (["--save_as_external_data", "--all_tensors_to_one_file"], True),
    ],
)
def test_flags_mean_what_they_say(tmp_path, words, folded):
    onnx.save(with_batch_norm(), tmp_path / "in.onnx")
    target = tmp_path / "out.onnx"
    assert main(["--input", str(tmp_path / "in.onnx"), "--output", str(target), *words]) == 0
    assert ("BatchNormalization" not in ops(target)) is folded


def test_failures_have_an_exit_code(tmp_path, capsys):
    assert main(["--input", str(tmp_path / "no.onnx"), "--output", str(tmp_path / "o.onnx")]) == 1
    assert "there is no file" in capsys.readouterr().err
    words = ["--skip_optimization", "--skip_onnx_shape", "--skip_symbolic_shape"]
    assert main(["--input", "a", "--output", "b", *words]) == 2
