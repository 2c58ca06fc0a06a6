"""`-o -`: standard output has the result and nothing else."""

import json

import numpy as np
import onnx
import pytest

import bitwright
from bitwright.cli import main
from bitwright.cli.piping import refuse_pipe, written


@pytest.fixture
def pipe(capsysbinary, tmp_path, monkeypatch):
    """Run a command in an empty folder; give what it sent to each of its streams."""
    monkeypatch.chdir(tmp_path)

    def call(*words, code=0):
        capsysbinary.readouterr()
        assert main([*map(str, words), "-o", "-"]) == code
        found = capsysbinary.readouterr()
        assert list(tmp_path.iterdir()) == []
        return found.out, found.err.decode()

    return call


def test_a_model_goes_through_a_pipe_and_is_the_one_of_a_file(pipe, model, data, tmp_path_factory):
    sent, said = pipe("quantize", model, "--data", data)
    assert "Written to: -" in said
    assert "Next" not in said
    path = tmp_path_factory.mktemp("file") / "q.onnx"
    assert main(["quantize", str(model), "--data", str(data), "-o", str(path), "-q"]) == 0
    assert sent == path.read_bytes()
    onnx.checker.check_model(onnx.load_from_string(sent))


@pytest.mark.slow
def test_plans_pages_and_cleaned_up_models_do_too(pipe, model, data, quantized, tmp_path_factory):
    sent, said = pipe("plan", model, "--data", data)
    assert json.loads(sent)["recipe"]["name"] == "int8-per-channel"
    plan = tmp_path_factory.mktemp("plan") / "plan.json"
    plan.write_bytes(sent)
    assert onnx.load_from_string(pipe("apply", plan, model)[0]).graph.node
    assert onnx.load_from_string(pipe("preprocess", model)[0]).graph.node
    better, said = pipe("sensitivity", model, "--plan", plan, "--data", data, "--candidates", 1)
    assert json.loads(better)["nodes"]
    assert "Next" not in said
    page, _ = pipe("report", model, quantized, "--data", data, "--no-latency")
    assert page.startswith(b"<!doctype html>")


def test_a_command_that_fails_sends_nothing(pipe, model):
    sent, said = pipe("quantize", model, code=1)
    assert sent == b""
    assert said.startswith("error: ")


@pytest.mark.parametrize("words", [("tune", "m.onnx", "--data", "d.npy"), ("demo",)])
def test_commands_that_write_more_than_one_file_refuse_it(pipe, words):
    sent, said = pipe(*words, code=2)
    assert sent == b""
    assert "--output - is not for this command" in said


def test_weights_in_a_file_of_their_own_do_not_fit(pipe, model):
    sent, said = pipe("quantize", model, "--random-data", 2, "--external-data", code=2)
    assert sent == b""
    assert "--output - holds one file" in said


def test_a_terminal_is_refused(monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    with (
        pytest.raises(Exception, match="is for a pipe"),
        written(bitwright.cli.piping.STANDARD_OUTPUT),
    ):
        raise AssertionError("never reached")


def test_any_other_path_is_written_itself(tmp_path):
    refuse_pipe(tmp_path, "never")
    with written(tmp_path / "x.npy") as path:
        np.save(path, np.zeros(1))
    assert (tmp_path / "x.npy").exists()
