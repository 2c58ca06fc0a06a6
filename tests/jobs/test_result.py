"""What a job gives back, in a summary, as plain data and on disk."""

import json

import onnx
import pytest
from support.models import make_cnn, make_samples

import bitwright
from bitwright.jobs.result import advised_purpose
from bitwright.recipe import Recipe
from bitwright.support.wording import show_ratio


@pytest.fixture(scope="module")
def result():
    model = make_cnn()
    return bitwright.quantize(model, data=make_samples(model, 16), recipe="int8")


def test_the_summary_names_recipe_sizes_data_and_the_error(result):
    text = result.summary()
    assert str(result) == text
    assert repr(result) == f"<Result: {text.splitlines()[0]}>"
    assert text.splitlines()[-3:] == [
        f"Verdict: {result.verdict.sentence}",
        "Ship it: after a look at the worst nodes",
        "Time: not measured: it was not asked for",
    ]
    assert text.startswith("Recipe int8: ")
    assert "Calibrated on: 14 samples of list of samples" in text
    assert "Against float (2 holdout samples): " in text
    assert "Integer kernels: 3 of 3 products in integers (100 % of multiply-adds)" in text
    assert "judged on 2 samples: too few for an interval" in text


def test_plain_data_survives_json_and_agrees_with_the_fields(result):
    data = json.loads(json.dumps(result.to_dict()))
    assert data["nodes"] == sum(data["quantized"].values()) + sum(
        row["count"] for row in data["skipped"]
    )
    assert data["outputs"][0]["sqnr_db"] == result.outputs[0].sqnr
    assert data["outputs"][0]["judged"]["kind"] == "logits"
    assert data["judgement"]["loss"] == result.judgement.loss
    assert data["coverage"]["integer_products"] == result.coverage.integer_products == 3
    assert data["samples_are_unseen"] and data["output"] is None


def test_saving_writes_what_the_size_says(result, tmp_path):
    path = tmp_path / "q.onnx"
    result.save(path)
    assert path.stat().st_size == result.size and result.to_dict()["output"] == str(path)
    assert onnx.load(path).graph == result.to_proto().graph


def test_a_notebook_shows_the_tables(result):
    page = result._repr_html_()
    assert "Quantized model" in page and "int8" in page


@pytest.mark.parametrize("recipe", ["int8", "int8-dynamic", "int8-weights", "bfp16"])
def test_the_size_is_that_of_the_file_before_it_is_written(recipe, tmp_path):
    demo = bitwright.load_demo()
    data, force = demo.calibration[:8], recipe == "int8-dynamic"
    result = bitwright.quantize(demo.model_path, data=data, recipe=recipe, force_dynamic=force)
    before = result.size
    result.save(tmp_path / "q.onnx")
    assert before == result.size == (tmp_path / "q.onnx").stat().st_size


def test_sizes_are_compared_in_words():
    assert show_ratio(3, "smaller", "larger") == "3.00x smaller"
    assert show_ratio(100 / 150, "smaller", "larger") == "1.50x larger"


def test_where_no_purpose_can_be_chosen_speed_is_advised():
    assert advised_purpose(Recipe()) == "size"
    assert advised_purpose(Recipe(mode="dynamic")) == "speed"
