import json
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from models_for_tests import build, node


@pytest.fixture
def broken(tmp_path):
    """A pool whose input and output lie at positions 8 and 4."""
    constants = {"s8": np.float32(2**-8), "s4": np.float32(2**-4), "z": np.int8(0)}
    nodes = [
        node("QuantizeLinear", ["x", "s8", "z"], ["xq"], name="q1"),
        node("DequantizeLinear", ["xq", "s8", "z"], ["xd"], name="d1"),
        node("AveragePool", ["xd"], ["p"], name="pool", kernel_shape=[2, 2]),
        node("QuantizeLinear", ["p", "s4", "z"], ["pq"], name="q2"),
        node("DequantizeLinear", ["pq", "s4", "z"], ["y"], name="d2"),
    ]
    path = tmp_path / "pool.onnx"
    onnx.save(build(nodes, {"x": [1, 2, 4, 4]}, {"y": [1, 2, 3, 3]}, constants), path)
    return path


def test_a_sound_model_gives_zero(run, quantized):
    answer = run("verify", quantized)
    assert answer.code == 0
    assert "rules for cpu hold" in answer.out


def test_a_broken_limit_gives_one_and_names_node_rule_and_values(run, broken):
    assert run("verify", broken).code == 0
    answer = run("verify", broken, "--target", "npu-cnn")
    assert answer.code == 1
    assert "1 finding for npu-cnn" in answer.out
    line = next(line for line in answer.out.splitlines() if "align_pool" in line)
    assert line.split()[:2] == ["pool", "align_pool"]
    assert "input - output is 4 and must be 0" in line
    assert "input 8, output 4" in line
    assert answer.err == ""


@pytest.mark.parametrize("words", [("--format", "json"), ("--json",)])
def test_findings_come_as_json(run, broken, words):
    answer = run("verify", broken, "--target", "npu-cnn", *words)
    assert answer.code == 1
    document = json.loads(answer.out)
    assert document["ok"] is False
    assert document["findings"][0]["rule"] == "align_pool"
    assert document["model"] == str(broken)


def test_findings_come_as_junit(run, broken):
    answer = run("verify", broken, "--target", "npu-cnn", "--format", "junit")
    assert answer.code == 1
    suite = ElementTree.fromstring(answer.out)
    assert suite.tag == "testsuite"
    assert suite.get("failures") == "1"


def test_quiet_says_it_with_the_exit_code(run, broken):
    answer = run("verify", broken, "--target", "npu-cnn", "--quiet")
    assert (answer.code, answer.out, answer.err) == (1, "", "")


def test_mistakes_are_told_in_a_line(run, broken, tmp_path):
    answer = run("verify", broken, "--target", "npu-cn")
    assert answer.code == 1
    assert "unknown target 'npu-cn'. Did you mean 'npu-cnn'?" in answer.err
    assert run("verify", tmp_path / "nothing.onnx").code == 1
    assert run("verify", broken, "--format", "yaml").code == 2
