"""Text as calibration data: windows of tokens, and whatever else a language model asks for."""

import gzip
import json

import numpy as np
import onnxruntime
import pytest
from support.language_models import make_decoder

from bitwright.data import InputSpec, TextData, fill_token_inputs, session_inputs
from bitwright.errors import DataError

INT64 = np.dtype("int64")
TOKENS = InputSpec("input_ids", INT64, ("batch", "length"))


class Letters:
    """A tokenizer that knows letters."""

    def encode(self, text):
        return [ord(letter) for letter in text]


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("abcdefghij", encoding="utf-8")
    return path


def test_a_text_is_cut_into_equal_windows(text):
    samples = TextData(text=text, tokenizer=Letters(), length=4).samples([TOKENS])
    assert samples.len_hint == 2
    assert [sample["input_ids"].tolist() for sample in samples] == [
        [[97, 98, 99, 100]],
        [[101, 102, 103, 104]],
    ]


def test_windows_can_be_batched_and_limited(text):
    data = TextData(text=text, tokenizer=Letters(), length=2, batch=2)
    (sample,) = data.samples([TOKENS], limit=1)
    assert sample["input_ids"].shape == (2, 2)


def test_compressed_texts_are_read(tmp_path):
    path = tmp_path / "text.txt.gz"
    path.write_bytes(gzip.compress(b"abcd"))
    (sample,) = TextData(text=path, tokenizer=Letters(), length=4).samples([TOKENS])
    assert sample["input_ids"].tolist() == [[97, 98, 99, 100]]


def test_a_model_gets_the_mask_positions_types_and_empty_cache_it_asks_for(text):
    half = np.dtype("float16")
    specs = [
        TOKENS,
        InputSpec("attention_mask", INT64, ("batch", "total")),
        InputSpec("position_ids", INT64, ("batch", "length")),
        InputSpec("token_type_ids", np.dtype("int32"), ("batch", "length")),
        InputSpec("past_key_values.0.key", half, ("batch", 3, "past", 64)),
    ]
    sample = next(iter(TextData(text=text, tokenizer=Letters(), length=5).samples(specs)))
    assert sample["attention_mask"].tolist() == [[1] * 5]
    assert sample["position_ids"].tolist() == [[0, 1, 2, 3, 4]]
    assert sample["token_type_ids"].dtype == np.int32
    assert sample["past_key_values.0.key"].shape == (1, 3, 0, 64)


FLOAT = np.dtype("float32")


def only(text, specs, **options):
    """Return the first sample of five tokens."""
    data = TextData(**({"text": text, "tokenizer": Letters(), "length": 5} | options))
    return next(iter(data.samples([TOKENS, *specs])))


@pytest.mark.parametrize(
    ("name", "shape", "filled"),
    [
        ("past_key_values.0.key", (1, 3, "past_sequence_length", 64), (1, 3, 0, 64)),
        ("past_key_values.0.decoder.value", (None, 3, None, 64), (1, 3, 0, 64)),
        ("past_key_values_key_cache_0", ("s0", 3, "s1", 64), (1, 3, 0, 64)),
        ("past_0", (2, "batch", 3, "past_len", 64), (2, 1, 3, 0, 64)),
        ("past_key_self_0", ("batch_size", 3, 16, 64), (1, 3, 16, 64)),
        ("past_conv.0", ("batch_size", 8, 3), (1, 8, 3)),
    ],
)
def test_a_cache_has_no_past_wherever_its_length_is_open(text, name, shape, filled):
    sample = only(text, [InputSpec(name, FLOAT, shape)])
    assert sample[name].shape == filled
    assert not sample[name].any()


def test_heads_of_a_cache_are_never_guessed_but_given(text):
    cache = InputSpec("past_key_values.0.key", FLOAT, ("batch", "num_heads", "past", "head_dim"))
    with pytest.raises(DataError, match=r"1 \('num_heads'\) of the cache .*--input-shape"):
        only(text, [cache])
    sample = only(text, [cache], shapes={"num_heads": 4, "head_dim": 16})
    assert sample[cache.name].shape == (1, 4, 0, 16)
    sample = only(text, [cache], shapes={cache.name: (1, 4, 0, 16)})
    assert sample[cache.name].shape == (1, 4, 0, 16)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("genai_config.json", {"model": {"decoder": {"head_size": 16, "num_key_value_heads": 2}}}),
        ("config.json", {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}),
        ("config.json", {"text_config": {"head_dim": 16, "num_attention_heads": 2}}),
    ],
)
def test_heads_are_those_of_the_configuration_beside_the_tokenizer(text, tmp_path, name, content):
    tokenizers = pytest.importorskip("tokenizers", reason="the extra 'text' is not installed")
    vocabulary = {letter: index for index, letter in enumerate("abcdefghij")}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / name).write_text(json.dumps(content))
    # As onnxruntime-genai 0.18 writes it, and one that leaves the heads open, too.
    shape = ("batch_size", "num_heads", "past_sequence_length", "kv_cache_dim")
    cache = InputSpec("past_key_values.0.key", FLOAT, shape)
    sample = only(text, [cache], tokenizer=tmp_path / "tokenizer.json")
    assert sample[cache.name].shape == (1, 2, 0, 16)
    (tmp_path / name).write_text("[]")
    with pytest.raises(DataError, match="no configuration of a model"):
        only(text, [cache], tokenizer=tmp_path / "tokenizer.json")


def test_a_mask_hides_the_empty_slots_of_a_cache(text):
    whole = InputSpec("attention_mask", INT64, ("batch", 8))
    assert only(text, [whole])["attention_mask"].tolist() == [[0, 0, 0, 1, 1, 1, 1, 1]]
    total = InputSpec("attention_mask", INT64, ("batch", "past_length + length"))
    cache = InputSpec("past_key_values.0.key", FLOAT, ("batch", 4, "past_length", 16))
    sample = only(text, [total, cache], shapes={"past_length": 2})
    assert sample["attention_mask"].tolist() == [[0, 0, 1, 1, 1, 1, 1]]
    assert sample[cache.name].shape == (1, 4, 2, 16)
    short = InputSpec("attention_mask", INT64, ("batch", 3))
    with pytest.raises(DataError, match="shorter than a sample of 5 tokens"):
        only(text, [short])


@pytest.mark.parametrize("dtype", ["float32", "bool"])
def test_a_mask_of_four_axes_is_causal(text, dtype):
    spec = InputSpec("attention_mask", np.dtype(dtype), ("batch", 1, "query", "key"))
    mask = only(text, [spec])["attention_mask"]
    assert mask.shape == (1, 1, 5, 5)
    seen = mask == 0 if dtype == "float32" else mask
    np.testing.assert_array_equal(seen[0, 0], np.tri(5, dtype=bool))


def test_positions_and_lengths_have_the_axes_that_the_model_asks_for(text):
    specs = [
        InputSpec("cache_position", INT64, ("length",)),
        InputSpec("position_ids", INT64, (3, "batch", "length")),
        InputSpec("use_cache_branch", np.dtype(bool), (1,)),
        InputSpec("num_logits_to_keep", INT64, ()),
        InputSpec("seqlens_k", np.dtype("int32"), ("batch",)),
        InputSpec("total_sequence_length", np.dtype("int32"), ()),
    ]
    sample = only(text, specs)
    assert sample["cache_position"].tolist() == [0, 1, 2, 3, 4]
    assert sample["position_ids"].shape == (3, 1, 5)
    assert sample["use_cache_branch"].tolist() == [False]
    assert sample["num_logits_to_keep"].shape == ()
    assert sample["seqlens_k"].tolist() == [4]
    assert sample["total_sequence_length"] == 5


def test_windows_are_as_long_as_the_model_fixes(text):
    fixed = InputSpec("input_ids", INT64, (1, 4))
    decoder = InputSpec("decoder_input_ids", INT64, (1, "target"))
    samples = TextData(text=text, tokenizer=Letters()).samples([fixed, decoder])
    assert samples.len_hint == 2
    assert next(iter(samples))["decoder_input_ids"].shape == (1, 4)


def test_what_an_encoder_gives_is_refused(text):
    states = InputSpec("encoder_hidden_states", FLOAT, ("batch", "length", 8))
    with pytest.raises(DataError, match=r"'encoder_hidden_states'.*none that text fills"):
        only(text, [states])


def test_a_tokenizer_file_is_read(text, tmp_path):
    tokenizers = pytest.importorskip("tokenizers", reason="the extra 'text' is not installed")
    vocabulary = {letter: index for index, letter in enumerate("abcdefghij")}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    data = TextData(text=text, tokenizer=tmp_path / "tokenizer.json", length=10)
    (sample,) = data.samples([TOKENS])
    assert sample["input_ids"].tolist() == [list(range(10))]
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match=r"is not a tokenizer\.json"):
        data.samples([TOKENS])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text": "nowhere.txt"}, "cannot read the text 'nowhere.txt'"),
        ({"length": 100}, "has 10 tokens, fewer than one sample of 100"),
        ({"tokenizer": "nowhere.json"}, "no tokenizer file 'nowhere.json'"),
    ],
)
def test_bad_input_is_told_in_a_sentence(text, change, message):
    if "tokenizer" in change:
        pytest.importorskip("tokenizers", reason="the extra 'text' is not installed")
    given = {"text": text, "tokenizer": Letters(), "length": 4, **change}
    with pytest.raises(DataError, match=message):
        TextData(**given).samples([TOKENS])


def test_text_that_is_none_is_refused(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="not a text in UTF-8"):
        TextData(text=path, tokenizer=Letters()).samples([TOKENS])


def test_an_input_that_text_cannot_fill_is_refused(text):
    image = InputSpec("pixels", np.dtype("float32"), (1, 3, 8, 8))
    with pytest.raises(DataError, match="none that text fills"):
        TextData(text=text, tokenizer=Letters(), length=4).samples([TOKENS, image])


def test_impossible_windows_are_refused():
    with pytest.raises(DataError, match="at least 2 tokens"):
        TextData(text="a", tokenizer=Letters(), length=1)


def test_a_text_without_a_tokenizer_says_what_it_needs(text):
    with pytest.raises(DataError, match="needs the tokenizer of the model; give its"):
        TextData(text=text).samples([TOKENS])


def test_tokens_one_by_one_give_what_all_at_once_give():
    session = onnxruntime.InferenceSession(make_decoder().SerializeToString())
    specs = session_inputs(session)
    tokens = np.random.default_rng(0).integers(0, 48, size=(1, 9))
    wanted = session.run(["logits"], fill_token_inputs(tokens, specs))[0]
    found, caches = [], {}
    for done, count in ((0, 4), (4, 1), (5, 2), (7, 1), (8, 1)):
        part = tokens[:, done : done + count]
        feeds = fill_token_inputs(part, specs, done=done)
        logits, key, value = session.run(None, feeds | caches)
        caches = {"past_key_values.0.key": key, "past_key_values.0.value": value}
        found.append(logits)
    np.testing.assert_allclose(np.concatenate(found, axis=1), wanted, atol=1e-5)


def test_numbers_and_masks_of_other_exporters_count_the_tokens_before():
    specs = [
        InputSpec("use_cache_branch", np.dtype(bool), (1,)),
        InputSpec("seqlens_k", np.dtype("int32"), ("batch",)),
        InputSpec("total_sequence_length", np.dtype("int32"), ()),
        InputSpec("attention_mask", np.dtype("float32"), (1, 1, "query", "key")),
    ]
    feeds = fill_token_inputs(np.array([[5, 6]]), specs, done=3)
    assert feeds["use_cache_branch"].tolist() == [True]
    assert feeds["seqlens_k"].tolist() == [4] and feeds["total_sequence_length"] == 5
    assert (feeds["attention_mask"] == 0).tolist() == [[[[True] * 4 + [False], [True] * 5]]]


def test_a_cache_of_what_an_encoder_gave_is_as_long_as_that(text):
    shape = ("batch", 2, "encoder_sequence_length", 8)
    cache = InputSpec("past_key_values.0.encoder.key", FLOAT, shape)
    hidden = InputSpec("encoder_hidden_states", FLOAT, ("batch", "encoder_sequence_length", 16))
    assert only(text, [cache])[cache.name].shape == (1, 2, 5, 8)
    data = TextData(text=text, tokenizer=Letters())
    assert data.unfilled([TOKENS, cache]) == [cache]  # it reads the encoder through this alone
    assert data.unfilled([TOKENS, cache, hidden]) == [hidden]


def make_marked_tokenizer(path, text):
    """Save a byte-pair tokenizer that was trained on the text and marks both of its ends."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<s>", "</s>"])
    tokenizer.train_from_iterator([text], trainer)
    marks = [("<s>", 0), ("</s>", 1)]
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=marks)
    tokenizer.save(str(path))
    return tokenizer


def test_a_text_in_pieces_has_the_tokens_of_the_whole(tmp_path, monkeypatch):
    content = (
        "one line of  words\n\n  an indented line,\r\nand others " * 40 + "\n" * 90 + "x" * 200
    )
    path, tokenizer = tmp_path / "text.txt", tmp_path / "tokenizer.json"
    path.write_bytes(content.encode())
    whole = make_marked_tokenizer(tokenizer, content).encode(content).ids
    monkeypatch.setattr("bitwright.data.texts.PIECE", 64)
    data = TextData(text=path, tokenizer=tokenizer, length=2)
    found = np.concatenate([sample["input_ids"][0] for sample in data.samples([TOKENS])])
    words = len(whole) - 60  # one word of 200 letters is longer than a piece
    assert found[:words].tolist() == whole[:words]
    assert whole[0] == 0 and found[1:].min() > 0


def test_a_text_is_read_only_as_far_as_the_samples_need(tmp_path, monkeypatch):
    class Counting(Letters):
        longest = total = 0

        def encode(self, text):
            self.longest, self.total = max(self.longest, len(text)), self.total + len(text)
            return super().encode(text)

    path, tokenizer = tmp_path / "text.txt", Counting()
    path.write_bytes(b"x" * 50_000 + b"\xff")  # one line, and no text at its end
    monkeypatch.setattr("bitwright.data.texts.PIECE", 100)
    data = TextData(text=path, tokenizer=tokenizer, length=50)
    assert len(list(data.samples([TOKENS], limit=5))) == 5
    assert (tokenizer.longest, tokenizer.total) == (100, 300)
    with pytest.raises(DataError, match="not a text in UTF-8"):
        data.samples([TOKENS])


def test_a_damaged_compressed_text_is_told_in_a_sentence(tmp_path):
    path = tmp_path / "text.txt.gz"
    content = bytearray(gzip.compress(b"abcd" * 100))
    content[10] = 0xFF  # no block of deflate starts so
    path.write_bytes(content)
    with pytest.raises(DataError, match="UTF-8"):
        TextData(text=path, tokenizer=Letters(), length=4).samples([TOKENS])


def test_a_tokenizer_that_fails_is_told_in_a_sentence(text):
    from tokenizers import Tokenizer, models

    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="[UNK]"))
    with pytest.raises(DataError, match=r"cannot encode the text: .*\[UNK\]"):
        TextData(text=text, tokenizer=tokenizer, length=4).samples([TOKENS])
