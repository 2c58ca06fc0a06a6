from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from bitwright.run import Session
from bitwright.run.session import give_back_memory

NUMBERS = 25_000_000
BYTES = 4 * NUMBERS


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.fixture
def doubling(builders):
    nodes = [helper.make_node("Add", ["x", "x"], ["a"]), helper.make_node("Exp", ["a"], ["y"])]
    model = builders.build(
        nodes, [builders.info("x", 1, ["n"])], [builders.info("y", 1, ["n"])], {}, opset=17
    )
    return Session(model, memory_arena="shared", threads=1)


@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of a process as Linux has it")
def test_memory_is_used_again_and_given_back(doubling):
    x = np.zeros(NUMBERS, np.float32)
    give_back_memory()
    before = resident()
    for _ in range(4):
        doubling.run({"x": x})
    assert resident() - before < 3 * BYTES
    give_back_memory()
    assert resident() - before < 0.5 * BYTES


def test_what_is_still_read_stays_as_it_is(doubling):
    found = doubling.run({"x": np.full(1000, 0.5, np.float32)})
    give_back_memory()
    others = [doubling.run({"x": np.zeros(1000, np.float32)}) for _ in range(3)]
    assert all((other["y"] == 1).all() for other in others)
    np.testing.assert_allclose(found["y"], np.e, rtol=1e-6)


def test_where_nothing_was_shared_no_session_is_opened():
    script = (
        "import onnxruntime as ort\n"
        "from bitwright.run.session import give_back_memory\n"
        "ort.InferenceSession = None\n"
        "give_back_memory()\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
