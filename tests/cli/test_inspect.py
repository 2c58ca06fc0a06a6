def test_a_float_model_is_described(run, model):
    answer = run("inspect", model)
    assert answer.code == 0
    assert "Opsets: ai.onnx 17" in answer.out
    assert "Input: image: float[batch,1,8,8]" in answer.out
    assert "Quantized: nothing" in answer.out


def test_a_quantized_model_tells_what_and_how(run, quantized):
    answer = run("inspect", quantized)
    assert "Quantized ops: Conv x7" in answer.out
    assert "Scales: per channel" in answer.out
    assert "Recipe: int8-per-channel" in answer.out
    facts = run("inspect", quantized, "--json").json
    assert facts["is_quantized"]
    assert facts["file_bytes"] == quantized.stat().st_size
    assert facts["quantized_types"]["uint8"] > 0


def test_metadata_of_strangers_does_no_harm(run, model, tmp_path):
    import onnx

    for text in ("{", "[1]", '"x"', ""):
        proto = onnx.load(model)
        onnx.helper.set_model_props(proto, {"bitwright.recipe": text})
        path = tmp_path / "odd.onnx"
        onnx.save(proto, path)
        assert run("inspect", path).code == 0


def test_inspect_says_whether_a_target_runs_the_model(run, quantized):
    line = next(
        line
        for line in run("inspect", quantized, "--target", "x86-vnni").out.splitlines()
        if line.startswith("Target: ")
    )
    assert line.startswith("Target: x86-vnni runs it: ")
    assert "ops on the target (100 % of multiply-adds) in 1 partition" in line
    answer = run("inspect", quantized, "--target", "nvidia-tensorrt")
    assert "does not run it as it is: against it activation_types (refused)" in answer.out
    document = run("inspect", quantized, "--target", "nvidia-tensorrt", "--json").json
    assert document["verification"]["ok"] is False
