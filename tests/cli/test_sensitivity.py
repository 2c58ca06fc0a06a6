"""`bitwright sensitivity` on the demo model."""

import pytest

from bitwright.plan import QuantPlan


@pytest.fixture(scope="module")
def plan(tmp_path_factory, model, data):
    from bitwright.cli import main

    path = tmp_path_factory.mktemp("plan") / "plan.json"
    words = ["plan", model, "-o", path, "--data", data, "--recipe", "int8", "--quiet"]
    assert main([str(word) for word in words]) == 0
    return path


def test_a_better_plan_is_written_that_apply_takes(run, model, data, plan, tmp_path, out):
    better = tmp_path / "better.json"
    words = ("--data", data, "--limit", 2, "--regain", 0.3, "--most", 0.3)
    answer = run("sensitivity", model, "--plan", plan, "-o", better, *words)
    assert answer.code == 0, answer.err
    lines = answer.out.splitlines()
    assert lines[0] == "The most sensitive nodes"
    assert any(line.startswith("Proposal: fall back to float for ") for line in lines)
    assert f"Next: bitwright apply {better} {model} -o better.onnx" in lines
    changed = QuantPlan.load(better)
    assert any((node.reason or "").startswith("fell back") for node in changed.nodes.values())
    assert run("apply", better, model, "-o", out).code == 0
    assert out.exists()


def test_without_output_only_the_ranking_is_shown(run, model, data, plan):
    answer = run("sensitivity", model, "--plan", plan, "--data", data, "--limit", 1, "--json")
    document = answer.json
    assert document["proposal"] is None
    regained = [row["alone"] for row in document["ranking"]]
    assert len(regained) > 5 and all(error >= 0 for error in regained)


def test_bad_shares_and_missing_data_get_one_sentence(run, model, data, plan, tmp_path):
    answer = run("sensitivity", model, "--plan", plan)
    assert answer.code == 1
    assert answer.err.startswith("error: sensitivity runs every node")
    words = ("--data", data, "--limit", 1, "--regain", 80, "-o", tmp_path / "x.json")
    answer = run("sensitivity", model, "--plan", plan, *words)
    assert answer.code == 1
    assert "regain is a share between 0 and 1, not 80" in answer.err
    assert not (tmp_path / "x.json").exists()
