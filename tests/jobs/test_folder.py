"""A folder of models becomes a folder of quantized ones, with all that belongs to it."""

import json

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from support.folders import Letters, make_folder, make_idle, make_text, make_vision_tower
from support.language_models import VOCABULARY, make_block, make_samples

import bitwright
from bitwright import TextData, load_recipe
from bitwright.errors import (
    ArgumentError,
    DataError,
    ModelError,
    NothingQuantizedError,
    OutputError,
)
from bitwright.jobs.folder import ModelFolder, _data_free


@pytest.fixture
def folder(tmp_path):
    return make_folder(tmp_path / "model")


@pytest.fixture
def text(tmp_path):
    return TextData(text=make_text(tmp_path / "text.txt"), tokenizer=Letters(), length=32)


def files(path):
    return sorted(file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file())


def contents(path):
    return {name: (path / name).read_bytes() for name in files(path)}


def ops(path):
    return {node.op_type for node in onnx.load(path).graph.node}


def test_the_folder_comes_out_whole_small_and_runs(folder, text, tmp_path):
    before, output = contents(folder), tmp_path / "small"
    result = bitwright.quantize(folder, output, recipe="int4-gptq", data=text)
    assert files(output) == ["genai_config.json", "model.onnx", "tokenizer_config.json"]
    assert contents(folder) == before
    assert contents(output)["genai_config.json"] == before["genai_config.json"]
    assert "MatMulNBits" in ops(output / "model.onnx")
    session = ort.InferenceSession(output / "model.onnx")
    (logits,) = session.run(None, {"ids": np.array([[1, 2, 3]])})
    assert logits.shape == (1, 3, VOCABULARY)
    one = result.results["model.onnx"]
    assert one.path == output / "model.onnx" and one.outputs[0].agreement > 0.5
    assert result.path == output and result.copied == {}
    assert result.float_size == sum(len(before[f"model.onnx{end}"]) for end in ("", ".data"))
    assert result.size == (output / "model.onnx").stat().st_size < 0.6 * result.float_size
    assert not list(tmp_path.glob(".*"))


def test_nothing_is_written_until_it_is_saved(folder, tmp_path):
    result = bitwright.quantize(folder, recipe="int4-rtn")
    assert files(tmp_path) == [f"model/{name}" for name in files(folder)]
    expected = result.size
    result.save(tmp_path / "small", external_data=True)
    assert "model.onnx.data" in files(tmp_path / "small")
    # Two files take a few bytes more than the one that was foreseen.
    assert expected < result.size < 1.1 * expected
    result.save(tmp_path / "small")
    assert "model.onnx.data" not in files(tmp_path / "small") and result.size == expected


def test_models_in_subfolders_keep_their_places(tmp_path):
    folder = tmp_path / "repository"
    folder.mkdir()
    make_folder(folder / "onnx")
    for name, content in {
        "more/parts/model.onnx": make_block().SerializeToString(),
        "docs/en/README.md": b"",
    }.items():
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_bytes(content)
    (folder / "config.json").write_text("{}")
    (folder / ".cache").mkdir()
    (folder / ".cache" / "lock").write_text("")
    result = bitwright.quantize(folder, tmp_path / "small", recipe="int4-rtn")
    assert sorted(result.results) == ["more/parts/model.onnx", "onnx/model.onnx"]
    assert files(tmp_path / "small") == [
        "config.json",
        "docs/en/README.md",
        "more/parts/model.onnx",
        "onnx/genai_config.json",
        "onnx/model.onnx",
        "onnx/tokenizer_config.json",
    ]


def test_a_model_that_cannot_use_the_text_is_rounded_without_and_an_idle_one_copied(
    folder, text, tmp_path
):
    onnx.save(make_vision_tower(), folder / "vision.onnx")
    onnx.save(make_idle(), folder / "types.onnx")
    result = bitwright.quantize(folder, tmp_path / "small", recipe="int4-gptq", data=text)
    assert result.results["vision.onnx"].plan.notes[-1] == (
        "its weights were rounded to the nearest, without data: text does not fill its input "
        "'pixel_values' float32[n,64]"
    )
    assert list(result.copied) == ["types.onnx"] and "no weight" in result.copied["types.onnx"]
    assert ops(tmp_path / "small" / "vision.onnx") == {"MatMulNBits"}
    copied = (tmp_path / "small" / "types.onnx").read_bytes()
    assert copied == (folder / "types.onnx").read_bytes()
    assert any("types.onnx: copied as it is" in note for note in result.notes)


def test_a_static_recipe_copies_what_the_text_does_not_fit(folder, text, tmp_path):
    onnx.save(make_vision_tower(), folder / "vision.onnx")
    result = bitwright.quantize(folder, recipe="int8", data=text, limit=8)
    assert list(result.results) == ["model.onnx"]
    assert result.copied["vision.onnx"].startswith("recipe 'int8' needs data, and text does not")


def test_quantized_models_are_copied_with_their_data(folder, tmp_path):
    bitwright.quantize(folder / "model.onnx", tmp_path / "q8.onnx", recipe="int8-dynamic")
    quantized = onnx.load(tmp_path / "q8.onnx")
    onnx.save(quantized, folder / "q8.onnx", save_as_external_data=True, location="q8.data")
    result = bitwright.quantize(folder, tmp_path / "small", recipe="int8-dynamic")
    assert "already quantized" in result.copied["q8.onnx"]
    assert {"q8.onnx", "q8.data"} <= set(files(tmp_path / "small"))
    assert "model.onnx.data" not in files(tmp_path / "small")
    ort.InferenceSession(tmp_path / "small" / "q8.onnx")


def test_a_tied_head_is_stored_once(tmp_path):
    folder = make_folder(tmp_path / "tied", model=make_block(tied="transpose"))
    result = bitwright.quantize(folder, tmp_path / "small", recipe="int4-rtn")
    assert "GatherBlockQuantized" in ops(tmp_path / "small" / "model.onnx")
    assert result.size < 0.35 * result.float_size


def test_float16_models_stay_float16_outside(tmp_path):
    folder = make_folder(tmp_path / "half", model=make_block(dtype=np.float16))
    bitwright.quantize(folder, tmp_path / "small", recipe="int4-rtn")
    (logits,) = onnx.load(tmp_path / "small" / "model.onnx").graph.output
    assert logits.type.tensor_type.elem_type == onnx.TensorProto.FLOAT16


def test_bfloat16_models_become_float32_and_leave_their_gpu(tmp_path):
    model = make_block()
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            array = onnx.numpy_helper.to_array(tensor).astype(ml_dtypes.bfloat16)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.BFLOAT16
    folder = make_folder(tmp_path / "brain", model=model)
    config = json.loads((folder / "genai_config.json").read_text())
    options = {"log_id": "genai", "provider_options": [{"cuda": {"enable_cuda_graph": "0"}}]}
    config["model"]["decoder"]["session_options"] = options
    (folder / "genai_config.json").write_text(json.dumps(config))
    samples = make_samples(4)
    result = bitwright.quantize(folder, tmp_path / "small", recipe="int4-rtn", data=samples)
    assert result.results["model.onnx"].outputs[0].agreement > 0.5
    session = ort.InferenceSession(tmp_path / "small" / "model.onnx")
    assert session.get_outputs()[0].type == "tensor(float)"
    config["model"]["decoder"]["session_options"]["provider_options"] = []
    assert json.loads((tmp_path / "small" / "genai_config.json").read_text()) == config


def test_an_earlier_result_is_replaced_and_nothing_else(folder, tmp_path):
    output = tmp_path / "small"
    bitwright.quantize(folder, output, recipe="int4-rtn")
    first = contents(output)
    bitwright.quantize(folder, output, recipe="int8-weights")
    assert files(output) == list(first) and contents(output) != first
    (output / "letters").mkdir()
    (output / "letters" / "mine.txt").write_text("dear ...")
    with pytest.raises(OutputError, match=r"not empty, and 'letters/mine\.txt' in it"):
        bitwright.quantize(folder, output, recipe="int4-rtn")
    assert (output / "letters" / "mine.txt").exists()


def test_a_failure_leaves_the_old_folder_and_no_other(folder, tmp_path, monkeypatch):
    output = tmp_path / "small"
    result = bitwright.quantize(folder, output, recipe="int4-rtn")
    before = contents(output)

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", fail)
    with pytest.raises(OutputError, match="was not written: No space left on device"):
        result.save(output)
    assert contents(output) == before and not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("model", "would overwrite the input"),
        (".", "would overwrite the input"),
        ("model/small", "lies in the folder of the input"),
        ("file.txt", "is a file, and models of a folder go to a folder"),
        ("nowhere/small", "there is no folder"),
    ],
)
def test_outputs_that_must_not_be_are_refused(folder, tmp_path, output, message):
    (tmp_path / "file.txt").write_text("")
    before = contents(tmp_path)
    with pytest.raises(OutputError, match=message):
        bitwright.quantize(folder, tmp_path / output, recipe="int4-rtn")
    assert contents(tmp_path) == before


def test_bad_input_is_one_sentence_with_the_models_name(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="has no ONNX model"):
        bitwright.quantize(tmp_path / "empty", recipe="int4-rtn")
    with pytest.raises(DataError, match=r"^model\.onnx: recipe 'int4' weighs errors"):
        bitwright.quantize(folder, recipe="int4")
    with pytest.raises(ArgumentError, match="sketches are of one model"):
        bitwright.quantize(folder, recipe="int8", sketches=tmp_path / "seen")
    (folder / "model.onnx").write_bytes(b"no model")
    with pytest.raises(ModelError, match="is not an ONNX model"):
        bitwright.quantize(folder, recipe="int4-rtn")
    (tmp_path / "idle").mkdir()
    onnx.save(make_idle(), tmp_path / "idle" / "types.onnx")
    with pytest.raises(NothingQuantizedError, match=r"no model of the folder .*; types\.onnx: "):
        bitwright.quantize(tmp_path / "idle", recipe="int4-rtn")


def test_work_is_kept_for_each_model(folder, text, tmp_path):
    onnx.save(make_vision_tower(), folder / "vision.onnx")
    work = tmp_path / "work"
    bitwright.quantize(folder, recipe="int4-gptq", data=text, work=work)
    assert sorted(path.name for path in work.iterdir()) == ["model.onnx", "vision.onnx"]
    bitwright.quantize(folder, recipe="int4-gptq", data=text, work=work)


def test_the_summary_is_of_every_model_and_of_all(folder, text):
    result = bitwright.quantize(folder, recipe="int4-rtn", data=text)
    summary = result.summary()
    assert summary.startswith("1 model of 1 quantized, 2 other files\nmodel.onnx: ")
    assert "\nSize: " in summary
    assert "against float top-1 agreement" in summary and ", KL " in summary
    data = json.loads(json.dumps(result.to_dict()))
    assert data["models"]["model.onnx"]["bytes"] == data["bytes"] == result.size
    assert "model.onnx" in result._repr_html_()
    assert result.to_pandas().loc[0, "model"] == "model.onnx"


def test_data_files_that_models_share_count_once(folder):
    onnx.save(onnx.load(folder / "model.onnx", load_external_data=False), folder / "twin.onnx")
    found = ModelFolder.open(folder)
    assert found.models["twin.onnx"] == ("twin.onnx", "model.onnx.data")
    names = ("model.onnx", "twin.onnx", "model.onnx.data")
    assert found.size([*found.models]) == sum((folder / name).stat().st_size for name in names)


def test_without_data_weights_are_rounded_to_the_nearest():
    assert _data_free(load_recipe("int4-gptq")).weights == load_recipe("int4-rtn").weights
