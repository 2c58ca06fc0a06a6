"""A decoder with a cache writes the samples that it is calibrated on, where no text is given."""

import numpy as np
import onnx
import pytest
from support.folders import make_folder
from support.language_models import make_block, make_decoder
from support.models import build, info, node

import bitwright
from bitwright.errors import DataError
from bitwright.jobs.opening import open_model
from bitwright.jobs.weight_only.work import write_samples, writes_samples
from bitwright.recipe import GPTQ, Recipe, WeightOnly

RECIPE = Recipe(mode="weight-only", weights=WeightOnly(rounding=GPTQ()))


def windows(model, count, recipe=RECIPE):
    return [s["input_ids"] for s in write_samples(open_model(model, recipe), count, False)]


def test_only_decoders_with_a_cache_that_grows_write_samples(tmp_path):
    assert writes_samples(make_decoder())
    assert not writes_samples(make_block())
    assert not writes_samples(make_decoder(), 100)  # bytes
    assert not writes_samples(
        make_decoder(
            shapes={
                "past_key_values.0.key": [1, 1, 4, 16],
                "past_key_values.0.value": [1, 1, 4, 16],
            }
        )
    )
    assert writes_samples(make_folder(tmp_path / "decoder", model=make_decoder()))
    assert not writes_samples(make_folder(tmp_path / "block"))
    assert write_samples(open_model(make_block(), RECIPE), 2, False) is None


@pytest.mark.slow
def test_windows_begin_all_over_the_vocabulary_and_end_with_the_positions_of_the_model():
    found = np.concatenate(windows(make_decoder(vocabulary=400), 8))
    assert found.shape == (8, 256)  # rows of its table of positions
    assert (found[:, 0] // 50).tolist() == list(range(8))
    again = np.concatenate(windows(make_decoder(vocabulary=400), 8))
    np.testing.assert_array_equal(found, again)


def make_chain(vocabulary=12):
    """A decoder that says each next token with the chances of a table, and counts its cache."""
    chances = np.random.default_rng(0).dirichlet(np.full(vocabulary, 0.5), vocabulary)
    constants = {
        "table": np.log(chances + 1e-9).astype(np.float32),
        "one": np.eye(vocabulary, dtype=np.float32),
        "axes": np.array([1, 3], np.int64),
    }
    nodes = [
        node("Gather", ["table", "input_ids"], ["scores"], "table"),
        node("MatMul", ["scores", "one"], ["logits"], "head"),
        node("Cast", ["input_ids"], ["now"], "now", to=1),
        node("Unsqueeze", ["now", "axes"], ["key"], "key"),
        node("Concat", ["past_key_values.0.key", "key"], ["present.0.key"], "all", axis=2),
    ]
    cache = ["batch", 1, "past", 1]
    inputs = [info("input_ids", ["batch", "n"], 7), info("past_key_values.0.key", cache)]
    outputs = [info("logits", ["batch", "n", vocabulary]), info("present.0.key", cache)]
    return build(nodes, inputs, outputs, constants, opset=21, ir_version=10), chances


def test_tokens_are_as_likely_as_the_model_says():
    model, chances = make_chain()
    found = np.concatenate(windows(model, 20))
    assert found.shape == (20, 512)
    counted = np.zeros_like(chances)
    np.add.at(counted, (found[:, :-1].ravel(), found[:, 1:].ravel()), 1)
    rows = counted.sum(axis=1, keepdims=True)
    shares = counted / rows
    # Five standard deviations of a share of so many draws.
    assert (np.abs(shares - chances) < 5 * np.sqrt(0.25 / rows) * np.sqrt(4 * chances) + 5e-3).all()


def test_a_recipe_that_needs_data_takes_its_own_samples_and_says_so():
    model = make_decoder(width=32)
    result = bitwright.quantize(model, recipe="int4", limit=8)
    assert result.data.startswith("7 samples of what the model wrote itself")
    assert any("no text was given" in note for note in result.plan.notes)
    again = bitwright.apply_plan(result.plan, model, limit=8)
    assert again.to_proto().SerializeToString() == result.to_proto().SerializeToString()
    with pytest.raises(DataError, match="needs calibration data"):
        bitwright.quantize(make_block(), recipe="int4")


def test_of_a_folder_the_decoder_writes_and_the_rest_is_rounded_to_the_nearest(tmp_path):
    folder = make_folder(tmp_path / "model", model=make_decoder(width=32))
    onnx.save(make_block(), folder / "encoder.onnx")
    found = bitwright.quantize(folder, recipe="int4", limit=8).results
    assert "what the model wrote" in found["model.onnx"].data
    assert "only decoders with a cache write their own" in str(found["encoder.onnx"].plan.notes)
