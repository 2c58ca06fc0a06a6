import bitwright


def test_the_demo_shows_both_models_and_writes_the_result(run, tmp_path):
    folder = tmp_path / "some" / "demo"
    answer = run("demo", "--output", folder)
    assert answer.code == 0, answer.err
    assert "accuracy (450 unseen images)" in answer.out
    [line] = [one for one in answer.out.splitlines() if "time of one image, one thread" in one]
    assert line.split()[-5:] == ["(prepared)", "0.50", "(0.48", "to", "0.52)"]
    assert "2.0 × faster than the prepared float model." in answer.out
    assert "Try next:" in answer.out
    assert bitwright.inspect(folder / "digits-int8.onnx").is_quantized
    assert bitwright.QuantPlan.load(folder / "digits-int8.plan.json").nodes
    for line in answer.out.partition("Try next:\n")[2].splitlines():
        words = line.partition("   (")[0].split()
        assert words[0] == "bitwright"
        assert run(*words[1:]).code == 0, line


def test_the_demo_for_machines(run, tmp_path):
    found = run("demo", "--output", tmp_path, "--json").json
    assert found["images"] == 450
    assert found["float"]["accuracy"] >= 0.97
    assert found["quantized"]["accuracy"] >= found["float"]["accuracy"] - 0.01
    assert found["quantized"]["bytes"] * 3 < found["float"]["bytes"]
    assert found["one_image"]["ratio"] == found["all_images"]["ratio"] == 0.5
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
