import json
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from support.models import build, node
from support.pair_models import Pairs, make_conv


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
    assert "1 error for npu-cnn" in answer.out
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


@pytest.fixture
def unfused(tmp_path):
    path = tmp_path / "unfused.onnx"
    onnx.save(make_conv(paired=False), path)
    return path


def test_warnings_give_zero_unless_strict(run, unfused):
    answer = run("verify", unfused, "--cpu", "arm")
    assert answer.code == 0
    assert "1 warning for cpu" in answer.out
    assert "this Conv runs in float: its output 'conv' has no Q/DQ pair" in answer.out
    assert run("verify", unfused, "--cpu", "arm", "--strict").code == 1
    document = run("verify", unfused, "--cpu", "arm", "--json").json
    assert document["ok"] is True
    assert document["findings"][0]["level"] == "warning"


def test_the_kind_of_cpu_is_chosen(run, quantized):
    answer = run("verify", quantized, "--cpu", "avx2")
    assert answer.out.count("--set reduce_range=true") == 1
    assert "saturation" in answer.out
    assert "saturation" not in run("verify", quantized, "--cpu", "vnni").out
    assert "Did you mean 'vnni'" in run("verify", quantized, "--cpu", "vni").err


def test_of_many_findings_the_first_are_shown(run, tmp_path):
    pairs = Pairs()
    made = pairs.pair("x")
    for index in range(12):
        made = pairs.pair(pairs.add("Tanh", [made], f"tanh{index}"))
    path = tmp_path / "many.onnx"
    onnx.save(pairs.model([made], {"x": [3]}), path)
    short, long = run("verify", path), run("verify", path, "--verbose")
    assert "tanh0, tanh1 … (12)" in short.out
    assert "tanh11" not in short.out and "tanh11" in long.out
    pairs = Pairs()
    made = [pairs.pair(f"x{index}", scale=-1.0 - index) for index in range(10)]
    onnx.save(pairs.model(made, {f"x{index}": [3] for index in range(10)}), path)
    assert "and 2 more; --verbose names all" in run("verify", path).out


def test_all_targets_have_a_row_each_and_one_that_runs_it_is_enough(run, quantized, broken):
    answer = run("verify", quantized, "--target", "all")
    assert answer.code == 0
    rows = {line.split()[0]: line.split()[1] for line in answer.out.splitlines()[2:]}
    assert {"x86-vnni", "arm-cpu", "qualcomm-htp", "nvidia-tensorrt", "coreml"} <= rows.keys()
    assert "cpu" not in rows
    assert (rows["x86-vnni"], rows["nvidia-tensorrt"], rows["coreml"]) == ("yes", "no", "no")
    document = run("verify", quantized, "--target", "all", "--json").json
    assert {row["target"]: row["passes"] for row in document["targets"]}["coreml"] is False
    suites = ElementTree.fromstring(
        run("verify", quantized, "--target", "all", "--format", "junit").out
    )
    assert len(suites) == len(rows)


def test_a_finding_has_rule_node_found_allowed_consequence_and_fix(run, broken):
    document = run("verify", broken, "--target", "nvidia-tensorrt", "--json").json
    assert document["ok"]  # int8 pairs at the zero point 0
    document = run("verify", broken, "--target", "qualcomm-htp", "--json").json
    found = next(f for f in document["findings"] if f["rule"] == "activation_types")
    assert (found["node"], found["found"]) == ("pool", "activation of int8")
    assert found["allowed"] == "uint8 or uint16"
    assert (found["consequence"], found["level"]) == ("leaves", "error")
    assert "retarget" in found["remedy"]
    assert document["residence"]["resident_ops"] == 0


def test_what_is_allowed_does_not_fail(run, broken):
    words = ("verify", broken, "--target", "qualcomm-htp")
    assert run(*words).code == 1
    assert run(*words, "--allow", "leaves").code == 0
    assert run(*words, "--allow", "sloow").code == 2


def test_equal_findings_of_many_nodes_are_one_row(run, tmp_path):
    pairs = Pairs()
    for index in range(5):
        pairs.add("Erfc", [pairs.pair(f"x{index}")], f"node{index}")
    model = pairs.model([f"node{i}" for i in range(5)], {f"x{i}": [1, 4] for i in range(5)})
    onnx.save(model, tmp_path / "many.onnx")
    answer = run("verify", tmp_path / "many.onnx", "--target", "qualcomm-htp")
    line = next(line for line in answer.out.splitlines() if "operator Erfc" in line)
    assert line.strip().startswith("node0, node1 … (5)")


def test_a_target_of_the_user_is_a_file(run, broken, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        'name = "mine"\ndescription = "A test."\nrecipe = "int8"\n[rules.pools]\n'
        'kind = "refused_operators"\nconsequence = "refused"\nops = ["AveragePool"]\n'
    )
    answer = run("verify", broken, "--target", path)
    assert answer.code == 1
    assert "refused" in answer.out


def test_a_float_model_is_what_core_ml_wants(run, model):
    answer = run("verify", model, "--target", "coreml")
    assert answer.code == 0 and "ops on the target (100 % of multiply-adds)" in answer.out
    assert run("verify", model, "--target", "arm-cpu").code == 1
