"""`bitwright quantize` with weight-only recipes: arrays, texts, folders of finished weights."""

import json

import numpy as np
import onnx
import pytest
from support.checkpoints import make_graph, make_tensors, write_gguf
from support.folders import make_folder, make_text, make_vision_tower
from support.language_models import VOCABULARY, make_block, make_decoder, make_samples

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


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("bits", "widths"), [("8", {8}), ("4.5", {4, 8}), ("3", {4}), ("2.9", {2, 4})]
)
@pytest.mark.sampled(2)
def test_bits_are_whole_or_an_average(model, tmp_path, bits, widths):
    np.savez(tmp_path / "ids.npz", ids=np.concatenate([s["ids"] for s in make_samples()]))
    output = tmp_path / "small.onnx"
    data = ["--data", str(tmp_path / "ids.npz"), "--quiet", "-o", str(output)]
    assert main(["quantize", str(model), "--recipe", "int4-rtn", "--bits", bits, *data]) == 0
    products = [node for node in onnx.load(output).graph.node if node.op_type == "MatMulNBits"]
    found = {a.i for node in products for a in node.attribute if a.name == "bits"}
    assert found == widths


@pytest.mark.parametrize(
    ("bits", "with_data", "name"),
    [
        ("4", True, "int4"),
        ("4", False, "int4-rtn"),
        ("3", False, "int4-rtn"),
        ("8", False, "int8-dynamic"),
    ],
)
def test_bits_alone_name_a_recipe(model, tmp_path, capsys, bits, with_data, name):
    np.savez(tmp_path / "ids.npz", ids=np.concatenate([s["ids"] for s in make_samples()]))
    data = ["--data", str(tmp_path / "ids.npz")] if with_data else []
    command = ["quantize", str(model), "-o", str(tmp_path / "small.onnx"), "--bits", bits, *data]
    assert main([*command, "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["recipe"].startswith(name)


def test_bits_alone_calibrate_a_decoder_on_what_it_writes(tmp_path, capsys):
    onnx.save(make_decoder(width=32), tmp_path / "model.onnx")
    command = [
        "quantize",
        str(tmp_path / "model.onnx"),
        "--bits",
        "4",
        "--limit",
        "4",
        "--no-timing",
    ]
    assert main([*command, "--json", "--quiet"]) == 0
    assert "what the model wrote itself" in capsys.readouterr().out
    assert (tmp_path / "model-int4.onnx").is_file()


def test_fast_prompts_are_an_option(model, tmp_path, capsys):
    output = tmp_path / "both.onnx"
    command = ["quantize", str(model), "-o", str(output), "--bits", "4", "--prompts", "fast"]
    assert main([*command, "--quiet", "--no-timing"]) == 0
    assert [node.op_type for node in onnx.load(output).graph.node] == ["Size", "Less", "If"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--recipe", "int8", "--prompts", "fast"], "--prompts is for weights whose"),
        (["--bits", "8", "--prompts", "fast"], "recipe 'int8-dynamic' quantizes both"),
        (["--recipe", "int8", "--bits", "4"], "quantizes both"),
        (["--recipe", "int4-rtn", "--bits", "9"], "2 to 8 bits"),
        (["--recipe", "int4-rtn", "--bits", "1.5"], "between 2 and 4 bits"),
        (["--recipe", "int4-rtn", "--bits", "4.5"], "needs calibration data"),
    ],
)
def test_bits_that_there_are_not_are_refused(model, tmp_path, capsys, options, message):
    output = tmp_path / "small.onnx"
    np.savez(tmp_path / "ids.npz", ids=np.concatenate([s["ids"] for s in make_samples()]))
    given = [] if "4.5" in options else ["--data", str(tmp_path / "ids.npz")]
    assert main(["quantize", str(model), "-o", str(output), *options, *given, "--quiet"]) != 0
    assert message in capsys.readouterr().err and not output.exists()


def save_tokenizer(folder):
    tokenizers = pytest.importorskip("tokenizers", reason="the extra 'text' is not installed")
    vocabulary = {chr(32 + index): index for index in range(VOCABULARY - 1)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.save(str(folder / "tokenizer.json"))


def test_a_text_and_a_tokenizer_are_data(model, tmp_path):
    save_tokenizer(tmp_path)
    make_text(tmp_path / "text.txt", 1800)
    command = ["quantize", str(model), "--recipe", "int4-gptq", "-o", str(tmp_path / "o.onnx")]
    text = ["--data", str(tmp_path / "text.txt"), "--tokenizer", str(tmp_path / "tokenizer.json")]
    assert main([*command, *text, "--tokens", "64", "--quiet"]) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tokens", "64"], "--tokens is for a text; give it with --data"),
        (["--tokens", "64", "--data", "t.txt", "--recipe", "int4"], "needs the tokenizer of"),
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


@pytest.mark.slow
def test_a_folder_is_quantized_with_its_own_tokenizer_and_listed_model_by_model(tmp_path, capsys):
    folder, output = make_folder(tmp_path / "model"), tmp_path / "small"
    save_tokenizer(folder)
    onnx.save(make_vision_tower(), folder / "vision.onnx")
    command = ["quantize", str(folder), "--recipe", "int4", "-o", str(output)]
    text = ["--data", str(make_text(tmp_path / "text.txt")), "--tokens", "32"]
    assert main([*command, *text]) == 0
    shown = capsys.readouterr().out
    assert "Models\n  model " in shown and "top-1 agreement" in shown
    assert "Note: vision.onnx: its weights were rounded to the nearest, without data" in shown
    assert f"Written to: {output}, with 3 other files" in shown
    assert main([*command, *text, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document["models"]) == ["model.onnx", "vision.onnx"]
    assert main([*command, *text, "--verbose"]) == 0
    assert "because" in capsys.readouterr().out


@pytest.mark.parametrize(
    "option", ["--qat", "--plan-out=p.json", "--sketches=s.safetensors", "--report=page.html"]
)
def test_options_for_one_model_are_refused_for_a_folder(tmp_path, capsys, option):
    folder = make_folder(tmp_path / "model")
    assert main(["quantize", str(folder), "-o", str(tmp_path / "small"), option]) == 2
    assert f"{option.partition('=')[0]} is for one model" in capsys.readouterr().err


def test_weights_come_from_a_gguf_file(tmp_path):
    pytest.importorskip("gguf")
    graph, file, wanted = (tmp_path / name for name in ("graph.onnx", "w.gguf", "wanted.onnx"))
    onnx.save(make_graph(make_tensors(seed=1)), graph)
    onnx.save(make_graph(make_tensors()), wanted)
    write_gguf(file, make_tensors())
    made = [tmp_path / f"{name}.onnx" for name in ("a", "b", "c")]
    options = ["--weights", str(file), "--quiet"]
    recipe = ["--recipe", "int4-rtn"]
    plan = tmp_path / "plan.json"
    assert main(["quantize", str(wanted), "-o", str(made[0]), *recipe, "--quiet"]) == 0
    assert main(["quantize", str(graph), "-o", str(made[1]), *recipe, *options]) == 0
    assert main(["plan", str(graph), "-o", str(plan), *recipe, *options]) == 0
    assert main(["apply", str(plan), str(graph), "-o", str(made[2]), *options]) == 0
    one, *others = (onnx.load(path).graph.initializer for path in made)
    assert all(list(one) == list(other) for other in others)


def test_weights_are_of_one_model(tmp_path, capsys):
    folder = make_folder(tmp_path / "folder")
    onnx.save(make_vision_tower(), folder / "vision.onnx")
    words = ["quantize", str(folder), "-o", str(tmp_path / "out"), "--recipe", "int4-rtn"]
    assert main([*words, "--weights", str(tmp_path / "w.gguf")]) == 1
    assert "weights are of one model" in capsys.readouterr().err
