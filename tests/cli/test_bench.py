import onnx
import pytest
from support.language_models import make_decoder
from support.pair_models import make_conv

from bitwright.jobs import cost_table
from bitwright.targets.costs import read_costs


def test_models_are_shown_side_by_side(run, model, quantized, data):
    answer = run("bench", model, quantized, "--runs", "3", "--data", data)
    assert (answer.code, answer.err) == (0, "")
    assert "median ms" in answer.out
    assert f"Against the prepared {model.name}" in answer.out
    assert "time, all cores" in answer.out and "time, one thread" in answer.out
    assert "0.50 (0.48 to 0.52)" in answer.out
    assert f"{model.name} after our float passes" in answer.out
    assert "3/3 interleaved runs" in answer.out
    assert "QLinearConv" in answer.out
    assert "Memory: " in answer.out


def test_a_conv_that_stays_float_is_named_with_its_reason(run, tmp_path):
    path = tmp_path / "unfused.onnx"
    onnx.save(make_conv(paired=False), path)
    answer = run("bench", path, "--runs", "2")
    assert "Between pairs, but in float: unfused.onnx" in answer.out
    row = next(line for line in answer.out.splitlines() if "has no Q/DQ pair" in line)
    assert row.split()[0] == "conv"


def test_the_same_as_json(run, model, quantized):
    words = ("--runs", "2", "--threads", "1", "--batch", "2", "--json")
    document = run("bench", model, quantized, *words).json
    assert document["threads"] == 1
    assert [row["runs"] for row in document["models"]] == [2, 2]
    assert [row["samples_per_run"] for row in document["models"]] == [2, 2]
    assert document["models"][1]["speedup"] > 0
    assert document["models"][1]["profile"]["nodes"]


def test_the_first_model_can_run_as_it_came(run, model, quantized):
    answer = run("bench", model, quantized, "--runs", "2", "--no-profile", "--no-prepare")
    assert f"Against {model.name}" in answer.out and "float passes" not in answer.out


def test_the_profile_can_be_left_out(run, model):
    answer = run("bench", model, "--runs", "2", "--no-profile")
    assert "Time by op" not in answer.out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--runs", "0"), 1, "runs must be at least 1, not 0."),
        (("--input-shape", "nothing"), 2, "is not NAME=SHAPE"),
        (("--input-shape", "imag=1x1x8x8"), 1, "Did you mean 'image'"),
        (("--provider", "CUDA"), 1, "unknown execution provider 'CUDA'"),
        (("--data", "nothing.npy"), 1, "nothing.npy"),
    ],
)
def test_mistakes_are_told_in_a_line(run, model, words, code, said):
    answer = run("bench", model, *words)
    assert answer.code == code
    assert said in answer.err
    assert len(answer.err.splitlines()) == 1


def test_data_and_shapes_exclude_each_other(run, model, data):
    answer = run("bench", model, "--data", data, "--input-shape", "image=1x1x8x8")
    assert answer.code == 2
    assert "--input-shape is for random samples" in answer.err


def test_models_of_one_name_are_told_apart_by_their_paths(run, model, tmp_path):
    other = tmp_path / model.name
    other.write_bytes(model.read_bytes())
    answer = run("bench", model, other, "--runs", "1", "--no-profile")
    assert str(model) in answer.out
    assert str(other) in answer.out


@pytest.fixture
def decoder(tmp_path):
    path = tmp_path / "decoder.onnx"
    onnx.save(make_decoder(), path)
    return path


TOKENS = ("--prompt-tokens", "6", "--new-tokens", "4")


@pytest.mark.slow
def test_a_decoder_is_timed_in_tokens(run, decoder):
    answer = run("bench", decoder, decoder, *TOKENS, "--runs", "2")
    assert (answer.code, answer.err) == (0, "")
    assert "prefill tokens/s" in answer.out and "decoding tokens/s" in answer.out
    assert f"Against {decoder}" in answer.out
    document = run("bench", decoder, "--runs", "1", "--json").json
    assert (document["prompt_tokens"], document["new_tokens"]) == (128, 64)


def test_a_decoder_with_shapes_is_timed_as_any_model(run, decoder):
    shapes = ("n=4", "past=3", "total=7")
    words = [word for shape in shapes for word in ("--input-shape", shape)]
    answer = run("bench", decoder, "--runs", "2", "--no-profile", *words)
    assert answer.code == 0 and "median ms" in answer.out


@pytest.mark.parametrize("words", [("--batch", "2"), ("--profile",), ("--limit", "2")])
def test_options_of_samples_are_not_for_tokens(run, decoder, words):
    answer = run("bench", decoder, *TOKENS, *words)
    assert answer.code == 2 and f"{words[0]} is not for tokens" in answer.err


def test_costs_of_kernels_are_measured_instead_of_models(run, tmp_path, monkeypatch):
    table = read_costs("x86-vnni")
    asked = []
    monkeypatch.setattr(cost_table, "measure_costs", lambda **given: asked.append(given) or table)
    path = tmp_path / "mine.json"
    answer = run("bench", "--costs", path, "--seconds", "2", "--json")
    assert (answer.code, answer.json["cpu"]) == (0, "x86-vnni")
    assert read_costs(path) == table
    assert asked == [{"progress": False, "seconds": 2.0}]


def test_costs_and_models_are_not_measured_at_once(run, model, tmp_path):
    answer = run("bench", "--costs", tmp_path / "mine.json", model)
    assert answer.code == 2
    assert "--costs times kernels, not models" in answer.err
    answer = run("bench")
    assert answer.code == 2
    assert "give models to time, or --costs" in answer.err
