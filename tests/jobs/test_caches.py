"""Folders whose caches are kept in integers: alone, and beside quantized weights."""

import json

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from support.folders import make_vision_tower
from support.genai_folders import VOCABULARY, Words, make_folder
from support.language_models import make_decoder

import bitwright
from bitwright import TextData, load_recipe
from bitwright.emit.caches import with_float_caches
from bitwright.errors import DataError, NothingQuantizedError, PlanError, RecipeError
from bitwright.jobs.encodings import read_overrides


@pytest.fixture
def text(folder, tmp_path):
    words = np.random.default_rng(0).integers(0, VOCABULARY, 16 * 32)
    (tmp_path / "text.txt").write_text(" ".join(map(str, words)))
    return TextData(text=tmp_path / "text.txt", tokenizer=Words(), length=32, config=folder)


@pytest.fixture
def folder(tmp_path):
    return make_folder("llama", tmp_path / "llama")


def caches(path):
    session = ort.InferenceSession(path)
    return {value.type for value in session.get_inputs() if "past" in value.name}


@pytest.mark.parametrize("recipe", ["int8-cache", "int4-rtn", "int8-dynamic"])
def test_caches_go_with_float_weights_and_with_quantized_ones(recipe, folder, text, tmp_path):
    chosen = load_recipe(recipe).replace(cache="int8")
    result = bitwright.quantize(
        folder, tmp_path / "small", recipe=chosen, data=text, force_dynamic="dynamic" in recipe
    )
    assert caches(tmp_path / "small" / "model.onnx") == {"tensor(int8)"}
    one = result.results["model.onnx"]
    plain = (
        bitwright.quantize(
            folder, recipe=chosen.replace(cache=None), data=text, force_dynamic="dynamic" in recipe
        )
        if recipe != "int8-cache"
        else None
    )
    # Caches of 8 bits change little beside what weights of fewer change.
    before = 0 if plain is None else plain.results["model.onnx"].judgement.loss
    assert one.judgement.loss < before + 0.15
    assert one.perplexity.tokens == 2 * 31
    assert one.perplexity.after == pytest.approx(one.perplexity.before, rel=0.1)
    assert {node.op for node in one.plan.nodes.values() if node.quantized} >= (
        {"MatMul"} if plain else {"GroupQueryAttention"}
    )
    prices = [note for note in one.plan.notes if "caches of int8" in note]
    assert prices[0].startswith("warning: prompts take longer")
    assert prices[1].startswith("caches of int8 change the perplexity from ")
    assert "the cache of 1,024 tokens takes 131.1 kB in place of 524.3 kB" in one.plan.notes
    config = (tmp_path / "small" / "genai_config.json").read_text()
    assert config == (folder / "genai_config.json").read_text()


def test_caches_alone_leave_every_weight_as_it_is(folder, text, tmp_path):
    whole = bitwright.quantize(folder, tmp_path / "small", recipe="int8-cache", data=text)
    result, before = whole.results["model.onnx"], onnx.load(folder / "model.onnx")
    written = onnx.load(tmp_path / "small" / "model.onnx")
    after = {tensor.name: tensor for tensor in written.graph.initializer}
    for tensor in before.graph.initializer:
        if tensor.name in after:
            same = onnx.numpy_helper.to_array(after[tensor.name])
            np.testing.assert_array_equal(same, onnx.numpy_helper.to_array(tensor))
    assert result.quantized == {"GroupQueryAttention": 2}
    assert result.shrinkage.startswith("1.0")


def test_without_text_the_model_writes_what_its_caches_are_observed_on(folder):
    result = bitwright.quantize(folder, recipe="int8-cache", limit=8)
    one = result.results["model.onnx"]
    assert one.data == "7 samples of what the model wrote itself"
    assert any(note.startswith("no text was given") for note in one.plan.notes)
    assert one.outputs and len(one.plan.caches) == 2


def test_the_plan_has_the_scales_and_gives_the_same_model_again(folder, text):
    result = bitwright.quantize(folder / "model.onnx", recipe="int8-cache", data=text)
    again = bitwright.apply_plan(result.plan, folder / "model.onnx")
    assert again.to_proto().graph == result.to_proto().graph
    plan = json.loads(result.plan.to_json())
    plan["caches"]["/model/layers.0/attn/GroupQueryAttention"]["key"][0] = 0.0
    with pytest.raises(PlanError, match="positive and finite"):
        bitwright.QuantPlan.from_json(json.dumps(plan))


def test_a_scale_file_of_the_runtime_is_read_and_written(folder, text, tmp_path):
    recipe = load_recipe("int8-cache")
    bitwright.quantize(folder, tmp_path / "first", recipe=recipe, data=text)
    file = tmp_path / "first" / "model.kv_scales.json"
    content = json.loads(file.read_text())
    assert content["layer_ids"] == [0, 1] and content["qmax"] == 127
    assert np.shape(content["scales"]["k_scales"]) == (2, 32)
    read = recipe.replace(overrides=read_overrides(file, cache="int8"))
    bitwright.quantize(folder, tmp_path / "second", recipe=read, data=text)
    first, second = (onnx.load(tmp_path / name / "model.onnx") for name in ("first", "second"))
    assert first.graph == second.graph
    # For 4 bits the same magnitudes are divided by 8, as the runtime's builder does.
    four = read_overrides(file, cache="int4")
    key = np.array(four["present.1.key"].scale)
    np.testing.assert_allclose(key, np.array(content["scales"]["k_scales"][1]) * 127 / 8)


@pytest.mark.parametrize(
    ("content", "cache", "error"),
    [
        ({"scales": {"k_scales": [[1.0]]}}, "int8", "v_scales"),
        ({"scales": {"k_scales": [["a"]], "v_scales": [[1.0]]}}, "int8", "no scale file"),
        ({"scales": {"k_scales": [[1.0]], "v_scales": [[1.0]]}}, None, "set cache='int8'"),
    ],
)
def test_a_file_that_has_no_scales_is_refused(content, cache, error, tmp_path):
    (tmp_path / "scales.json").write_text(json.dumps(content))
    with pytest.raises(RecipeError, match=error):
        read_overrides(tmp_path / "scales.json", cache=cache)


def test_scales_of_some_caches_or_of_others_are_refused(folder, text, tmp_path):
    content = {"scales": {"k_scales": [1.0], "v_scales": [1.0]}, "layer_ids": [0]}
    (tmp_path / "scales.json").write_text(json.dumps(content))
    for layer, error in ((0, "no scales are given for the cache"), (7, "no cache has the name")):
        content["layer_ids"] = [layer]
        (tmp_path / "scales.json").write_text(json.dumps(content))
        given = read_overrides(tmp_path / "scales.json", cache="int8")
        recipe = load_recipe("int8-cache").replace(overrides=given)
        with pytest.raises(RecipeError, match=error):
            bitwright.quantize(folder, recipe=recipe, data=text)


def test_models_of_a_folder_without_such_attention_are_quantized_without_caches(
    folder, text, tmp_path
):
    onnx.save(make_vision_tower(), folder / "vision.onnx")
    recipe = load_recipe("int4-rtn").replace(cache="int8")
    result = bitwright.quantize(folder, recipe=recipe, data=text)
    assert result.results["vision.onnx"].plan.recipe.cache is None
    assert result.results["model.onnx"].plan.caches
    alone = bitwright.quantize(folder, recipe="int8-cache", data=text)
    assert list(alone.results) == ["model.onnx"] and "vision.onnx" in alone.copied


def test_attention_in_pieces_is_refused_as_a_model_and_as_a_folder(tmp_path):
    (tmp_path / "pieces").mkdir()
    onnx.save(make_decoder(), tmp_path / "pieces" / "model.onnx")
    for source in (tmp_path / "pieces", tmp_path / "pieces" / "model.onnx"):
        with pytest.raises(NothingQuantizedError, match="builder of onnxruntime-genai"):
            bitwright.quantize(source, recipe="int8-cache")


def test_caches_of_4_bits_need_a_measured_loss(folder, text, monkeypatch):
    monkeypatch.setattr("bitwright.jobs.weight_only.work.write_samples", lambda *_: None)
    with pytest.raises(DataError, match="cannot write its own samples"):
        bitwright.quantize(folder, recipe={"base": "int8-cache", "cache": "int4"})
    result = bitwright.quantize(folder, recipe={"base": "int8-cache", "cache": "int4"}, data=text)
    one = result.results["model.onnx"]
    assert any("caches of int4 change the perplexity" in note for note in one.plan.notes)
    assert any("lose about as much as weights of 4 bits" in note for note in one.plan.notes)
    assert (
        one.judgement.loss
        > 2
        * bitwright.quantize(folder, recipe="int8-cache", data=text)
        .results["model.onnx"]
        .judgement.loss
    )


def test_the_loss_is_that_of_the_written_model(folder, text):
    """The judgement is of a view with float caches; running that by hand gives the same numbers."""
    result = bitwright.quantize(folder / "model.onnx", recipe="int8-cache", data=text)
    view = bitwright.graph.clone_model(result.model)
    with_float_caches(view)
    compared = bitwright.compare(folder / "model.onnx", view, data=list(result.evaluation))
    figures = [
        next(one for one in found.outputs if one.name == "logits").judged.worst.figure
        for found in (compared, result)
    ]
    assert figures[0] == pytest.approx(figures[1], rel=1e-3)
    # The written model itself is compared in the same way.
    whole = bitwright.compare(folder / "model.onnx", result.model, data=list(result.evaluation))
    assert whole.judgement.loss == pytest.approx(compared.judgement.loss)
    assert whole.judgement.perplexity is None  # it is not told the tokens


@pytest.mark.parametrize("mode", ["static", "cast"])
def test_other_modes_refuse_caches(mode):
    base = {"static": "int8", "cast": "float16"}[mode]
    with pytest.raises(RecipeError, match="cache"):
        load_recipe(base).replace(cache="int8")
