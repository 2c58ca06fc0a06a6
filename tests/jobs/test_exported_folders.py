"""Folders as exporters write them: every kind gets smaller, stays whole, and runs."""

from functools import partial
from itertools import pairwise

import numpy as np
import onnxruntime as ort
import pytest

pytest.importorskip("torch")

from support.exported_folders import (
    HEADS,
    SIZE,
    VOCABULARY,
    make_decoder_only,
    make_seq2seq,
)
from support.folders import make_text

import bitwright
from bitwright import TextData
from bitwright.jobs.folder_data import FolderData

NARROW = {"float_io": "all-but-caches"}
RECIPES = {
    "int4-rtn": "int4-rtn",
    "int8-dynamic": "int8-dynamic",
    "float16": "float16",
    "float16-caches": {"base": "float16", **NARROW},
    "q4f16": {"base": "int4-rtn", "float16": "cast", **NARROW},
}
LIMITS = {"int8-dynamic": 0.1, "float16": 0.005, "float16-caches": 0.005}
SOUND = np.random.default_rng(0).normal(size=(1, 8, 20)).astype(np.float32)
WORDS = np.array([[5, 17, 90, 3, 44, 8]])


class Letters:
    """A tokenizer that needs no package: a letter is a token."""

    def encode(self, text):
        return [(ord(letter) - 32) % VOCABULARY for letter in text]


def run(path, feeds):
    session = ort.InferenceSession(path)
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def cache_types(path):
    given = ort.InferenceSession(path).get_inputs()
    kinds = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
    return {value.name: kinds[value.type] for value in given if "past" in value.name}


def write_on(folder, *, sound=False, steps=4):
    """Return what the models of a folder answer, token by token: a list of logits."""
    if (folder / "model.onnx").exists():
        kept = {
            name: np.zeros((1, HEADS, 0, SIZE), kind)
            for name, kind in cache_types(folder / "model.onnx").items()
        }
        found, later = run(folder / "model.onnx", {"input_ids": WORDS, **kept}), "model.onnx"
    else:
        given = {"input_features": SOUND} if sound else {"input_ids": WORDS}
        encoded = run(folder / "encoder_model.onnx", given)["last_hidden_state"]
        asked = {"input_ids": WORDS[:, :2], "encoder_hidden_states": encoded}
        found, later = run(folder / "decoder_model.onnx", asked), "decoder_with_past_model.onnx"
    past, logits = {}, []
    for step in range(steps):
        past |= {n.replace("present", "past_key_values"): a for n, a in found.items()}
        logits.append(past.pop("logits")[:, -1])
        found = run(folder / later, {"input_ids": WORDS[:, step : step + 1], **past})
    return logits


KINDS = {
    "t5": (make_seq2seq, {}),
    "whisper": (make_seq2seq, {"sound": True}),
    "llama": (make_decoder_only, {}),
    "llama-dynamo": (partial(make_decoder_only, dynamo=True), {}),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[pytest.mark.slow] if k != "llama" else []) for k in KINDS]
)
def test_every_recipe_without_data_makes_each_model_of_a_folder_smaller_and_it_runs(kind, tmp_path):
    make, options = KINDS[kind]
    folder = make(tmp_path / kind, **options)
    expected = write_on(folder, **options)
    for recipe, asked in RECIPES.items():
        output = tmp_path / recipe
        result = bitwright.quantize(folder, output, recipe=asked)
        assert result.size < 0.7 * result.float_size, recipe
        for name, one in result.results.items():
            assert one.size < one.float_size, (recipe, name)
        found = write_on(output, **options)
        limit = LIMITS.get(recipe, 0.5)
        for ours, theirs in zip(found, expected, strict=True):
            assert np.linalg.norm(ours - theirs) < limit * np.linalg.norm(theirs), recipe
        later = "model.onnx" if kind.startswith("llama") else "decoder_with_past_model.onnx"
        narrow = recipe in ("float16-caches", "q4f16")
        assert {*cache_types(output / later).values()} == {np.float16 if narrow else np.float32}


@pytest.fixture
def seq2seq(tmp_path):
    return make_seq2seq(tmp_path / "t5")


@pytest.mark.filterwarnings("ignore")
def test_a_decoder_with_a_cache_gets_what_the_plain_one_makes_of_the_text(seq2seq, tmp_path):
    text = TextData(text=make_text(tmp_path / "text.txt"), tokenizer=Letters(), length=24)
    names = tuple(path.name for path in sorted(seq2seq.glob("*.onnx")))
    source = FolderData.open(seq2seq, names, text, 2)
    samples, reason = source.for_model("decoder_with_past_model.onnx")
    assert reason is None and "in the cache of decoder_model.onnx" in samples.description
    found = list(samples)
    assert len(found) == 2 * 8 and found[0]["input_ids"].shape == (1, 1)
    lengths = [sample["past_key_values.0.decoder.key"].shape[2] for sample in found[:8]]
    assert lengths[0] == 12 and lengths[-1] == 23 and all(a < b for a, b in pairwise(lengths))
    assert {sample["past_key_values.0.encoder.key"].shape[2] for sample in found} == {24}
    # What follows in the text is what the plain decoder was given behind the cache.
    plain = next(iter(source.for_model("decoder_model.onnx")[0]))
    for sample, length in zip(found[:8], lengths, strict=True):
        np.testing.assert_array_equal(sample["input_ids"], plain["input_ids"][:, [length]])
    whole = run(seq2seq / "decoder_model.onnx", plain)["logits"]
    step = run(seq2seq / "decoder_with_past_model.onnx", found[0])["logits"]
    np.testing.assert_allclose(step[:, 0], whole[:, 12], rtol=1e-3, atol=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_its_weights_are_rounded_by_what_they_read(seq2seq, tmp_path):
    letters = np.random.default_rng(0).integers(32, 32 + VOCABULARY, 24 * 64)
    (tmp_path / "text.txt").write_text("".join(map(chr, letters)))
    text = TextData(text=tmp_path / "text.txt", tokenizer=Letters(), length=24)
    result = bitwright.quantize(seq2seq, recipe="int4-gptq", data=text, limit=32)
    one = result.results["decoder_with_past_model.onnx"]
    assert not any("without data" in note for note in one.plan.notes)
    assert one.data.endswith("in the cache of decoder_model.onnx") and one.outputs
    name = "decoder_with_past_model.onnx"
    plain = bitwright.quantize(seq2seq, recipe="int4-rtn").results[name]
    ours, theirs = (
        next(output.judged.loss for output in compared.outputs if output.name == "logits")
        for compared in (
            bitwright.compare(seq2seq / name, found.model, data=list(one.evaluation))
            for found in (one, plain)
        )
    )
    assert ours < theirs
