"""`bitwright publish`: every variant of a model that a loader asks for, each one certified."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from bitwright.cli import options as opt
from bitwright.cli.groups import REQUIRED, arguments_of, option, switch
from bitwright.cli.screen import Facts, Screen, Table, show_bytes

_Loader = StrEnum("_Loader", ["transformers.js", "onnxruntime", "genai", "edge"])


@dataclass(frozen=True, slots=True, kw_only=True)
class _PublishSamples(opt.SampleOptions):
    limit: int | None = option(
        "N", "Use at most N samples of the data, 64 by default.", "--samples"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishOptions:
    """For whom variants are written, which, tried on what, and where they go."""

    output: Path = option("FOLDER", "The folder to write.", "--output", "-o", default=REQUIRED)
    loader: _Loader = option(
        None,
        "Who loads it: names, places and variants.",
        "--for",
        default=_Loader("transformers.js"),
    )
    variants: str | None = option("A,B", "Only these, such as q8,q4; else all that make sense.")
    max_size: str | None = option("SIZE", "Write no variant that is larger: 200MB.", "--limit")
    samples: _PublishSamples
    golden: int = option(
        "N", "Store the answers to N random samples in each file, for verify --here.", default=0
    )
    golden_from_data: bool = switch("Store samples of the data; who has a file has them, too.")
    reports: bool = option(
        None, "Write an HTML page about each variant.", "--reports/--no-reports", default=True
    )


def publish_command(
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", help="A float .onnx file, or a folder of models.")
    ],
    *,
    options: PublishOptions,
    screen: Screen,
) -> None:
    """Write the variants that a loader asks for, each one tried.

    What is far from float, or larger or slower than a better variant, is not written; README.md in
    the folder says why. The same command goes on after an interruption.
    """
    from bitwright.api import publish

    given = arguments_of(options, "variants")
    names = options.variants and options.variants.split(",")
    progress = screen.wants_progress
    made = publish(source, variants=names, progress=progress, **given)
    rows = [
        (o.file, show_bytes(o.size) if o.size else "-", o.time, o.outcome)
        for o in made.certificates
    ]
    columns = ("file", "size", "time over float", "verdict")
    table = Table("Variants", columns, rows)
    screen.show(made.to_dict(), [table, Facts([("Card", str(made.output / "README.md"))])])
