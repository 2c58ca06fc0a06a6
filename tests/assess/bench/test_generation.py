"""How language models are timed token by token; never how long anything takes."""

from __future__ import annotations

import json
from importlib.util import find_spec

import onnx
import pytest
from support.language_models import make_decoder
from support.models import make_mlp

import bitwright
from bitwright.assess.bench.generation import MIN_RUNS, is_decoder
from bitwright.assess.bench.generation_results import Rate
from bitwright.errors import MissingPackageError, ModelError, TargetError


def generate(models, **options):
    shared = {"prompt_tokens": 6, "new_tokens": 4, "runs": 2, "threads": 1, "progress": False}
    return bitwright.bench_generation(models, **(shared | options))


def write_folder(folder, model=None, *, filename="model.onnx", **changes):
    """A decoder and its configuration, as onnxruntime-genai wants it."""
    folder.mkdir()
    onnx.save(make_decoder() if model is None else model, folder / "model.onnx")
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1, "num_hidden_layers": 1}
    decoder = {"hidden_size": 16, "head_size": 16, **heads}
    decoder |= {"filename": filename} if filename else {"pipeline": []}
    decoder["inputs"] = {
        **{name: name for name in ("input_ids", "attention_mask", "position_ids")},
        "past_key_names": "past_key_values.%d.key",
        "past_value_names": "past_key_values.%d.value",
    }
    decoder["outputs"] = {
        "logits": "logits",
        "present_key_names": "present.%d.key",
        "present_value_names": "present.%d.value",
    }
    tokens = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = {"type": "llama", "vocab_size": 48, "context_length": 64, "decoder": decoder, **tokens}
    search = {"past_present_share_buffer": False}
    document = {"model": config | changes, "search": search}
    (folder / "genai_config.json").write_text(json.dumps(document), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A float decoder and the same in 8 bits."""
    folder = tmp_path_factory.mktemp("decoders")
    onnx.save(make_decoder(), folder / "float.onnx")
    bitwright.quantize(folder / "float.onnx", folder / "int8.onnx", recipe="int8-weights")
    return folder / "float.onnx", folder / "int8.onnx"


@pytest.fixture(scope="module")
def found(pair):
    return generate(pair, runs=3)


def test_every_figure_is_there(found):
    for model in found.models:
        assert (model.prompt_tokens, model.new_tokens) == (6, 4)
        assert len(model.prefill_seconds) == len(model.decode_seconds) == 3
        assert 0 < model.prefill.low <= model.prefill.median <= model.prefill.high
        assert 0 < model.decode.low <= model.decode.median <= model.decode.high
        assert model.size > 1000 and model.peak_memory > 1_000_000 and model.open_seconds > 0
    assert found.engine == "onnxruntime"
    assert found.decode_speedup() == found.models[1].decode.median / found.models[0].decode.median
    assert "3 interleaved runs, 6 tokens of prompt, then 4 one by one" in found.detail


def test_it_comes_as_plain_data_and_as_tables(found):
    document = found.to_dict()
    first, second = document["models"]
    assert "decode_speedup" not in first
    assert second["prefill_speedup"] == found.prefill_speedup()
    assert json.loads(json.dumps(document)) == document
    assert found.to_pandas().loc[first["model"], "decode_tokens_per_second"] > 0
    assert "<table" in found._repr_html_()


def test_there_are_enough_runs_however_long_one_takes(pair):
    (model,) = generate(pair[:1], runs=None, seconds=1e-6).models
    assert len(model.prefill_seconds) == MIN_RUNS


def test_models_in_memory_are_timed_too():
    (model,) = generate(make_decoder()).models
    assert model.name == "model 1"


def test_a_folder_is_timed_by_its_decoder_beside_a_file(tmp_path, pair):
    folder = write_folder(tmp_path / "folder")
    result = generate([folder, pair[1]])
    assert result.engine == "onnxruntime"
    assert result.models[0].name == str(folder)


def test_open_dimensions_of_a_cache_are_read_from_the_configuration_or_given(tmp_path):
    cache = {f"past_key_values.0.{part}": [1, 1, "past", "head_dim"] for part in ("key", "value")}
    model = make_decoder(shapes=cache)
    folder = write_folder(tmp_path / "folder", model)
    assert generate([folder / "model.onnx"]).models
    assert generate(model, shapes={"head_dim": 16}).models
    with pytest.raises(bitwright.DataError, match="head_dim"):
        generate(model)


@pytest.mark.skipif(find_spec("onnxruntime_genai") is None, reason="needs onnxruntime-genai")
def test_folders_are_run_by_their_own_library_where_it_is_installed(tmp_path):
    folder = write_folder(tmp_path / "folder")
    with pytest.raises(TargetError, match=r"genai_config.json names those of a folder"):
        generate([folder], providers=["CPUExecutionProvider"])
    found = generate([folder, folder])
    assert found.engine == "onnxruntime-genai" and found.providers == ()
    assert [len(model.decode_seconds) for model in found.models] == [2, 2]
    unknown = write_folder(tmp_path / "unknown", type="")
    with pytest.raises(ModelError, match="refuses"):
        generate([unknown])


def test_a_decoder_is_told_by_its_cache(tmp_path, pair):
    assert is_decoder(pair[0]) and is_decoder(tmp_path) and not is_decoder(make_mlp())


def fixed_cache():
    return make_decoder(shapes={"past_key_values.0.key": [1, 1, 8, 16]})


def renamed(old, new):
    model = make_decoder()
    for value in model.graph.output:
        value.name = new if value.name == old else value.name
    for each in model.graph.node:
        for names in (each.input, each.output):
            names[:] = [new if name == old else name for name in names]
    return model


@pytest.mark.parametrize(
    ("model", "options", "error", "message"),
    [
        (make_mlp(), {}, ModelError, "has no cache of tokens"),
        (fixed_cache(), {}, ModelError, r"past_key_values.0.key' .* has a fixed length"),
        (renamed("present.0.key", "keys_out"), {}, ModelError, "no output of 'model 1' goes on as"),
        (make_decoder(), {"prompt_tokens": 0}, TargetError, "prompt tokens must be at least 1"),
        (make_decoder(), {"new_tokens": 0}, TargetError, "new tokens must be at least 1"),
        (make_decoder(), {"runs": 0}, TargetError, "runs must be at least 1"),
        (make_decoder(), {"shapes": {"batc": 1}}, bitwright.DataError, "'batc', which is no input"),
        (make_decoder(), {"prompt_tokens": 300}, ModelError, "cannot run 'model 1'"),
    ],
)
def test_what_cannot_be_timed_is_refused_in_a_sentence(model, options, error, message):
    with pytest.raises(error, match=message) as raised:
        generate(model, **options)
    assert "\n" not in str(raised.value)


def test_folders_that_cannot_be_timed_are_refused_in_a_sentence(tmp_path):
    with pytest.raises(ModelError, match=r"has no genai_config.json; give the .onnx file"):
        generate([tmp_path])
    folder = write_folder(tmp_path / "short", context_length=8)
    with pytest.raises(TargetError, match=r"takes at most 8 tokens, and .* are 11;"):
        generate([folder])
    broken = write_folder(tmp_path / "broken", vocab_size=None)
    with pytest.raises(ModelError, match="is no configuration of a model"):
        generate([broken])


@pytest.mark.skipif(find_spec("onnxruntime_genai") is not None, reason="the package is installed")
def test_several_models_of_a_folder_need_the_library(tmp_path):
    folder = write_folder(tmp_path / "several", filename=None)
    with pytest.raises(MissingPackageError, match="pip install onnxruntime-genai"):
        generate([folder])


def test_a_rate_is_shown_with_its_spread():
    assert Rate.of(100, [0.5, 1.0, 2.0]).describe() == "100 (60 to 180)"
