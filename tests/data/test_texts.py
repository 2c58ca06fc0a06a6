"""Text as calibration data: windows of tokens, and whatever else a language model asks for."""

import gzip

import numpy as np
import pytest

from bitwright.data import InputSpec, TextData
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
