"""`python -m bitwright.compat run`: an unchanged script with our modules in its tool's place."""

import subprocess
import sys

import pytest

import bitwright

SCRIPT = """
import sys
import numpy as np
import onnxruntime.quantization as q
from onnxruntime.quantization import CalibrationDataReader
from onnxruntime.quantization.onnx_model import ONNXModel
from onnxruntime.quantization.neural_compressor.util import find_by_name


class Reader(CalibrationDataReader):
    def __init__(self):
        images = np.load(sys.argv[2])["images"][:8].astype(np.float32)
        self.items = iter([{"image": image.reshape(1, 1, 8, 8)} for image in images])

    def get_next(self):
        return next(self.items, None)


q.quantize_static(sys.argv[1], "small.onnx", Reader(), weight_type=q.QuantType.QInt8)
sys.exit(int(sys.argv[3]))
"""


@pytest.fixture
def script(tmp_path):
    demo = bitwright.load_demo()
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path, ["script.py", str(demo.model_path), str(demo.model_path.parent / "digits.npz")]


def run(folder, *words):
    command = [sys.executable, "-m", "bitwright.compat", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_a_script_is_answered_and_told_by_whom_and_its_exit_code_is_kept(script):
    folder, words = script
    done = run(folder, "run", "--as", "onnxruntime.quantization", *words, "3")
    assert done.returncode == 3, done.stderr
    told = done.stderr.splitlines()
    ours = "answered by Bitwright: onnxruntime.quantization: "
    assert f"{ours}CalibrationDataReader, QuantType, quantize_static" in told
    theirs = "handed on, as installed: onnxruntime.quantization.neural_compressor.util: "
    assert f"{theirs}find_by_name" in told
    assert bitwright.inspect(folder / "small.onnx").is_quantized


def test_an_error_of_the_script_ends_it_as_python_would(tmp_path):
    (tmp_path / "script.py").write_text("import vai_q_onnx\nvai_q_onnx.no_such_name()\n")
    done = run(tmp_path, "run", "script.py")
    assert done.returncode == 1
    assert "Traceback" in done.stderr and "no_such_name" in done.stderr


def test_a_module_runs_as_with_python_m(tmp_path):
    (tmp_path / "module.py").write_text("import nncf\nprint(nncf.quantize.__module__)\n")
    done = run(tmp_path, "run", "--as", "nncf", "-m", "module")
    assert done.stdout.startswith("bitwright.compat.nncf."), done.stderr


def test_a_command_of_the_tool_runs_as_ours(tmp_path):
    command = "onnxruntime.quantization.matmul_nbits_quantizer"
    done = run(tmp_path, "run", "-m", command, "--help")
    assert done.returncode == 0 and "--quant_method" in done.stdout, done.stderr


def test_a_script_that_is_not_there_is_told_before_anything_runs(tmp_path):
    done = run(tmp_path, "run", "scrip.py")
    assert done.returncode == 2 and "there is no file 'scrip.py'" in done.stderr


@pytest.mark.slow
def test_both_tools_are_shown_side_by_side(script):
    folder, words = script
    done = run(folder, "run", "--side-by-side", *words, "0")
    assert done.returncode == 0, done.stderr
    rows = {line[:24].strip(): line[24:].split() for line in done.stderr.splitlines()}
    assert float(rows["seconds of the script"][1]) > 0
    theirs, ours = map(float, rows["dB on 8 samples"])
    assert ours > theirs - 0.5 and ours > 20
    assert rows["bytes"][1] == str((folder / "small.onnx").stat().st_size)
    assert len(rows["speed of digits.onnx"]) == 4
