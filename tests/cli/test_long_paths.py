"""Paths that are longer than a file system takes: one sentence, wherever they stand."""

import pytest

LONG = "x" * 300
WORDS = {
    "the model": "quantize {long}.onnx -o {folder}/q.onnx --random-data 2",
    "inspect": "inspect {long}.onnx",
    "verify": "verify {long}.onnx",
    "the output": "quantize {model} -o {folder}/{long} --random-data 2",
    "the data": "quantize {model} -o {folder}/q.onnx --data {long}.npy",
    "the recipe": "quantize {model} -o {folder}/q.onnx --random-data 2 --recipe {long}.yaml",
    "the plan": "apply {long}.json {model} -o {folder}/q.onnx",
    "the written plan": "plan {model} -o {folder}/{long} --random-data 2",
    "the log": "inspect {model} --log-file {folder}/{long}",
    "the work folder": "quantize {model} -o {folder}/q.onnx --work {folder}/{long} "
    "--recipe int4-rtn",
}


@pytest.mark.parametrize("which", WORDS)
def test_a_path_that_is_too_long_is_one_sentence(run, model, tmp_path, which):
    words = WORDS[which].format(long=LONG, model=model, folder=tmp_path).split()
    answer = run(*words)
    assert answer.code == 1
    assert answer.err.startswith("error: ") and answer.err.count("\n") == 1
    assert "bug" not in answer.err
    assert "longer than paths may be" in answer.err or "File name too long" in answer.err
    assert list(tmp_path.iterdir()) == []
