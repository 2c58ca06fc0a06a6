import pytest


def test_it_writes_the_page_and_says_the_verdict(run, model, quantized, data, tmp_path):
    out = tmp_path / "report.html"
    answer = run("report", model, quantized, "--data", data, "-o", out, "--no-latency")
    assert answer.code == 0, answer.err
    assert answer.out.startswith("Good: same answers on 100.0 % (")
    assert f"Written to: {out}" in answer.out
    lines = answer.out.splitlines()[1:4]
    assert lines[0].startswith("Ship it: yes")
    assert lines[1] == "Time: not measured: timing was switched off"
    check = f"bitwright check {model} {quantized} --data {data}"
    assert lines[2] == f"Next: Nothing to fix: {check}"
    assert "<title>q.onnx: quantization report</title>" in out.read_text(encoding="utf-8")


def test_json_has_the_verdict_and_the_advice(run, model, quantized, data, tmp_path):
    out = tmp_path / "report.html"
    answer = run(
        "report",
        model,
        quantized,
        "--data",
        data,
        "-o",
        out,
        "--no-latency",
        "--json",
        "--limit",
        2,
    )
    assert answer.json["level"] == "good" and answer.json["output"] == str(out)
    assert answer.json["advice"][0]["title"] == "Nothing to fix"
    assert all(
        f"<li>{line}</li>" in out.read_text(encoding="utf-8") for line in answer.json["lines"]
    )


def test_it_says_whether_the_target_runs_it(run, model, quantized, data, tmp_path):
    out = tmp_path / "report.html"
    words = ("--data", data, "-o", out, "--no-latency", "--limit", 2, "--target", "webgpu")
    answer = run("report", model, quantized, *words)
    assert answer.code == 0, answer.err
    assert "Target: webgpu does not run it as it is: against it activations (leaves)" in answer.out
    assert run("report", model, quantized, *words, "--json").json["target"]["name"] == "webgpu"


def test_the_plan_brings_its_reasons(run, model, data, tmp_path):
    plan, small, out = (tmp_path / name for name in ("plan.json", "q.onnx", "r.html"))
    words = ("--data", data, "--exclude", "stem_conv", "--quiet")
    assert run("quantize", model, "-o", small, "--plan-out", plan, *words).code == 0
    answer = run("report", model, small, "--data", data, "--plan", plan, "-o", out, "--no-latency")
    assert answer.code == 0, answer.err
    page = out.read_text(encoding="utf-8")
    assert "Why left float" in page and "exclude" in page


@pytest.mark.slow
def test_nodes_are_tried_out_on_request(run, model, data, tmp_path):
    plan, small, out = (tmp_path / name for name in ("plan.json", "q.onnx", "r.html"))
    assert (
        run("quantize", model, "-o", small, "--plan-out", plan, "--data", data, "--quiet").code == 0
    )
    words = ("--data", data, "--plan", plan, "-o", out, "--no-latency", "--limit", 2)
    answer = run("report", model, small, *words, "--sensitivity")
    assert answer.code == 0, answer.err
    better = tmp_path / "r.plan.json"
    command = f"bitwright apply {better} {model} -o better.onnx"
    assert f"Try: {command}" in answer.out and f"Better plan: {better}" in answer.out
    assert run("apply", better, model, "-o", tmp_path / "b.onnx", "--quiet").code == 0


@pytest.mark.slow
def test_random_data_will_do(run, model, quantized, tmp_path):
    out = tmp_path / "r.html"
    assert run("report", model, quantized, "--random-data", 2, "-o", out, "--quiet").code == 0
    assert out.exists()


def test_without_data_nothing_is_written(run, model, quantized, tmp_path):
    out = tmp_path / "r.html"
    answer = run("report", model, quantized, "-o", out)
    assert answer.code == 1 and "needs samples" in answer.err
    assert not out.exists()


def test_the_models_are_not_overwritten(run, model, quantized, data):
    before = quantized.read_bytes()
    for victim in (quantized, model):
        answer = run("report", model, quantized, "--data", data, "-o", victim)
        assert answer.code == 1 and "error:" in answer.err
    assert quantized.read_bytes() == before
