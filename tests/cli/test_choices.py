"""`bitwright MODEL` says what can be done with a model, and writes nothing."""

import onnx
import pytest
from support.language_models import make_decoder
from support.models import make_cnn, make_transformer


def test_a_model_alone_is_looked_at_with_what_can_be_done(run, model, data):
    document = run(model, "--data", data, "--json").json
    assert document["model"] == str(model)
    whole = next(c for c in document["choices"] if c["command"].endswith("--for size"))
    assert whole["command"] == f"bitwright quantize {model} {data} --for size"
    assert 0.2 * document["file_bytes"] < whole["size"] < 0.5 * document["file_bytes"]
    assert whole["time"] > 0


def test_the_predicted_size_is_about_that_of_the_result(run, model, data, tmp_path):
    choices = run(model, "--data", data, "--json").json["choices"]
    for choice in choices:
        words = choice["command"].split()[1:]
        target = tmp_path / "made.onnx"
        assert run(*words, "-o", target, "-q", "--no-timing").code == 0
        assert choice["size"] == pytest.approx(target.stat().st_size, rel=0.2)


def test_a_quantized_model_has_no_choices(run, quantized):
    assert "choices" not in run(quantized, "--json").json


def test_inspect_itself_looks_at_the_model_alone(run, model):
    assert "choices" not in run("inspect", model, "--json").json


@pytest.mark.parametrize(
    ("make", "wanted"),
    [(make_decoder, "--bits 4"), (make_transformer, "--dynamic"), (make_cnn, "--recipe float16")],
)
def test_what_a_model_is_decides_what_is_offered(run, tmp_path, make, wanted):
    onnx.save(make(), tmp_path / "model.onnx")
    choices = run(tmp_path / "model.onnx", "--json").json["choices"]
    assert any(choice["command"].endswith(wanted) for choice in choices), choices


def test_a_folder_alone_says_which_commands_take_it(run, tmp_path):
    answer = run(tmp_path)
    assert answer.code == 1
    assert f"'bitwright quantize {tmp_path} --bits 4'" in answer.err
