"""Where a model is from, and that a file is opened in another process first."""

import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import bitwright
from bitwright import graph
from bitwright.errors import ModelError
from bitwright.run.trial import check_still_opens, opens, try_opening
from bitwright.support.processes import WorkerError, trial

_ABORTS = """
import os
class Worker:
    def open_once(self, model, providers):
        if os.path.getsize(model) > 0 and b"crash" in open(model, "rb").read():
            os.abort()
        if b"refuse" in open(model, "rb").read():
            raise ValueError("no")
"""


@pytest.fixture
def aborting(tmp_path, monkeypatch):
    """A runtime that aborts by models with "crash" in them."""
    worker = tmp_path / "aborting.py"
    worker.write_text(_ABORTS)
    monkeypatch.setattr(trial, "WORKER", worker)
    monkeypatch.setattr(trial, "_workers", {})


def _relu(path, name):
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in "xy")
    made = helper.make_graph([helper.make_node("Relu", ["x"], ["y"], name=name)], "g", [x], [y])
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(made, opset_imports=opset, ir_version=8), path)
    return path


def _slice_of_nothing(path):
    """A Conv whose kernel is larger than its input, and a Slice of the negative size behind it."""
    weight = numpy_helper.from_array(np.ones((1, 1, 9), np.float32), "w")
    given = {"s": 0, "e": 2, "a": 2}
    places = [numpy_helper.from_array(np.array([n], np.int64), s) for s, n in given.items()]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("Slice", ["c", *"sea"], ["y"], name="cut"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    made = helper.make_graph(nodes, "g", [x], [y], [weight, *places])
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(made, opset_imports=opset, ir_version=8), path)
    return path


def test_a_file_by_which_the_runtime_crashes_is_an_error_of_ours(tmp_path, aborting):
    path = _relu(tmp_path / "m.onnx", "crash")
    with pytest.raises(ModelError, match=r"ONNX Runtime crashes when it opens .*m\.onnx"):
        bitwright.quantize(path, data=np.ones((2, 4), np.float32))
    with pytest.raises(ModelError, match="crashes"):  # also the second time
        graph.infer_shapes(graph.load_model(path))


def test_what_the_runtime_only_refuses_may_still_be_prepared(tmp_path, aborting):
    path = _relu(tmp_path / "m.onnx", "refuse")
    with pytest.raises(WorkerError):
        trial.try_file(path)
    assert graph.infer_shapes(graph.load_model(path)) is None


def test_the_next_file_gets_a_new_process_after_a_crash(tmp_path, aborting):
    with pytest.raises(ModelError, match="code -6"):
        trial.try_file(_relu(tmp_path / "m.onnx", "crash"))
    trial.try_file(_relu(tmp_path / "n.onnx", "fine"))


def test_an_interrupted_trial_leaves_no_reply_for_the_next(tmp_path, aborting, monkeypatch):
    path = _relu(tmp_path / "m.onnx", "fine")
    trial.try_file(path)
    (worker,) = trial._workers.values()

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(worker, "call", interrupt)
    with pytest.raises(KeyboardInterrupt):
        trial.try_file(path)
    assert not worker.is_alive
    trial.try_file(path)  # by another one


def test_a_model_in_memory_that_was_rewritten_is_opened_in_the_other_process(tmp_path, aborting):
    fine, bad = (graph.load_model(_relu(tmp_path / n, n)) for n in ("fine", "crash"))
    assert opens(fine)
    assert not opens(bad)
    with pytest.raises(ModelError, match="opens it"):
        check_still_opens(bad, fine)
    assert check_still_opens(bad, bad) is False
    try_opening(bad, limit=10)  # larger ones are not asked for


@pytest.mark.parametrize(
    "words",
    [
        "quantize -o q.onnx --random-data 2",
        "preprocess -o q.onnx",
        "verify --runtime 1.20",
    ],
)
def test_a_crash_of_the_runtime_is_not_the_end_of_a_command(tmp_path, words):
    _slice_of_nothing(tmp_path / "m.onnx")
    verb, *others = words.split()
    command = [sys.executable, "-m", "bitwright", verb, "m.onnx", *others]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1)
    assert "crashes" in done.stderr or "does not run" in done.stderr or not done.returncode
    assert all(line.startswith(("error: ", "warning: ")) for line in done.stderr.splitlines())
