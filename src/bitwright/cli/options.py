"""Options that several commands share, and the values that are written as text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bitwright.cli.groups import arguments_of, completing, described, option, switch
from bitwright.errors import ArgumentError
from bitwright.support.wording import read_bytes

if TYPE_CHECKING:
    from bitwright.data import RandomData, ShapedData, TextData

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="The float model, an .onnx file.")]
ModelOrFolder = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL",
        help="The float model, an .onnx file; or a folder of models, as exporters of language "
        "models write it: all of it goes to a folder OUT.",
    ),
]
Weights = Annotated[
    Path | None,
    described(
        "FILE", "A GGUF file of the same language model: its weights take the place of the graph's."
    ),
]
FloatModel = Annotated[Path, typer.Argument(metavar="FLOAT", help="The float model.")]
QuantizedModel = Annotated[
    Path, typer.Argument(metavar="QUANT", help="The quantized model, whoever made it.")
]
Output = Annotated[
    Path, described("OUT", "Where to write the result; - for a pipe.", "--output", "-o")
]
PlanPath = Annotated[
    Path | None,
    described("PLAN", "The plan that QUANT was made with, for the reasons why nodes stay float."),
]
Work = Annotated[
    Path | None,
    described(
        "FOLDER",
        "Weight-only recipes, --fine-tune and --engine ray: store what is finished here; an "
        "interrupted run goes on from it.",
    ),
]
Device = Annotated[
    str, described("NAME", "Where weights are rounded or learn: cpu, or cuda with torch.")
]
Engine = Annotated[
    str | None,
    described(
        "ENGINE",
        "Where samples are run, and weights rounded and learned: local, ray (a cluster on "
        "this machine, or the one that RAY_ADDRESS names), or ray://HOST:PORT. The result is the "
        "same.",
    ),
]
Effort = Annotated[
    str | None,
    described(
        "LEVEL",
        "What to try on top of the recipe, each kept if the error falls on samples that it "
        "has not seen: low (nothing), standard (range methods and bias correction; the default "
        "where no recipe or ranges are given), medium (also gain correction, equalization, "
        "smoothing and nodes left float) or high (also AdaRound on the most sensitive segments; "
        "needs torch).",
        autocompletion=completing("low", "standard", "medium", "high"),
    ),
]
Sketches = Annotated[
    Path | None,
    described(
        "FILE", "Store the observed ranges in this file; if it exists, the data is not run again."
    ),
]
Provider = Annotated[
    list[str] | None, described("NAME", "Execution provider of ONNX Runtime, in order; repeatable.")
]
ExternalData = Annotated[
    bool | None,
    described(
        None,
        "Write weights to a file of their own; by default only above 2 GB.",
        "--external-data/--no-external-data",
        show_default=False,
    ),
]
Transform = Annotated[
    str | None,
    described(
        "TEXT",
        "How images become arrays: imagenet, unit, raw, or pairs such as "
        "'resize=256,crop=224,mean=0.5,std=0.5'.",
    ),
]
Limit = Annotated[int | None, described("N", "Use at most N samples of the data.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataOptions:
    """Options for samples of the user's own: arrays, images, or a text."""

    data: Path | None = option(
        "PATH",
        "Calibration data: a .npy, .npz or .csv file, an image, a video, or a folder or "
        "pattern ('images/*.jpg') of these; for a language model a text file, or several kinds of "
        "them in a folder.",
    )
    transform: Transform = None
    tokenizer: Path | None = option(
        "FILE",
        "The tokenizer.json of a language model: --data is then text. A folder of models has its "
        "own.",
    )
    tokens: int | None = option(
        "N", "Tokens in each sample of a text (as many as the model fixes, or 512)."
    )
    limit: Limit = None

    def files(self) -> list[Path | None]:
        """Return the files that are read, which no output may overwrite."""
        return [self.data, self.tokenizer]

    def words(self) -> str:
        """Return the options as they are typed."""
        return typed({field.name: getattr(self, field.name) for field in fields(self)})

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the job that the options stand for."""
        return {"data": self.source(), "limit": self.limit, "transform": self.transform}

    def source(self) -> Path | RandomData | TextData | ShapedData | None:
        """Return the data that the options name; options that clash are refused."""
        if self.tokenizer is None and self.tokens is None:
            return self.data
        option = "--tokens" if self.tokenizer is None else "--tokenizer"
        _exclude(option, {"--transform": self.transform})
        if self.data is None:
            raise typer.BadParameter(f"{option} is for a text; give it with --data")
        from bitwright.data import TextData

        return TextData(text=self.data, tokenizer=self.tokenizer, length=self.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOptions(DataOptions):
    """Options for samples of the user's own, or random ones."""

    random_data: int | None = option(
        "N", "Use N random samples instead of data: shows that it runs, not how well."
    )
    input_shape: list[str] | None = option(
        "NAME=SHAPE",
        "Shape of an input (image=1x3x224x224) or size of an open dimension "
        "(length=128), where the model leaves it open; repeatable.",
    )

    def source(self) -> Path | RandomData | TextData | ShapedData | None:
        """Return the data that the options name; options that clash are refused."""
        shapes = read_shapes(self.input_shape or ())
        if self.random_data is None:
            found = DataOptions.source(self)  # not super(): a class with slots is made twice
            if shapes is None:
                return found
            if found is None:
                raise typer.BadParameter("--input-shape goes with --data or --random-data")
            from bitwright.data import ShapedData, TextData

            if isinstance(found, TextData):
                return replace(found, shapes=shapes)
            return ShapedData(data=found, shapes=shapes)
        others = ("data", "limit", "transform", "tokenizer", "tokens")
        _exclude("--random-data", {f"--{name}": getattr(self, name) for name in others})
        from bitwright.data import RandomData

        return RandomData(count=self.random_data, shapes=shapes)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuringOptions(SampleOptions):
    """The same options for commands that measure models instead of calibrating one."""

    data: Path | None = option(
        "PATH",
        "Samples to measure on: a .npy or .npz file, an image, a folder of these, or a "
        "text with --tokenizer.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options for where and within which memory models are run."""

    provider: Provider = None
    memory_budget: str | None = option(
        "SIZE", "Observed tensors that may be in memory at once: 512MB."
    )
    engine: Engine = None

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the job that the options stand for."""
        budget = read_budget(self.memory_budget)
        return {"providers": self.provider or None, "memory_budget": budget, "engine": self.engine}


Purpose = StrEnum("Purpose", ["balanced", "speed", "size"])


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacingOptions:
    """Options for what integers are for, and the CPU that they have to be faster on."""

    purpose: Purpose | None = option(
        None,
        "balanced: integers unless they cost time; speed: where they save time; size: wherever the "
        "target takes them.",
        "--for",
    )
    cpu: str | None = option(
        "CLASS",
        "The class of CPU whose costs count, such as x86-vnni; that of this machine if not given.",
    )
    costs: Path | None = option("FILE", "Costs that 'bitwright bench --costs' measured.")
    force_dynamic: bool = switch(
        "With --dynamic: take convolutions in integers, too, which makes them slower."
    )

    def arguments(self) -> dict[str, str | bool | None]:
        """Return the arguments of `bitwright.quantize` that the options stand for."""
        if None not in (self.cpu, self.costs):
            raise typer.BadParameter("--cpu names measured costs, and --costs a file of them")
        cpu = self.cpu if self.costs is None else str(self.costs)
        purpose = None if self.purpose is None else self.purpose.value
        return {"purpose": purpose, "cpu": cpu, "force_dynamic": self.force_dynamic}

    def words(self) -> dict[str, object]:
        """Return the options as they are typed."""
        given = {"for": self.purpose, "cpu": self.cpu, "costs": self.costs}
        return {**given, "force_dynamic": self.force_dynamic}


def read_shapes(texts: Sequence[str], option: str = "--input-shape") -> dict[str, Any] | None:
    """Read shapes of inputs and sizes of open dimensions; None where there are none."""
    shapes: dict[str, Any] = {}
    for text in texts:
        # Names may hold '=' or 'x'; the sizes come last.
        name, _, sizes = text.rpartition("=")
        if not name or not re.fullmatch(r"\d+([x,]\d+)*", sizes):
            raise typer.BadParameter(
                f"{option} '{text}' is not NAME=SHAPE; write image=1x3x224x224 or length=128"
            )
        numbers = tuple(int(size) for size in re.split("[x,]", sizes))
        shapes[name] = numbers if len(numbers) > 1 else numbers[0]
    return shapes or None


def typed(options: Mapping[str, Any]) -> str:
    """Return options as they are typed: lists as often as they are long, switches alone."""
    words: list[str] = []
    for name, values in options.items():
        option = f"--{name.replace('_', '-')}"
        for value in values if isinstance(values, list) else [values]:
            if value is True:
                words.append(option)
            elif value is not None and value is not False:
                words += [option, str(value)]
    return shlex.join(words)


def read_budget(text: str | None) -> int:
    """Return the bytes that may be in memory at once; the usual number where none are given."""
    if text is None:
        from bitwright.observe import MEMORY_BUDGET

        return MEMORY_BUDGET
    return read_size(text)


def read_size(text: str) -> int:
    """Return the bytes that a size stands for, where an option is given it."""
    try:
        return read_bytes(text)
    except ArgumentError as error:
        raise typer.BadParameter(str(error)) from error


def _exclude(option: str, others: Mapping[str, object]) -> None:
    for name, given in others.items():
        if given is not None:
            raise typer.BadParameter(f"{option} and {name} exclude each other; give one")


Scope = StrEnum("Scope", ["sample", "set"])


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringOptions:
    """A metric of the user's, what it is measured on, and how far it may fall."""

    eval_data: Path | None = option(
        "PATH",
        "Samples to evaluate the metric on, with labels: .npz files with a 'label' beside "
        "the inputs, or images in one folder for each class. Without it, --data evaluates, or a "
        "part of it.",
        "--eval",
    )
    labels: Path | None = option(
        "FILE", "One label for each of these samples, in their order: .npy, .json, .txt or .csv."
    )
    eval_limit: int | None = option("N", "Use at most N samples of --eval.")
    evaluate: str | None = option(
        "NAME",
        "top1, top5, agreement, cosine, closeness, likelihood, or score.py:function, a function "
        "score(outputs, sample) of yours. By default top1 with labels, else agreement with float.",
        "--metric",
    )
    evaluate_on: Scope = option(
        None,
        "What your function scores: a sample, or all of the set at once.",
        "--metric-of",
        default=Scope.sample,
    )
    lower_is_better: bool = switch("Your function measures an error.")
    max_drop: str = option(
        "DROP",
        "How far the metric may fall: 0.5%, or in its own units 0.005.",
        "--drop",
        default="1%",
    )
    relative: bool = switch("--drop is a share of the float model's score.")

    def files(self) -> list[Path | None]:
        """Return the files that are read, which no output may overwrite."""
        return [self.eval_data, self.labels]

    def words(self) -> str:
        """Return the options as they are typed."""
        given: dict[str, Any] = {"eval": self.eval_data, "labels": self.labels}
        scope = None if self.evaluate_on is Scope.sample else self.evaluate_on
        given |= {"eval_limit": self.eval_limit, "metric": self.evaluate, "metric_of": scope}
        given |= {"drop": self.max_drop, "lower_is_better": self.lower_is_better}
        given |= {"relative": self.relative}
        return typed(given)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of a verb that the options stand for."""
        return arguments_of(self)
