"""Each model of a folder gets the data that it can use."""

import numpy as np
import onnx
import pytest
from support.folders import Letters, make_folder, make_text, make_vision_tower

import bitwright
from bitwright import TextData
from bitwright.data import ShapedData
from bitwright.errors import DataError
from bitwright.jobs.folder_data import FolderData


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
    assert data == TextData(text=text, tokenizer=folder / place) and reason is None
    shaped = ShapedData(data=str(text), shapes={"past": 0})
    data, _ = FolderData.open(folder, MODELS, shaped).for_model("model.onnx")
    assert data.shapes == {"past": 0}


def test_a_text_without_a_tokenizer_is_refused(folder, tmp_path):
    with pytest.raises(DataError, match=r"has no tokenizer\.json, which the text .*--tokenizer"):
        bitwright.quantize(folder, recipe="int4", data=make_text(tmp_path / "text.txt"))


def test_only_models_whose_inputs_are_filled_get_the_text(folder, tmp_path):
    text = TextData(text=make_text(tmp_path / "text.txt"), tokenizer=Letters())
    source = FolderData.open(folder, MODELS, text)
    assert source.for_model("model.onnx") == (text, None)
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
