import json

import bitwright


def test_an_edited_plan_is_honoured(run, model, data, tmp_path, out):
    path = tmp_path / "plan.json"
    shown = run("plan", model, "--data", data, "-o", path, "--recipe", "int8")
    assert "Nodes: 20 of 20 quantized" in shown.out
    assert f"Written to: {path}" in shown.out
    plan = json.loads(path.read_text())
    plan["nodes"]["classify"] = {"op": "Gemm", "action": "float", "reason": "by hand"}
    path.write_text(json.dumps(plan))
    answer = run("apply", path, model, "-o", out, "--data", data)
    assert answer.code == 0, answer.err
    assert "by hand" in answer.out
    assert "Against float (8 calibration samples)" in answer.out
    assert "Gemm" not in bitwright.inspect(out).quantized_ops


def test_apply_without_data_writes_too(run, model, data, tmp_path, out):
    path = tmp_path / "plan.json"
    run("plan", model, "--data", data, "-o", path)
    answer = run("apply", path, model, "-o", out, "--json")
    assert answer.code == 0
    assert answer.json["outputs"] == []
    assert out.exists()


def test_a_plan_for_another_model_is_refused(run, model, data, tmp_path, out):
    path = tmp_path / "plan.json"
    run("plan", model, "--data", data, "-o", path)
    plan = json.loads(path.read_text())
    path.write_text(json.dumps(plan | {"fingerprint": "0" * 64}))
    answer = run("apply", path, model, "-o", out)
    assert answer.code == 1
    assert answer.err.startswith("error: this plan was made for another model")
    assert not out.exists()


def test_a_plan_that_is_no_plan_is_refused(run, model, tmp_path, out):
    path = tmp_path / "plan.json"
    for text, word in (("{", "not JSON"), ('{"nods": {}}', "plan"), ("[]", "plan")):
        path.write_text(text)
        answer = run("apply", path, model, "-o", out)
        assert answer.code == 1
        assert answer.err.startswith("error: ")
        assert answer.err.count("\n") == 1
        assert word in answer.err
    answer = run("apply", tmp_path / "none.json", model, "-o", out)
    assert (answer.code, "cannot read the plan" in answer.err) == (1, True)
    assert not out.exists()


def test_a_plan_behind_its_model_is_told_by_the_right_order(run, model, tmp_path, out):
    answer = run("apply", model, tmp_path / "plan.json", "-o", out)
    assert answer.code == 2
    assert f"the plan comes first, then the model: bitwright apply {tmp_path}" in answer.err


def test_options_about_data_need_data(run, model, data, tmp_path, out):
    answer = run("apply", tmp_path / "p.json", model, "-o", out, "--limit", 3)
    assert answer.code == 2
    assert "--limit goes with --data only" in answer.err
