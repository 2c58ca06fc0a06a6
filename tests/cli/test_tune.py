"""`bitwright tune` says by its exit code whether the goal was met."""

import json

import numpy as np
import onnx
import pytest

import bitwright
from bitwright.assess.clock import read_clock
from bitwright.cli import main
from bitwright.jobs.tuning import job, mixtures


@pytest.fixture
def call(tmp_path, monkeypatch):
    clock = read_clock([(2.0, 1.0)] * 5)
    monkeypatch.setattr(job, "time_models", lambda *_, **__: [clock])
    demo = bitwright.load_demo()
    np.save(tmp_path / "calibration.npy", demo.calibration[:32])
    np.savez(tmp_path / "labelled.npz", image=demo.images[:96], label=demo.labels[:96])
    np.save(tmp_path / "images.npy", demo.images[:96])
    (tmp_path / "labels.txt").write_text("\n".join(map(str, demo.labels[:96])))
    (tmp_path / "score.py").write_text(
        "def always_worse(outputs, sample):\n"
        "    return -abs(float(outputs['logits'].sum()) - float(sample['label']))\n"
    )

    def run(*words, data="labelled.npz"):
        words = ["tune", str(demo.model_path), "--data", str(tmp_path / "calibration.npy"),
                 "--eval", str(tmp_path / data), "--effort", "low",
                 "-o", str(tmp_path / "out.onnx"), *map(str, words)]  # fmt: skip
        return main(words)

    run.folder = tmp_path
    return run


def test_a_goal_that_is_met_gives_zero_and_a_model(call, capsys):
    assert call("--drop", "5%", "--work", call.folder / "work") == 0
    shown = capsys.readouterr()
    assert "Goal: met: at most 0.05 of top1 below float's" in shown.out
    assert "Drop, unseen samples:" in shown.out
    ship, time, following = shown.out.splitlines()[-3:]
    assert ship == "Ship it: yes, top1 is within the allowed drop on samples it has never seen"
    assert time.startswith("Time: 2.0 × faster than the prepared float model: 0.50 (0.48 to 0.52)")
    eval_data = f"--eval {call.folder / 'labelled.npz'} --drop 5%"
    assert following.startswith("Next: bitwright check ") and following.endswith(eval_data)
    assert "at most 11 evaluations" in shown.err
    onnx.checker.check_model(onnx.load(call.folder / "out.onnx"))
    assert any((call.folder / "work" / "figures").glob("*.safetensors"))


def test_a_goal_that_is_missed_gives_three_and_the_closest_model(call, capsys):
    score = f"{call.folder}/score.py:always_worse"
    assert call("--metric", score, "--drop", "0", "--time", "0.001s", "--json") == 3
    document = json.loads(capsys.readouterr().out)
    assert document["met"] is False and document["lines"][0].startswith("Ship it: no, the goal of")
    assert document["stopped"] is not None
    assert document["points"][document["chosen"]]["verdict"] == "fail"
    onnx.checker.check_model(onnx.load(call.folder / "out.onnx"))


def test_what_only_float_can_meet_is_float_and_a_goal_that_is_missed(call, capsys, monkeypatch):
    monkeypatch.setattr(mixtures, "SIZE_STATES", ("int8", "float"))
    assert call("--metric", "cosine", "--drop", "1e-12", "--for", "size", "--json") == 3
    document = json.loads(capsys.readouterr().out)
    assert document["is_float"] and not document["met"]
    assert document["points"][document["chosen"]]["verdict"] == "pass"
    assert document["notes"][0].startswith("nothing is quantized: no model within the allowed drop")
    ops = {node.op_type for node in onnx.load(call.folder / "out.onnx").graph.node}
    assert "QuantizeLinear" not in ops


@pytest.mark.slow
def test_a_report_is_written_beside_the_model(call):
    page = call.folder / "page.html"
    assert call("--drop", "5%", "--report", page) == 0
    assert "Cost and top1" in page.read_text(encoding="utf-8")


def test_a_report_over_what_is_given_is_refused_before_the_search(call, capsys):
    labels = call.folder / "labels.txt"
    before = labels.read_bytes()
    assert call("--labels", labels, "--report", labels, data="images.npy") == 1
    assert "would overwrite" in capsys.readouterr().err
    assert labels.read_bytes() == before and not (call.folder / "out.onnx").exists()


def test_labels_are_given_beside_the_samples(call, capsys):
    words = ("--labels", call.folder / "labels.txt", "--drop", "5%", "--json")
    assert call(*words, data="images.npy") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["metric"] == "top1"
    assert document["float_score"] > 0.9


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--drop", "much"], "'much' is no drop of a metric; write 0.5%, or 0.005."),
        (["--time", "soon"], "'soon' is no length of time; write 90s, 20m or 1.5h."),
        (["--metric", "top3"], "there is no metric 'top3'"),
        (["--recipe", "int8-dynamic"], "is dynamic; take a static one"),
    ],
)
def test_bad_options_get_one_line(call, capsys, words, sentence):
    assert call(*words) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert sentence in line


def test_an_output_that_would_overwrite_its_labels_is_refused(call, capsys):
    labels = call.folder / "labels.txt"
    assert call("--labels", labels, "-o", labels, data="images.npy") == 1
    assert "overwrite" in capsys.readouterr().err
