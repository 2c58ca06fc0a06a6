"""Bad input from the command line: one line, the right exit code, no traceback, no file."""

import logging
import os
import shutil

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from bitwright.cli import app


def check_refused(answer, folder, *words, code=1):
    assert answer.code == code, answer.err
    assert answer.out == ""
    assert answer.err.startswith("error: ")
    assert answer.err.count("\n") == 1
    assert answer.err.rstrip().endswith((".", "?"))
    for word in words:
        assert word in answer.err
    assert list(folder.iterdir()) == []


@pytest.fixture
def folder(tmp_path):
    """An empty folder that must stay so."""
    path = tmp_path / "output"
    path.mkdir()
    return path


@pytest.fixture
def refuse(run, folder):
    def call(*words, says=(), code=1):
        answer = run("quantize", *words, "-o", folder / "q.onnx")
        check_refused(answer, folder, *says, code=code)

    return call


def save_model(path, shape, *, op="MatMul", other="w"):
    """Save a model of one node: of two inputs, or of one input and a 4x4 weight."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    weights = []
    if other == "w":
        weights = [numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")]
    else:
        inputs.append(helper.make_tensor_value_info(other, TensorProto.FLOAT, [4, 4]))
    node = helper.make_node(op, ["x"] if op == "Neg" else ["x", other], ["y"], name="only")
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)]
    graph = helper.make_graph([node], "g", inputs, outputs, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


# The model --------------------------------------------------------------------------------


def test_a_missing_file(refuse, data, tmp_path):
    refuse(tmp_path / "no.onnx", "--data", data, says=("there is no file", "no.onnx"))


def test_a_folder_instead_of_a_file(refuse, data, tmp_path):
    refuse(tmp_path, "--data", data, says=("has no ONNX model",))


def test_an_empty_file(refuse, data, tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"")
    refuse(tmp_path / "m.onnx", "--data", data, says=("is empty",))


def test_a_file_that_is_not_onnx(refuse, data, tmp_path):
    (tmp_path / "m.onnx").write_text("hello, this is no model at all")
    refuse(tmp_path / "m.onnx", "--data", data, says=("is not an ONNX model",))


def test_a_file_that_is_cut_off(refuse, model, data, tmp_path):
    content = model.read_bytes()
    (tmp_path / "m.onnx").write_bytes(content[: len(content) // 2])
    refuse(tmp_path / "m.onnx", "--data", data, says=("is cut off or damaged",))


def test_a_model_that_is_quantized_already(refuse, quantized, data):
    refuse(quantized, "--data", data, says=("already quantized",))


def test_a_model_with_nothing_to_quantize(refuse, tmp_path):
    path = save_model(tmp_path / "m.onnx", ("n", 4), op="Neg")
    refuse(path, "--random-data", 2, says=("nothing", "Neg"))


# The data ---------------------------------------------------------------------------------


def test_no_data(refuse, model):
    refuse(model, says=("needs calibration data; give --data PATH", "--random-data 8"))


def test_an_open_dimension_asks_for_the_option_and_the_option_works(refuse, run, tmp_path):
    path = save_model(tmp_path / "m.onnx", ("n", "length", 4))
    refuse(path, "--random-data", 2, says=("--input-shape x=1x224x4, or --data PATH",))
    out = tmp_path / "q.onnx"
    assert run("quantize", path, "-o", out, "--random-data", 2, "--input-shape", "x=1x224x4")
    assert out.exists()


def test_data_that_is_not_there(refuse, model, tmp_path):
    refuse(model, "--data", tmp_path / "none", says=("there is no calibration data at",))


def test_an_empty_folder(refuse, model, tmp_path):
    (tmp_path / "empty").mkdir()
    refuse(model, "--data", tmp_path / "empty", says=("is empty",))


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (np.zeros((4, 1, 9, 9), np.float32), "shape"),
        (np.zeros((4, 1, 8, 8), np.int64), "takes float32"),
        (np.full((4, 1, 8, 8), np.nan, np.float32), "NaN"),
        (np.zeros((0, 1, 8, 8), np.float32), "no samples"),
    ],
)
def test_data_that_does_not_fit(refuse, model, tmp_path, array, says):
    np.save(tmp_path / "d.npy", array)
    refuse(model, "--data", tmp_path / "d.npy", says=(says,))


def test_a_wrong_input_name(refuse, tmp_path):
    path = save_model(tmp_path / "m.onnx", (4, 4), other="kernel")
    array = np.zeros((3, 4, 4), np.float32)
    np.savez(tmp_path / "d.npz", x=array, kernl=array)
    says = ("'kernl'", "Did you mean 'kernel'?")
    refuse(path, "--data", tmp_path / "d.npz", says=says)


def test_open_shapes_without_data_to_settle_them(refuse, tmp_path):
    path = save_model(tmp_path / "m.onnx", ("n", "length", 4))
    refuse(path, "--random-data", 2, says=("'length'", "is open"))


def test_a_limit_of_nothing(refuse, model, data):
    refuse(model, "--data", data, "--limit", 0, says=("at least 1",))


def test_preprocessing_for_arrays(refuse, model, data):
    refuse(model, "--data", data, "--transform", "imagenet", says=("holds arrays and not images",))


def test_unknown_preprocessing(refuse, model, image_folder):
    says = ("unknown preprocessing key 'reszie'. Did you mean 'resize'?",)
    refuse(model, "--data", image_folder, "--transform", "reszie=8", says=says)


# What is asked for ------------------------------------------------------------------------


def test_an_unknown_recipe(refuse, model, data):
    refuse(model, "--data", data, "--recipe", "int9", says=("Did you mean 'int8'?",))


def test_a_recipe_file_with_an_unknown_key(refuse, model, data, tmp_path):
    (tmp_path / "r.json").write_text('{"per_chanel": true}')
    says = ("r.json", "unknown option 'per_chanel'", "Did you mean 'per_channel'?")
    refuse(model, "--data", data, "--recipe", tmp_path / "r.json", says=says)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("r.json", b'{"name": "\xff"}', "not a text in UTF-8"),
        ("r.json", b'{"a":' * 100_000, "is not JSON"),
        ("r.yaml", b"[" * 5000, "is not YAML"),
        ("r.yaml", b"percentile: " + b"9" * 5000, "is not YAML"),
    ],
)
def test_a_damaged_recipe_file(refuse, model, data, tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content)
    refuse(model, "--data", data, "--recipe", tmp_path / name, says=(says,))


def test_pipes_and_devices_are_not_waited_for(refuse, run, model, data, folder, tmp_path):
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    refuse(pipe, "--data", data, says=("is a pipe or a device",))
    refuse("/dev/zero", "--data", data, says=("is a pipe or a device",))
    refuse(model, "--data", data, "--recipe", pipe, says=("is a pipe or a device",))
    answer = run("apply", pipe, model, "-o", folder / "q.onnx")
    check_refused(answer, folder, "is a pipe or a device")


def test_a_damaged_plan(run, model, folder, tmp_path):
    for content in (b'{"tool": "\xff"}', b'{"a":' * 100_000):
        (tmp_path / "plan.json").write_bytes(content)
        answer = run("apply", tmp_path / "plan.json", model, "-o", folder / "q.onnx")
        check_refused(answer, folder, "is not JSON")


def test_an_unknown_target(refuse, model, data):
    refuse(model, "--data", data, "--target", "cqu", says=("Did you mean 'cpu'?",))


def test_an_unknown_setting(refuse, model, data):
    refuse(model, "--data", data, "--set", "per_chanel=true", says=("Did you mean 'per_channel'?",))


def test_an_unknown_range_method(refuse, model, data):
    refuse(model, "--data", data, "--ranges", "entrpy", says=("Did you mean 'entropy'?",))


def test_an_unknown_node(refuse, model, data):
    says = ("no node is called 'clasify'. Did you mean 'classify'?",)
    refuse(model, "--data", data, "--exclude", "clasify", says=says)


def test_an_unknown_op_type(refuse, model, data):
    refuse(model, "--data", data, "--op-types", "Conf", says=("unknown op type 'Conf'",))


def test_sketches_of_another_model(refuse, run, model, data, tmp_path):
    kept = tmp_path / "kept.safetensors"
    kept.write_bytes(b"nothing of the kind")
    refuse(model, "--data", data, "--sketches", kept, says=("kept.safetensors",))


# Where it goes ----------------------------------------------------------------------------


def test_output_equal_to_input(run, model, data, tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(model.read_bytes())
    answer = run("quantize", path, "--data", data, "-o", tmp_path / "." / "m.onnx")
    assert answer.code == 1
    assert "would overwrite the input" in answer.err
    assert path.read_bytes() == model.read_bytes()


@pytest.mark.parametrize("option", ["-o", "--plan-out", "--sketches", "--report"])
@pytest.mark.parametrize("given", ["--data", "--recipe"])
def test_an_output_equal_to_another_file_that_is_given(run, model, data, tmp_path, option, given):
    recipe = tmp_path / "recipe.json"
    recipe.write_text('{"base": "int8"}')
    precious = tmp_path / "precious.npy" if given == "--data" else recipe
    if given == "--data":
        shutil.copy(data, precious)
    link = tmp_path / "link"
    link.symlink_to(precious)
    before = precious.read_bytes()
    files = {"--data": data, "--recipe": recipe, "-o": tmp_path / "q.onnx"}
    files |= {given: precious, option: link}
    answer = run("quantize", model, *(each for pair in files.items() for each in pair))
    assert answer.code == 1 and "would overwrite" in answer.err
    assert precious.read_bytes() == before


def test_a_plan_or_page_over_what_is_given(run, model, data, quantized, tmp_path):
    plan = tmp_path / "plan.json"
    assert run("plan", model, "-o", plan, "--data", data).code == 0
    before = plan.read_bytes(), data.read_bytes()
    for command in (
        ("plan", model, "-o", data, "--data", data),
        ("plan", model, "-o", plan, "--data", data, "--sketches", plan),
        ("apply", plan, model, "-o", plan),
        ("apply", plan, model, "-o", data, "--data", data),
        ("report", model, quantized, "-o", data, "--data", data),
        ("report", model, quantized, "-o", plan, "--data", data, "--plan", plan),
        ("sensitivity", model, "--plan", plan, "-o", plan, "--data", data),
    ):
        answer = run(*command)
        assert answer.code == 1 and "would overwrite" in answer.err
    assert (plan.read_bytes(), data.read_bytes()) == before


def test_an_output_folder_that_is_not_there(run, model, data, tmp_path):
    answer = run("quantize", model, "--data", data, "-o", tmp_path / "none" / "q.onnx")
    check_refused(answer, tmp_path, "there is no folder")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_output_folder_without_permission(run, model, data, folder):
    folder.chmod(0o500)
    answer = run("quantize", model, "--data", data, "-o", folder / "q.onnx")
    check_refused(answer, folder, "no permission")


def test_a_file_where_the_output_folder_should_be(run, model, data, tmp_path):
    (tmp_path / "file").write_text("")
    answer = run("quantize", model, "--data", data, "-o", tmp_path / "file" / "q.onnx")
    assert answer.code == 1
    assert "is a file, not a folder" in answer.err


def test_a_plan_that_cannot_be_written_stops_the_job_before_it_starts(
    run, model, data, folder, tmp_path
):
    words = ("-o", folder / "q.onnx", "--plan-out", tmp_path / "none" / "plan.json")
    check_refused(run("quantize", model, "--data", data, *words), folder, "there is no folder")


def test_sketches_that_cannot_be_kept_stop_the_job_before_it_starts(
    run, model, data, folder, tmp_path
):
    words = ("--data", data, "--sketches", tmp_path / "none" / "seen")
    for command in ("quantize", "plan"):
        answer = run(command, model, "-o", folder / "out", *words)
        check_refused(answer, folder, "there is no folder")


def test_a_full_disk_leaves_nothing(run, model, data, folder, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    answer = run("quantize", model, "--data", data, "-o", folder / "q.onnx")
    check_refused(answer, folder, "the disk is full")
    answer = run("plan", model, "--data", data, "-o", folder / "plan.json")
    check_refused(answer, folder, "No space left on device")


# How it is asked --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--nonsense",), "No such option: --nonsense"),
        (("--limit", "three"), "valid integer"),
        (("--memory-budget", "lots"), "'lots' is no size"),
        (("--random-data", "2", "--data", "x"), "exclude each other"),
        (("--random-data", "2", "--limit", "1"), "exclude each other"),
        (("--input-shape", "x=1x2"), "goes with --data or --random-data"),
        (("--random-data", "2", "--input-shape", "image"), "is not NAME=SHAPE"),
        (("--random-data", "2", "--input-shape", "image=1xtwo"), "is not NAME=SHAPE"),
    ],
)
def test_misuse_is_exit_code_2(refuse, model, words, says):
    refuse(model, *words, says=(says, "see 'bitwright quantize --help'"), code=2)


def test_an_engine_that_there_is_not(refuse, model, data):
    says = ("'spark' is no engine", "write local, ray, or ray://host:port.")
    refuse(model, "--data", data, "--engine", "spark", says=says)


def test_plan_and_output_in_one_file(run, model, data, folder):
    words = ("-o", folder / "q", "--plan-out", folder / "q")
    check_refused(run("quantize", model, "--data", data, *words), folder, "different files", code=2)


def test_missing_arguments_and_unknown_commands(run, tmp_path, model):
    check_refused(run("apply", model, model), tmp_path, "Missing option", code=2)
    check_refused(run("inspect"), tmp_path, "Missing argument", code=2)
    sentence = "No such command 'quantise'. Did you mean 'quantize'? See 'bitwright --help'."
    check_refused(run("quantise"), tmp_path, sentence, code=2)


def test_no_command_shows_the_help_and_is_no_success(run):
    answer = run()
    assert answer.code == 2
    assert "quantize" in answer.out


# How it is told ---------------------------------------------------------------------------


def test_with_json_the_error_is_an_object_too(run, tmp_path, out):
    answer = run("quantize", tmp_path / "no.onnx", "-o", out, "--random-data", 2, "--json")
    assert answer.code == 1
    assert answer.json["error"]["type"] == "ModelError"
    assert "no.onnx" in answer.json["error"]["message"]
    assert answer.err == f"error: {answer.json['error']['message']}\n"
    misuse = run("inspect", "--json")
    assert misuse.code == 2
    assert misuse.json["error"]["type"] == "UsageError"


def test_verbose_shows_the_traceback(run, tmp_path, out):
    answer = run("quantize", tmp_path / "no.onnx", "-o", out, "--random-data", 2, "--verbose")
    assert "Traceback" in answer.err
    assert answer.err.splitlines()[-1].startswith("error: there is no file")


def raise_in_command(monkeypatch, error):
    import bitwright.api

    def broken(*_, **__):
        raise error

    monkeypatch.setattr(bitwright.api, "inspect", broken)


def test_an_unexpected_exception_is_called_a_bug(run, model, monkeypatch):
    raise_in_command(monkeypatch, KeyError("lost\nkey"))
    answer = run("inspect", model)
    assert answer.code == 1
    assert answer.err.startswith("error: this is a bug in bitwright (KeyError: ")
    assert "--verbose" in answer.err
    assert answer.err.count("\n") == 1
    assert "Traceback" in run("inspect", model, "--verbose").err


def test_ctrl_c_is_130(run, model, monkeypatch):
    raise_in_command(monkeypatch, KeyboardInterrupt())
    answer = run("inspect", model)
    assert (answer.code, answer.out) == (130, "")
    assert answer.err.strip() == "error: interrupted."
    assert run("inspect", model, "--json").json["error"]["type"] == "Interrupted"


def test_warnings_are_one_line_each(capsys):
    import warnings

    with app._one_line_warnings():
        warnings.warn("the last 2 images\nare left out.", stacklevel=1)
    assert capsys.readouterr().err == "warning: the last 2 images are left out.\n"


def test_log_lines_of_other_packages_stay_off_the_screen(run, model, monkeypatch):
    def warn(json: bool = False) -> None:
        """Warn as onnx-ir does."""
        logging.getLogger("onnx_ir").error("a line of a log")

    monkeypatch.setitem(app._COMMANDS, "inspect", warn)
    # Not pytest's own handlers, which take such lines in its process.
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    assert run("inspect").err == ""
    assert logging.getLogger().handlers == []


def test_a_shortage_of_memory_is_one_sentence(run, monkeypatch):
    def starve(json: bool = False) -> None:
        """Fail as a library does that cannot be loaded."""
        raise ImportError("libtorch.so: failed to map segment from shared object")

    monkeypatch.setitem(app._COMMANDS, "inspect", starve)
    answer = run("inspect", "--json")
    assert answer.code == 1
    assert answer.err.startswith("error: there is not enough memory (libtorch.so: failed to map ")
    assert answer.json["error"]["type"] == "OutOfMemoryError"
