import onnx


def test_retarget_writes_the_model_and_says_what_changed(run, quantized, tmp_path):
    out = tmp_path / "htp.onnx"
    answer = run("retarget", quantized, "--to", "cpu-any", "-o", out, "--format", "qoperator")
    assert answer.code == 0
    assert "Changed: wrote integer operators" in answer.out
    assert "QLinearConv" in {node.op_type for node in onnx.load(out).graph.node}
    again = run("retarget", out, "--to", "arm-cpu", "-o", tmp_path / "b.onnx", "--format", "qdq")
    assert "integer operators as Q/DQ pairs" in again.out
    document = run("retarget", quantized, "--to", "arm-cpu", "-o", out, "--json").json
    assert document["changes"] == []
    assert document["verification"]["ok"]


def test_what_cannot_be_encoded_is_one_sentence(run, quantized, tmp_path):
    answer = run("retarget", quantized, "--to", "nvidia-tensorrt", "-o", tmp_path / "t.onnx")
    assert answer.code == 1
    assert "cannot be re-encoded for nvidia-tensorrt" in answer.err
    assert not (tmp_path / "t.onnx").exists()
    assert run("retarget", quantized, "--to", "nvidia", "-o", tmp_path / "t.onnx").code == 1
