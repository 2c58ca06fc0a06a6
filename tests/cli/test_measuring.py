"""What the commands that measure have in common, on a language model and its text."""

import json

import onnx
import pytest
from support import language_models

from bitwright.cli import main


@pytest.fixture(scope="module")
def language(tmp_path_factory):
    tokenizers = pytest.importorskip("tokenizers", reason="the extra 'text' is not installed")
    folder = tmp_path_factory.mktemp("language")
    onnx.save(language_models.make_block(depth=1), folder / "model.onnx")
    letters = "abcdefghijklmnopqrstuvwxyz "
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab={letter: n for n, letter in enumerate(letters)}, merges=[])
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog " * 20)
    words = ["quantize", folder / "model.onnx", "-o", folder / "q.onnx", "--recipe", "int4-rtn"]
    assert main([str(w) for w in (*words, "--plan-out", folder / "plan.json", "--quiet")]) == 0
    return folder


def text_of(folder):
    return ["--data", folder / "text.txt", "--tokenizer", folder / "tokenizer.json", "--tokens", 32]


def test_a_text_measures_a_language_model(language, capsys):
    words = ["compare", language / "model.onnx", language / "q.onnx", *text_of(language)]
    assert main([str(w) for w in (*words, "--limit", 2, "--json")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["samples"] == 2 and set(found["weights"]) >= {"gate0", "head"}


def test_a_report_of_one_names_the_text_in_its_commands(language, capsys):
    words = ["report", language / "model.onnx", language / "q.onnx", *text_of(language)]
    out = language / "r.html"
    assert main([str(w) for w in (*words, "-o", out, "--no-latency", "--limit", 2, "--json")]) == 0
    found = json.loads(capsys.readouterr().out)
    commands = [advice["command"] for advice in found["advice"] if advice["command"]]
    given = f"--data {language / 'text.txt'} --tokenizer {language / 'tokenizer.json'} --tokens 32"
    assert any("bitwright sensitivity" in words and given in words for words in commands)


@pytest.mark.parametrize("to", ["float", "int8"])
def test_weights_of_one_are_put_back(language, to, capsys):
    model, better = language / "model.onnx", language / f"better-{to}.json"
    words = ["sensitivity", model, "--plan", language / "plan.json", *text_of(language)]
    more = ("-o", better, "--to", to, "--most", 0.5, "--limit", 2)
    assert main([str(w) for w in (*words, *more)]) == 0
    assert "back to " + ("float" if to == "float" else "8 bits") in capsys.readouterr().out
    applied = ["apply", better, model, "-o", language / "b.onnx", "--quiet"]
    assert main([str(w) for w in applied]) == 0


def test_options_that_clash_are_told(language, capsys):
    pair = [str(language / name) for name in ("model.onnx", "q.onnx")]
    assert main(["compare", *pair, "--tokens", "8"]) == 2
    assert "--tokens is for a text; give it with --data" in capsys.readouterr().err
    assert main(["compare", *pair, "--random-data", "2", "--memory-budget", "many"]) == 2
    assert "is no size" in capsys.readouterr().err
