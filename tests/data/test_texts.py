"""Text as calibration data: windows of tokens, and whatever else a language model asks for."""

import gzip
import json
from typing import ClassVar

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


def make_encoder_tokenizer(path):
    """A tokenizer as sentence encoders have it: closed by a token, cut and filled to 8."""
    tokenizers = pytest.importorskip("tokenizers", reason="the extra 'text' is not installed")
    words = ["[CLS]", "[SEP]", "[PAD]", "[UNK]", *"abcdefghij"]
    known = {word: index for index, word in enumerate(words)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(known, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    ends = [("[CLS]", 0), ("[SEP]", 1)]
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=ends
    )
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8, pad_id=2)
    tokenizer.save(str(path))
    return path


def test_an_encoder_gets_line_by_line_whatever_its_tokenizer_cuts_and_fills(tmp_path):
    tokenizer = make_encoder_tokenizer(tmp_path / "tokenizer.json")
    (tmp_path / "lines.txt").write_text("a b c\n\nd e\n" + "f " * 600 + "\n")
    data = TextData(text=tmp_path / "lines.txt", tokenizer=tokenizer)
    rows = [sample["input_ids"][0].tolist() for sample in data.samples([TOKENS])]
    assert rows[:2] == [[0, 4, 5, 6, 1], [0, 7, 8, 1]]
    assert (len(rows[2]), rows[2][0], rows[2][-2:]) == (512, 0, [9, 1])
    assert len(list(data.samples([TOKENS], limit=2))) == 2


@pytest.mark.parametrize("change", [{"length": 4}, {"shapes": {"length": 4}}, {"batch": 2}])
def test_windows_of_an_encoder_are_cut_where_a_length_or_batch_is_asked_for(tmp_path, change):
    tokenizer = make_encoder_tokenizer(tmp_path / "tokenizer.json")
    (tmp_path / "lines.txt").write_text("a b c\nd e\n" * 400)
    data = TextData(text=tmp_path / "lines.txt", tokenizer=tokenizer, **change)
    sample = next(iter(data.samples([TOKENS])))
    length = 512 if "batch" in change else 4
    assert sample["input_ids"].shape == (change.get("batch", 1), length)


def test_a_model_with_a_cache_reads_windows_whatever_its_tokenizer(tmp_path):
    tokenizer = make_encoder_tokenizer(tmp_path / "tokenizer.json")
    (tmp_path / "lines.txt").write_text("a b c\nd e\n" * 400)
    cache = InputSpec("past_key_values.0.key", np.dtype("float32"), ("batch", 2, "past", 4))
    sample = next(
        iter(TextData(text=tmp_path / "lines.txt", tokenizer=tokenizer).samples([TOKENS, cache]))
    )
    assert sample["input_ids"].shape == (1, 512)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text": "nowhere.txt"}, "cannot read the text 'nowhere.txt'"),
        ({"length": 100}, "has fewer tokens than one sample of 100"),
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


def test_windows_are_spread_over_a_text_of_which_only_they_are_tokenized(tmp_path, monkeypatch):
    class Counting(Letters):
        longest = total = 0

        def encode(self, text):
            self.longest, self.total = max(self.longest, len(text)), self.total + len(text)
            return super().encode(text)

    path, tokenizer = tmp_path / "text.txt", Counting()
    path.write_text("".join(chr(ord("a") + place // 2000) * 1 for place in range(50_000)))
    monkeypatch.setattr("bitwright.data.texts.PIECE", 5000)
    data = TextData(text=path, tokenizer=tokenizer, length=50)
    samples = list(data.samples([TOKENS], limit=5))
    assert [chr(sample["input_ids"][0, 0]) for sample in samples] == list("afkpu")
    assert (tokenizer.longest, tokenizer.total) == (800, 4000)
    short = TextData(text=path, tokenizer=tokenizer, length=5000).samples([TOKENS], limit=4)
    assert [chr(sample["input_ids"][0, 0]) for sample in short] == ["a", "h", "p", "w"]
    path.write_bytes(b"x" * 50_000 + b"\xff")
    with pytest.raises(DataError, match="not a text in UTF-8"):
        data.samples([TOKENS], limit=5)


def test_texts_of_a_folder_are_mixed_evenly(tmp_path):
    for letter, size in (("a", 400), ("b", 900), ("c", 8)):
        (tmp_path / f"{letter}.txt").write_text(letter * size)

    def letters(text, limit):
        data = TextData(text=text, tokenizer=Letters(), length=4)
        return "".join(chr(s["input_ids"][0, 0]) for s in data.samples([TOKENS], limit=limit))

    found = letters(tmp_path, 12)
    assert [found.count(letter) for letter in "abc"] == [5, 5, 2]
    assert set(found[:3]) == {*"abc"} and len(set(found[6:8])) == 2
    assert sorted(letters(str(tmp_path / "[ab].txt"), 4)) == [*"aabb"]
    named = [tmp_path / "b.txt", tmp_path / "a.txt"]
    assert sorted(letters(named, 4)) == [*"aabb"]
    data = TextData(text=named, tokenizer=Letters(), length=4)
    assert data.samples([TOKENS]).description.startswith("the text 2 files ")
    assert data.samples([TOKENS]).len_hint == 325
    with pytest.raises(DataError, match="there is no text at"):
        letters(tmp_path / "*.md", 4)


def test_texts_of_several_kinds_are_told_from_one(tmp_path):
    words = ["the of and to in is that for it as was".split(), "der die das und ist von zu".split()]
    chance = np.random.default_rng(0)
    for name, own in zip("ab", words, strict=True):
        (tmp_path / f"{name}.txt").write_text(" ".join(chance.choice(own, 4000)))

    class Words:
        known: ClassVar[list[str]] = sorted({*words[0], *words[1]})

        def encode(self, text):
            return [self.known.index(word) for word in text.split() if word in self.known]

    def alike(text, limit=16):
        data = TextData(text=text, tokenizer=Words(), length=32)
        return data.is_of_one_kind([TOKENS], limit)

    assert alike(tmp_path / "a.txt") and alike(tmp_path / "b.txt") and not alike(tmp_path)
    assert not alike(tmp_path / "a.txt", limit=4)  # too few to tell


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
