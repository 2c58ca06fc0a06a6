"""Each model of a folder gets the data that it can use."""

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from PIL import Image
from support.folders import (
    Letters,
    make_decoder,
    make_encoder,
    make_folder,
    make_text,
    make_vision_tower,
)

import bitwright
from bitwright import TextData
from bitwright.data import InputSpec, ShapedData, open_data
from bitwright.data.labelled import open_labelled
from bitwright.errors import DataError
from bitwright.jobs.folder_data import FolderData, with_configuration_beside


@pytest.fixture
def folder(tmp_path):
    folder = make_folder(tmp_path / "model")
    onnx.save(make_vision_tower(), folder / "vision.onnx")
    return folder


MODELS = ("model.onnx", "vision.onnx")


@pytest.mark.parametrize("place", ["tokenizer.json", "tokenizer/tokenizer.json"])
def test_a_text_file_is_read_with_the_tokenizer_of_the_folder(folder, tmp_path, place):
    text = make_text(tmp_path / "text.txt")
    (folder / place).parent.mkdir(exist_ok=True)
    (folder / place).write_text("{}")
    data, reason = FolderData.open(folder, MODELS, text).for_model("model.onnx")
    assert data == TextData(text=text, tokenizer=folder / place, config=folder)
    assert reason is None
    shaped = ShapedData(data=str(text), shapes={"past": 0})
    data, _ = FolderData.open(folder, MODELS, shaped).for_model("model.onnx")
    assert data.shapes == {"past": 0}


def test_a_text_without_a_tokenizer_is_refused(folder, tmp_path):
    with pytest.raises(DataError, match=r"has no tokenizer\.json, which the text .*--tokenizer"):
        bitwright.quantize(folder, recipe="int4", data=make_text(tmp_path / "text.txt"))


def test_only_models_whose_inputs_are_filled_get_the_text(folder, tmp_path):
    text = TextData(text=make_text(tmp_path / "text.txt"), tokenizer=Letters())
    source = FolderData.open(folder, MODELS, text)
    assert source.for_model("model.onnx") == (replace(text, config=folder), None)
    assert source.for_model("vision.onnx")[0] is None


def test_data_can_be_given_for_each_model(folder, tmp_path):
    images = np.random.default_rng(0).normal(size=(16, 4, 64)).astype(np.float32)
    text = TextData(text=make_text(tmp_path / "text.txt"), tokenizer=Letters(), length=32)
    data = {"model.onnx": text, "vision.onnx": images}
    result = bitwright.quantize(folder, recipe="int4-gptq", data=data)
    assert result.results["vision.onnx"].data == "14 samples of array of shape [16, 4, 64]"
    only = FolderData.open(folder, MODELS, {"vision.onnx": images})
    assert only.for_model("model.onnx") == (None, "the data has none for this model")
    with pytest.raises(DataError, match=r"no model of the folder\. Did you mean 'vision\.onnx'"):
        FolderData.open(folder, MODELS, {"vison.onnx": images})


@pytest.mark.parametrize("reads", ["encoder_hidden_states", "inputs_embeds"])
def test_a_model_gets_what_another_one_makes_of_the_text(tmp_path, reads):
    onnx.save(make_encoder(images=reads == "inputs_embeds"), tmp_path / "encoder.onnx")
    onnx.save(make_decoder(reads), tmp_path / "decoder.onnx")
    text = make_text(tmp_path / "text.txt")
    data = TextData(text=text, tokenizer=Letters(), length=32)
    source = FolderData.open(tmp_path, ("decoder.onnx", "encoder.onnx"), data)
    samples, reason = source.for_model("decoder.onnx")
    assert reason is None and samples.len_hint == len(list(samples)) == 600 // 32
    encoder = ort.InferenceSession(tmp_path / "encoder.onnx")
    feeds = {"input_ids": np.array([Letters().encode(text.read_text()[32:64])])}
    if reads == "inputs_embeds":
        feeds["image_features"] = np.zeros((0, 64), np.float32)
    second = list(samples)[1]
    np.testing.assert_array_equal(second[reads], encoder.run(None, feeds)[0])
    assert second["attention_mask"].shape == (1, 32)
    result = bitwright.quantize(tmp_path, recipe="int4-gptq", data=data)
    assert (
        result.results["decoder.onnx"].data
        == "16 samples of the text text.txt through encoder.onnx"
    )
    assert result.results["decoder.onnx"].outputs[0].agreement > 0.5


def test_a_model_that_fails_on_the_text_makes_nothing_of_it(tmp_path):
    onnx.save(make_encoder(), tmp_path / "encoder.onnx")
    onnx.save(make_decoder(), tmp_path / "decoder.onnx")
    text = make_text(tmp_path / "text.txt")

    class Foreign(Letters):
        def encode(self, text):
            return [10**6] * len(text)  # a tokenizer of another model

    data = TextData(text=text, tokenizer=Foreign(), length=32)
    source = FolderData.open(tmp_path, ("decoder.onnx", "encoder.onnx"), data)
    given, reason = source.for_model("decoder.onnx")
    assert given is None and "encoder.onnx makes none of it (the model does not run" in reason


def test_weights_are_rounded_by_windows_spread_over_a_text_and_one_kind_of_it_is_noted(tmp_path):
    folder, text = make_folder(tmp_path / "model"), make_text(tmp_path / "text.txt", 40_000)
    data = TextData(text=text, tokenizer=Letters(), length=32)
    result = bitwright.quantize(folder, recipe="int4-gptq", data=data).results["model.onnx"]
    assert result.data.startswith("28 samples of the text text.txt")
    assert any("all of one kind" in note for note in result.plan.notes)
    few = bitwright.quantize(folder, recipe="int4-rtn", data=data, limit=3).results["model.onnx"]
    assert few.data.startswith("3 samples") and "one kind" not in str(few.plan.notes)


@pytest.mark.parametrize("folder", [".", "onnx"])
def test_a_text_takes_the_tokenizer_beside_the_model_or_above_it(tmp_path, folder):
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "words.txt").write_text("words")
    np.save(tmp_path / "x.npy", np.zeros(3))
    model = tmp_path / folder / "model.onnx"
    found = with_configuration_beside(model, str(tmp_path / "words.txt"))
    assert found == TextData(text=tmp_path / "words.txt", tokenizer=tmp_path / "tokenizer.json")
    own = TextData(text="words.txt", tokenizer="own.json")
    for data in (own, str(tmp_path / "x.npy"), None, [{"x": np.zeros(3)}]):
        assert with_configuration_beside(model, data) is data


@pytest.mark.parametrize("folder", [".", "onnx"])
def test_images_are_prepared_as_the_configuration_beside_the_model_says(tmp_path, folder):
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / "preprocessor_config.json").write_text('{"size": 8, "do_normalize": false}')
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (16, 12), (255, 0, 0)).save(tmp_path / "photos" / "a.png")
    np.save(tmp_path / "x.npy", np.zeros(3))
    model = tmp_path / folder / "model.onnx"
    found = with_configuration_beside(model, str(tmp_path / "photos"))
    spec = InputSpec("x", np.dtype("float32"), (1, 3, None, None))
    assert [one["x"].shape for one in open_data(found, [spec])] == [(1, 3, 8, 10)]
    asked = open_data(found, [spec], transform="resize=4x4")
    assert [one["x"].shape for one in asked] == [(1, 3, 4, 4)]
    assert [one["x"].shape for one in open_labelled(found, [spec])] == [(1, 3, 8, 10)]
    assert with_configuration_beside(model, str(tmp_path / "x.npy")) == str(tmp_path / "x.npy")
