"""`bitwright check` passes or fails a model by its exit code, and says why."""

from xml.etree import ElementTree

import numpy as np
import onnx
import pytest

import bitwright
from bitwright.assess.clock import read_clock
from bitwright.jobs import gate


@pytest.fixture
def labelled(tmp_path):
    demo = bitwright.load_demo()
    np.savez(tmp_path / "test.npz", image=demo.images[:120], label=demo.labels[:120])
    return tmp_path / "test.npz"


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Give the clock that a test asks for; half the time of float if it asks for none."""

    def set_clock(*rounds):
        monkeypatch.setattr(gate, "time_models", lambda *_, **__: [read_clock(rounds)])

    set_clock(*[(2.0, 1.0)] * 5)
    return set_clock


def test_a_good_model_passes_with_three_lines_and_each_limit(run, model, quantized, labelled):
    answer = run("check", model, quantized, "--eval", labelled, "--drop", "3%")
    assert answer.code == 0, answer.err + answer.out
    lines = answer.out.splitlines()
    assert lines[:2] == [
        "Ship it: yes, it is within every limit",
        "Time: 2.0 × faster than the prepared float model: 0.50 (0.48 to 0.52) of its time, one "
        "thread",
    ]
    assert lines[2].startswith("Next: ship it")
    assert [line.split(":")[0] for line in lines[3:]] == [
        "Accuracy passed", "Time passed", "Size passed",
    ]  # fmt: skip


def test_each_limit_fails_by_itself_and_the_exit_code_is_three(
    run, model, quantized, labelled, clock
):
    clock(*[(1.0, 2.0)] * 5)
    answer = run("check", model, quantized, "--eval", labelled, "--max-size", "10%", "--json")
    assert answer.code == 3
    found = {one["name"]: one["passed"] for one in answer.json["criteria"]}
    assert found == {"Accuracy": True, "Time": False, "Size": False}
    assert answer.json["lines"][0] == "Ship it: no: time and size"


@pytest.mark.parametrize("verb", ["check", "tune"])
def test_labels_that_do_not_fit_are_told_before_anything_is_blessed(
    run, tmp_path, model, quantized, verb
):
    demo = bitwright.load_demo()
    np.savez(tmp_path / "test.npz", image=demo.images[:60], label=(demo.labels[:60] + 1) % 10)
    np.savez(tmp_path / "data.npz", image=demo.calibration[:8])
    tuning = ["-o", tmp_path / "out.onnx", "--data", tmp_path / "data.npz"]
    given = [quantized] if verb == "check" else tuning
    answer = run(verb, model, *given, "--eval", tmp_path / "test.npz")
    assert answer.code == 1 and "Ship it" not in answer.out
    assert "the float model itself has top1 0" in answer.err
    assert "of 10 classes, where guesses have 0.1" in answer.err
    assert not (tmp_path / "out.onnx").exists()


def test_answers_of_another_model_fail(run, tmp_path, model, labelled):
    broken = onnx.load(model)
    for tensor in broken.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        if array.ndim > 1:
            tensor.CopyFrom(onnx.numpy_helper.from_array(array[..., ::-1].copy(), tensor.name))
    onnx.save(broken, tmp_path / "broken.onnx")
    answer = run("check", model, tmp_path / "broken.onnx", "--eval", labelled, "--max-size", "any")
    assert answer.code == 3
    assert "Accuracy FAILED: top1 falls by" in answer.out
    assert "bitwright tune" in answer.out


def test_what_so_few_samples_cannot_tell_is_said_before(run, model, quantized, labelled):
    answer = run("check", model, quantized, "--eval", labelled, "--eval-limit", 22)
    assert "22 samples cannot resolve 1.00%: one of them is 4.5%" in answer.err
    assert "22 samples cannot resolve" in answer.out


def test_time_within_the_spread_passes_with_a_note(run, model, quantized, clock):
    clock((1.0, 1.02), (1.0, 0.98), (1.0, 1.01), (1.0, 1.03), (1.0, 1.01))
    answer = run("check", model, quantized, "--drop", "any", "--max-size", "any")
    assert answer.code == 0
    assert "beyond it, and within what times differ by" in answer.out


def test_reports_for_ci_say_the_same(run, tmp_path, model, quantized, labelled):
    junit, summary = tmp_path / "check.xml", tmp_path / "summary.md"
    summary.write_text("before\n")
    words = ["--max-size", "1%", "--junit", junit, "--summary", summary, "--max-time", "any"]
    assert run("check", model, quantized, "--eval", labelled, *words, "-q").code == 3
    suite = ElementTree.parse(junit).getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    assert suite.find("testcase[@name='Size']/failure") is not None
    page = summary.read_text()
    assert page.startswith("before\n### bitwright check: failed")
    assert "| ❌ Size |" in page and "| ✅ Accuracy |" in page


def test_a_target_is_a_limit_of_its_own(run, model, quantized):
    words = ["--drop", "any", "--max-time", "any", "--max-size", "any"]
    assert run("check", model, quantized, *words, "--target", "arm-cpu").code == 0
    answer = run("check", model, quantized, *words, "--target", "npu-cnn")
    assert answer.code == 3
    assert "Target FAILED" in answer.out


def test_without_samples_one_sentence_says_what_to_give(run, model, quantized):
    answer = run("check", model, quantized)
    assert answer.code == 1
    assert answer.err.splitlines()[-1] == (
        "error: how far accuracy falls is measured on samples; give --eval PATH or --data PATH, "
        "or --drop any."
    )


@pytest.mark.parametrize(
    "words", [["--max-time", "fast"], ["--max-size", "little"], ["--drop", "x"]]
)
def test_a_limit_that_is_none_is_refused_in_one_sentence(run, model, quantized, labelled, words):
    answer = run("check", model, quantized, "--eval", labelled, *words)
    assert answer.code == 1
    assert answer.err.count("\n") == 1 and words[1] in answer.err


def test_a_model_with_inputs_in_half_precision_is_fed_floats(run, tmp_path, model, labelled):
    half = tmp_path / "half.onnx"
    assert run("quantize", model, "-o", half, "--recipe", "float16", "-q").code == 0
    answer = run("check", model, half, "--eval", labelled, "--max-time", "any")
    assert answer.code == 0, answer.err + answer.out
