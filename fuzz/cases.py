"""Cases: a folder of files, and the words of a command that reads them."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import onnx

import bitwright
from fuzz.graphs import make_graph, make_size_arithmetic, make_unopened
from fuzz.mutation import TEXTS, mutate_bytes, mutate_json, mutate_message

Words = list[str]

# Recipes that learn need torch, which alone takes longer to import than all else.
RECIPES = tuple(name for name, recipe in bitwright.RECIPES.items() if recipe.fine_tune is None)

SETTINGS = (
    "per_channel=true",
    "activation_symmetric=true",
    "format=qoperator",
    "ranges.method=percentile",
    "ranges.method=entropy",
    "ranges.method=mse",
    "equalize={}",
    "bias_correction=fast",
    "optimize=false",
    "weights.block_size=16",
    "select.exclude=['n1']",
)


def make_case(seed: int, folder: Path, seeds: Path) -> Words:
    """Write the files of a case, and return the command's words; names stand for its files."""
    rng = random.Random(seed)
    return rng.choices(KINDS, [weight for _, weight in KINDS])[0][0](rng, seed, folder, seeds)


def kind_of(seed: int) -> str:
    """Return the kind of a case, as `damaged_model`."""
    rng = random.Random(seed)
    return rng.choices(KINDS, [weight for _, weight in KINDS])[0][0].__name__.removeprefix("_")


def _random_graph(rng: random.Random, seed: int, folder: Path, _: Path) -> Words:
    """A valid graph, and a recipe: it must work, or be refused with a reason."""
    onnx.save(make_graph(seed), folder / "m.onnx")
    return ["quantize", "m.onnx", "-o", "q.onnx", *_recipe(rng), "--random-data", "2"]


def _recipe(rng: random.Random) -> Words:
    words = ["--recipe", rng.choice((*RECIPES, "int8", "int8", "int8-dynamic"))]
    if rng.random() < 0.3:
        words += ["--set", rng.choice(SETTINGS)]
    return words


def _damaged_model(rng: random.Random, _: int, folder: Path, seeds: Path) -> Words:
    """A model with a few fields changed, before any verb."""
    path = rng.choice(sorted((seeds / "models").iterdir()))
    if rng.random() < 0.1:
        path = seeds / "quantized.onnx"
    if rng.random() < 0.25:
        (folder / "m.onnx").write_bytes(mutate_bytes(path.read_bytes(), rng))
    else:
        model = onnx.load(path)
        mutate_message(model, rng)
        (folder / "m.onnx").write_bytes(model.SerializeToString())
    other = seeds / ("quantized.onnx" if path.name == "digits.onnx" else f"models/{path.name}")
    if path.name == "quantized.onnx":
        other = seeds / "models" / "digits.onnx"
    random_data = ["--random-data", "2"]
    return rng.choice(
        (
            ["quantize", "m.onnx", "-o", "q.onnx", *_recipe(rng), *random_data],
            ["quantize", "m.onnx", "-o", "q.onnx", *_recipe(rng), *random_data],
            ["quantize", "m.onnx", "-o", "q.onnx", "--qat"],
            ["plan", "m.onnx", "-o", "p.json", "--recipe", "int8", *random_data],
            ["inspect", "m.onnx"],
            ["verify", "m.onnx"],
            ["preprocess", "m.onnx", "-o", "q.onnx"],
            ["compare", str(other), "m.onnx", *random_data],
            ["compare", "m.onnx", str(other), *random_data],
            ["sensitivity", str(other), "m.onnx", *random_data],
            ["report", str(other), "m.onnx", "-o", "r.html", *random_data],
        )
    )


def _damaged_plan(rng: random.Random, _: int, folder: Path, seeds: Path) -> Words:
    """A plan with values changed, applied to its model."""
    _damage_json(seeds / "plan.json", folder / "p.json", rng)
    model = str(seeds / "models" / "digits.onnx")
    quantized = str(seeds / "quantized.onnx")
    return rng.choice(
        (
            ["apply", model, "p.json", "-o", "q.onnx"],
            ["apply", model, "p.json", "-o", "q.onnx"],
            ["compare", model, quantized, "--plan", "p.json", "--random-data", "2"],
            ["report", model, quantized, "--plan", "p.json", "-o", "r.html", "--random-data", "2"],
        )
    )


def _damaged_recipe(rng: random.Random, _: int, folder: Path, seeds: Path) -> Words:
    """A recipe with values changed, or settings that nobody would write."""
    model = str(seeds / "models" / "digits.onnx")
    words = ["quantize", model, "-o", "q.onnx", "--random-data", "2"]
    if rng.random() < 0.3:
        field = rng.choice((*bitwright.Recipe.__struct_fields__, "weights.bits", "select.exclude"))
        value = rng.choice(
            (*TEXTS[:-2], "[" * 5000, "{}", "-1", "1e400", "null", "[1,2]", "9" * 5000)
        )
        return [*words, "--recipe", "int8", "--set", f"{field}={value}".replace("\x00", "0")]
    path = rng.choice(sorted(seeds.glob("*.recipe.json")))
    _damage_json(path, folder / "recipe.json", rng)
    return [*words, "--recipe", "recipe.json"]


def _damage_json(source: Path, target: Path, rng: random.Random) -> None:
    data = source.read_bytes()
    if rng.random() < 0.25:
        target.write_bytes(mutate_bytes(data, rng))
    else:
        target.write_text(json.dumps(mutate_json(json.loads(data), rng)))


def _damaged_sketches(rng: random.Random, _: int, folder: Path, seeds: Path) -> Words:
    """A file of observed ranges with bytes changed."""
    (folder / "s").write_bytes(mutate_bytes((seeds / "data.sketches").read_bytes(), rng))
    model, data = str(seeds / "models" / "digits.onnx"), str(seeds / "data.npy")
    words = ["--recipe", "int8", "--data", data, "--sketches", "s"]
    return ["quantize", model, "-o", "q.onnx", *words]


def _damaged_data(rng: random.Random, _: int, folder: Path, seeds: Path) -> Words:
    """Arrays and images with bytes changed."""
    names = (
        "data.npy",
        "data.npz",
        "data.npy.gz",
        "image.png",
        "image.jpg",
        "image.bmp",
        "image.webp",
    )
    name = rng.choice(names)
    (folder / name).write_bytes(mutate_bytes((seeds / name).read_bytes(), rng))
    words = ["quantize", str(seeds / "models" / "digits.onnx"), "-o", "q.onnx", "--data", name]
    if name.startswith("image"):
        forms = (
            "unit",
            "imagenet",
            "resize=8,crop=8",
            "raw",
            "resize=0",
            "resize=99999999",
            "mean=x",
        )
        words += ["--transform", rng.choice(forms)]
    return [*words, "--recipe", rng.choice(("int8", "int4"))]


def _damaged_text(rng: random.Random, _: int, folder: Path, seeds: Path) -> Words:
    """A text or a tokenizer with values changed."""
    shutil.copy(seeds / "tokenizer.json", folder)
    shutil.copy(seeds / "text.txt", folder)
    if rng.random() < 0.5:
        _damage_json(seeds / "tokenizer.json", folder / "tokenizer.json", rng)
    else:
        (folder / "text.txt").write_bytes(mutate_bytes((seeds / "text.txt").read_bytes(), rng))
    words = [
        "--data",
        "text.txt",
        "--tokenizer",
        "tokenizer.json",
        "--tokens",
        rng.choice(("8", "8", "1", "0", "99999")),
    ]
    return ["quantize", str(seeds / "words.onnx"), "-o", "q.onnx", "--recipe", "int4", *words]


EVIL = "\x1b[31m\x07\nerror: forged\x9b31m\u202e"


def _hostile_names(rng: random.Random, _: int, folder: Path, seeds: Path) -> Words:
    """A model in which names command a terminal, or forge a line."""
    model = onnx.load(rng.choice(sorted((seeds / "models").iterdir())))
    named = {value.name for value in (*model.graph.input, *model.graph.initializer)}
    named |= {name for node in model.graph.node for name in node.output}
    chosen = {name: name + EVIL for name in sorted(named) if name and rng.random() < 0.5}
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        value.name = chosen.get(value.name, value.name)
    for tensor in model.graph.initializer:
        tensor.name = chosen.get(tensor.name, tensor.name)
    for node in model.graph.node:
        node.name += EVIL if rng.random() < 0.5 else ""
        for names in (node.input, node.output):
            names[:] = [chosen.get(name, name) for name in names]
    model.producer_name = EVIL
    onnx.save(model, folder / "m.onnx")
    random_data = ["--random-data", "2"]
    return rng.choice(
        (
            ["inspect", "m.onnx"],
            ["inspect", "m.onnx", "--json"],
            ["quantize", "m.onnx", "-o", "q.onnx", *_recipe(rng), *random_data],
            ["quantize", "m.onnx", "-o", "q.onnx", "--exclude", "nothing", *random_data],
            ["plan", "m.onnx", "-o", "p.json", "--recipe", "int8", *random_data],
            ["verify", "m.onnx", "--target", "npu-cnn"],
            ["verify", "m.onnx", "--target", "npu-cnn", "--format", "junit"],
            ["compare", "m.onnx", "m.onnx", *random_data],
        )
    )


def _damaged_work(rng: random.Random, _: int, folder: Path, seeds: Path) -> Words:
    """A folder of finished parts, some of them damaged since."""
    shutil.copytree(seeds / "work", folder / "work")
    for path in rng.sample(sorted((folder / "work").iterdir()), rng.choice((1, 1, 2))):
        kind = rng.randrange(4)
        if kind == 0:
            path.unlink()
        elif kind == 1:
            path.write_bytes(bytes(path.stat().st_size))
        else:
            path.write_bytes(mutate_bytes(path.read_bytes(), rng))
    model, data = str(seeds / "models" / "digits.onnx"), str(seeds / "data.npy")
    words = ["--recipe", "int4-gptq", "--data", data, "--work", "work"]
    return ["quantize", model, "-o", "q.onnx", *words]


def _size_arithmetic(rng: random.Random, seed: int, folder: Path, _: Path) -> Words:
    """A model that computes a size in float: its outputs must keep their shapes."""
    onnx.save(make_size_arithmetic(seed), folder / "m.onnx")
    recipe = rng.choice(("int8", "int8-per-channel", "xint8", "a16w8", "float16", "npu-cnn"))
    words = ["--recipe", recipe, "--random-data", "2", "--input-shape", "x=1x3x16x16"]
    return ["quantize", "m.onnx", "-o", "q.onnx", *words]


STREAMS = ("closed", "full", "left")
"""A descriptor that is closed, a disk without room, a pipe whose reader has gone."""


def _streams(rng: random.Random, _: int, folder: Path, seeds: Path) -> Words:
    """A command that works, whose output or errors go nowhere: it does its job all the same."""
    shutil.copy(seeds / "models" / "digits.onnx", folder / "m.onnx")
    given = ["--recipe", rng.choice(("int8", "int4", "npu-cnn")), "--random-data", "2"]
    words = rng.choice(
        (
            ["quantize", "m.onnx", "-o", "q.onnx", *given],
            ["quantize", "m.onnx", "-o", "q.onnx", *given, rng.choice(("-v", "-q", "--json"))],
            ["plan", "m.onnx", "-o", "p.json", *given],
            ["preprocess", "m.onnx", "-o", "q.onnx"],
            ["inspect", "m.onnx", *rng.choice(([], ["--json"]))],
            ["compare", "m.onnx", str(seeds / "quantized.onnx"), "--random-data", "2"],
            ["quantize", "none.onnx", "-o", "q.onnx"],
            ["quantize", "m.onnx", "--recipee"],
        )
    )
    if rng.random() < 0.5:
        words.append(f"1>{rng.choice(STREAMS)}")
    if rng.random() < 0.5 or not words[-1].startswith("1>"):
        words.append(f"2>{rng.choice(STREAMS)}")
    return words


def _unopened_model(rng: random.Random, seed: int, folder: Path, _: Path) -> Words:
    """A model that no runtime has opened yet, by some of which the installed one crashes."""
    model = make_unopened(seed)
    if rng.random() < 0.3:
        mutate_message(model, rng)
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    random_data = ["--random-data", "2"]
    return rng.choice(
        (
            ["quantize", "m.onnx", "-o", "q.onnx", *_recipe(rng), *random_data],
            ["quantize", "m.onnx", "-o", "q.onnx", "--recipe", "float16"],
            ["plan", "m.onnx", "-o", "p.json", "--recipe", "int8", *random_data],
            ["inspect", "m.onnx"],
            ["verify", "m.onnx", *rng.choice(([], ["--runtime", "1.20"], ["--target", "npu-cnn"]))],
            ["preprocess", "m.onnx", "-o", "q.onnx"],
            ["compare", "m.onnx", "m.onnx", *random_data],
        )
    )


Maker = Callable[[random.Random, int, Path, Path], Words]
KINDS: tuple[tuple[Maker, int], ...] = (
    (_random_graph, 36),
    (_damaged_model, 36),
    (_hostile_names, 3),
    (_damaged_work, 2),
    (_size_arithmetic, 3),
    (_streams, 3),
    (_unopened_model, 4),
    (_damaged_plan, 6),
    (_damaged_recipe, 6),
    (_damaged_sketches, 2),
    (_damaged_data, 4),
    (_damaged_text, 2),
)


def save_case(folder: Path, target: Path, words: Words, seeds: Path, *, valid: bool) -> None:
    """Copy the inputs of a case into a folder of the corpus; seeds that it reads come along."""
    target.mkdir(parents=True)
    kept = []
    for word in words:
        path = Path(word)
        if path.is_absolute() and path.is_relative_to(seeds):
            word = path.name if not (folder / path.name).exists() else f"seed-{path.name}"
            shutil.copy(path, target / word)
        kept.append(word)
    for path in folder.iterdir():
        shutil.copy(path, target)
    document = {"words": kept, "valid": valid}
    (target / "case.json").write_text(json.dumps(document, indent=1) + "\n")
