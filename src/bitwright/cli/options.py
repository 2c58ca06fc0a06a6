"""Options that several commands share, and the values that are written as text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from bitwright.data import RandomData, TextData

__all__ = [
    "BiasCorrection",
    "DataPath",
    "Device",
    "Dynamic",
    "Effort",
    "Equalize",
    "Exclude",
    "ExternalData",
    "FineTune",
    "Format",
    "InputShape",
    "Iterations",
    "Json",
    "Limit",
    "MemoryBudget",
    "Model",
    "OpTypes",
    "Preprocess",
    "Provider",
    "Qat",
    "Quiet",
    "RandomCount",
    "Ranges",
    "RecipeName",
    "Set",
    "Sketches",
    "Target",
    "Tokenizer",
    "Tokens",
    "Verbose",
    "Work",
    "choose_data",
    "read_bytes",
    "read_shapes",
]

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="The float model, an .onnx file.")]
DataPath = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="PATH",
        help="Calibration data: a .npy or .npz file, an image, or a folder of these.",
    ),
]
RandomCount = Annotated[
    int | None,
    typer.Option(
        "--random-data",
        metavar="N",
        help="Use N random samples instead of data: shows that it runs, not how well.",
    ),
]
InputShape = Annotated[
    list[str] | None,
    typer.Option(
        "--input-shape",
        metavar="NAME=SHAPE",
        help="Shape of an input (image=1x3x224x224) or size of an open dimension (length=128) "
        "for --random-data; repeatable.",
    ),
]
Preprocess = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        help="How images become arrays: imagenet, unit, raw, or pairs such as "
        "'resize=256,crop=224,mean=0.5,std=0.5'.",
    ),
]
Tokenizer = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="The tokenizer.json of a language model: --data is then a text file."
    ),
]
Tokens = Annotated[
    int | None, typer.Option(metavar="N", help="Tokens in each sample of a text (512).")
]
Work = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Weight-only recipes and --fine-tune: keep what is finished here; an interrupted run "
        "goes on.",
    ),
]
Device = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="Where weights are rounded or learn: cpu, or cuda with torch."
    ),
]
FineTune = Annotated[
    str | None,
    typer.Option(
        metavar="METHOD",
        help="Let weights learn after all scales are decided: adaround (up or down) or adaquant "
        "(weights, biases and scales). Needs torch. Short for --set fine_tune.method=METHOD.",
    ),
]
Iterations = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="With --fine-tune: steps for each block (1000); more take longer."
    ),
]
Limit = Annotated[int | None, typer.Option(metavar="N", help="Use at most N samples of the data.")]
RecipeName = Annotated[
    str | None,
    typer.Option(
        "--recipe", metavar="NAME|FILE", help="A name from 'bitwright recipes', or a file."
    ),
]
Target = Annotated[
    str | None, typer.Option(metavar="NAME", help="Where the model will run; cpu if not given.")
]
Ranges = Annotated[
    str | None,
    typer.Option(
        metavar="METHOD",
        help="How activation ranges are chosen: minmax, percentile, entropy, mse, distribution, "
        "non-overflow, min-mse. Short for --set ranges.method=METHOD.",
    ),
]
Dynamic = Annotated[
    bool,
    typer.Option(
        "--dynamic",
        help="Quantize activations at every run; needs no data. Alone it means the recipe "
        "int8-dynamic.",
    ),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="NAME",
        help="qdq: float ops between Q/DQ pairs (the default). qoperator: integer ops.",
    ),
]
Qat = Annotated[
    bool,
    typer.Option(
        "--qat",
        help="The model was trained with Q/DQ pairs: keep its scales, and write it so that the "
        "runtime fuses it. Needs no data.",
    ),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NODE", help="Leave this node float, or all that match re:...; repeatable."
    ),
]
OpTypes = Annotated[str | None, typer.Option(metavar="A,B", help="Quantize only these op types.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change any field of the recipe, such as per_channel=true or ranges.percentile=99.9; "
        "repeatable.",
    ),
]
BiasCorrection = Annotated[
    str | None,
    typer.Option(
        metavar="MODE",
        help="Shift biases by what rounding adds to their layers: fast (from mean inputs) or "
        "sequential (layer by layer). Short for --set bias_correction=MODE.",
    ),
]
Effort = Annotated[
    str | None,
    typer.Option(
        metavar="LEVEL",
        help="What to try on top of the recipe, each kept if the error on unseen samples falls: "
        "low (nothing), medium (equalization, ranges of least squared error, bias correction) or "
        "high (also AdaRound on the blocks that hurt; needs torch).",
    ),
]
Equalize = Annotated[
    bool,
    typer.Option(
        "--equalize",
        help="First even out the channels of consecutive weights, which helps recipes with one "
        "scale a tensor. Short for --set equalize={}.",
    ),
]
Sketches = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Keep what was observed in this file; if it exists, the data is not run again.",
    ),
]
MemoryBudget = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Observed tensors that may be in memory at once: 512MB."),
]
Provider = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Execution provider of ONNX Runtime, in order; repeatable."),
]
ExternalData = Annotated[
    bool | None,
    typer.Option(
        "--external-data/--no-external-data",
        help="Write weights to a file of their own; by default only above 2 GB.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", help="Name every node, and show tracebacks of errors.")
]

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


def read_bytes(text: str) -> int:
    """Read a size in memory.

    >>> read_bytes("512MB"), read_bytes("1.5 GiB"), read_bytes("4096")
    (512000000, 1610612736, 4096)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]i?|)b?", text.strip().lower())
    if found is None:
        raise typer.BadParameter(f"'{text}' is no size; write 512MB, 2GB or a number of bytes")
    return int(float(found.group(1)) * _UNITS[found.group(2)])


def choose_data(
    data: Path | None,
    random_count: int | None = None,
    shapes: Sequence[str] | None = None,
    *,
    limit: int | None = None,
    preprocess: str | None = None,
    tokenizer: Path | None = None,
    tokens: int | None = None,
) -> Path | RandomData | TextData | None:
    """Return the calibration data that the options ask for, or say which of them clash."""
    if tokenizer is not None:
        return _choose_text(
            data, tokenizer, tokens, random_data=random_count, preprocess=preprocess
        )
    if tokens is not None:
        raise typer.BadParameter("--tokens goes with --tokenizer only")
    if random_count is None:
        if shapes:
            raise typer.BadParameter("--input-shape goes with --random-data only")
        return data
    for name, given in (("--data", data), ("--limit", limit), ("--preprocess", preprocess)):
        if given is not None:
            raise typer.BadParameter(f"--random-data and {name} exclude each other; give one")
    from bitwright.data import RandomData

    return RandomData(count=random_count, shapes=read_shapes(shapes or ()))


def _choose_text(
    data: Path | None, tokenizer: Path, tokens: int | None, **others: object
) -> TextData:
    for name, given in others.items():
        if given is not None:
            option = f"--{name.replace('_', '-')}"
            raise typer.BadParameter(f"--tokenizer and {option} exclude each other; give one")
    if data is None:
        raise typer.BadParameter("--tokenizer reads a text; give it with --data")
    from bitwright.data import TextData

    length = {} if tokens is None else {"length": tokens}
    return TextData(text=data, tokenizer=tokenizer, **length)


def read_shapes(texts: Sequence[str]) -> dict[str, Any] | None:
    """Read shapes of inputs and sizes of open dimensions; None where there are none.

    >>> read_shapes(["image=1x3x8x8", "length=128"])
    {'image': (1, 3, 8, 8), 'length': 128}
    """
    shapes: dict[str, Any] = {}
    for text in texts:
        # Names may hold '=' or 'x'; the sizes come last.
        name, _, sizes = text.rpartition("=")
        if not name or not re.fullmatch(r"\d+([x,]\d+)*", sizes):
            raise typer.BadParameter(
                f"--input-shape '{text}' is not NAME=SHAPE; write image=1x3x224x224 or length=128"
            )
        numbers = tuple(int(size) for size in re.split("[x,]", sizes))
        shapes[name] = numbers if len(numbers) > 1 else numbers[0]
    return shapes or None
