"""`bitwright quantize` with weight-only recipes: arrays, texts, folders of finished weights."""

import numpy as np
import onnx
import pytest
from support.language_models import VOCABULARY, make_block, make_samples

from bitwright.cli import main


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(make_block(), path)
    return path


def test_a_recipe_without_data_needs_none(model, tmp_path):
    output = tmp_path / "small.onnx"
    assert main(["quantize", str(model), "--recipe", "int4-rtn", "-o", str(output), "--quiet"]) == 0
    ops = {node.op_type for node in onnx.load(output).graph.node}
    assert "MatMulNBits" in ops and "MatMul" not in ops
    assert output.stat().st_size < 0.5 * model.stat().st_size


def test_data_plans_and_work_folders_go_together(model, tmp_path):
    np.savez(tmp_path / "ids.npz", ids=np.concatenate([s["ids"] for s in make_samples()]))
    common = [str(model), "--recipe", "int4-gptq", "--data", str(tmp_path / "ids.npz"), "--quiet"]
    plan, output, other = (tmp_path / name for name in ("plan.json", "a.onnx", "b.onnx"))
    work = ["--work", str(tmp_path / "work")]
    assert main(["quantize", *common, "-o", str(output), *work]) == 0
    assert len(list((tmp_path / "work").glob("*.safetensors"))) == 7
    assert main(["plan", *common, "-o", str(plan)]) == 0
    data = ["--data", str(tmp_path / "ids.npz"), "--quiet"]
    assert main(["apply", str(plan), str(model), "-o", str(other), *data]) == 0
    assert onnx.load(other).graph == onnx.load(output).graph


def test_a_text_and_a_tokenizer_are_data(model, tmp_path):
    tokenizers = pytest.importorskip("tokenizers", reason="the extra 'text' is not installed")
    vocabulary = {chr(32 + index): index for index in range(VOCABULARY - 1)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 40)
    command = ["quantize", str(model), "--recipe", "int4-gptq", "-o", str(tmp_path / "o.onnx")]
    text = ["--data", str(tmp_path / "text.txt"), "--tokenizer", str(tmp_path / "tokenizer.json")]
    assert main([*command, *text, "--tokens", "64", "--quiet"]) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tokens", "64"], "--tokens goes with --tokenizer only"),
        (["--tokenizer", "t.json"], "give it with --data"),
        (["--tokenizer", "t.json", "--random-data", "4"], "exclude each other"),
        (["--recipe", "int4-gptq"], "needs calibration data"),
        (["--recipe", "int8", "--work", "folder", "--random-data", "2"], "weight-only recipes"),
    ],
)
def test_options_that_do_not_fit_are_refused(model, tmp_path, options, message, capsys):
    output = tmp_path / "o.onnx"
    assert main(["quantize", str(model), "-o", str(output), *options]) != 0
    assert message in " ".join(capsys.readouterr().err.split())
    assert not output.exists()
