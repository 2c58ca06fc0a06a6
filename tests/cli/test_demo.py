import bitwright
from bitwright.cli import demo as demo_module


def test_the_demo_shows_both_models_and_writes_the_result(run, tmp_path, monkeypatch):
    monkeypatch.setattr(demo_module, "SINGLE_RUNS", 10)
    monkeypatch.setattr(demo_module, "BATCH_RUNS", 2)
    folder = tmp_path / "some" / "demo"
    answer = run("demo", "--output", folder)
    assert answer.code == 0, answer.err
    assert "accuracy (450 unseen images)" in answer.out
    assert "one image (median and 8 of 10 of 10 runs)" in answer.out
    assert "Try next:" in answer.out
    assert bitwright.inspect(folder / "digits-int8.onnx").is_quantized
    assert bitwright.QuantPlan.load(folder / "digits-int8.plan.json").nodes
    for line in answer.out.partition("Try next:\n")[2].splitlines():
        words = line.partition("   (")[0].split()
        assert words[0] == "bitwright"
        assert run(*words[1:]).code == 0, line


def test_the_demo_for_machines(run, tmp_path, monkeypatch):
    monkeypatch.setattr(demo_module, "SINGLE_RUNS", 10)
    monkeypatch.setattr(demo_module, "BATCH_RUNS", 2)
    found = run("demo", "--output", tmp_path, "--json").json
    assert found["images"] == 450
    assert found["float"]["accuracy"] >= 0.97
    assert found["quantized"]["accuracy"] >= found["float"]["accuracy"] - 0.01
    assert found["quantized"]["bytes"] * 3 < found["float"]["bytes"]
    low, high = found["quantized"]["single_spread"]
    assert 0 < low <= found["quantized"]["single_ms"] <= high
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "calibration.npy",
        "digits-int8.onnx",
        "digits-int8.plan.json",
        "digits.onnx",
    ]


def test_a_folder_that_cannot_be_made_is_one_line(run, tmp_path):
    (tmp_path / "file").write_text("")
    answer = run("demo", "--output", tmp_path / "file" / "demo")
    assert answer.code == 1
    assert answer.err.startswith("error: cannot create the folder")
