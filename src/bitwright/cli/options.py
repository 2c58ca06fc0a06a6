"""Options that several commands share, and the values that are written as text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "Device",
    "Effort",
    "ExternalData",
    "FloatModel",
    "MemoryBudget",
    "Model",
    "PlanPath",
    "Provider",
    "Qat",
    "QuantizedModel",
    "Sketches",
    "Work",
    "read_budget",
]

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="The float model, an .onnx file.")]
FloatModel = Annotated[Path, typer.Argument(metavar="FLOAT", help="The float model.")]
QuantizedModel = Annotated[
    Path, typer.Argument(metavar="QUANT", help="The quantized model, whoever made it.")
]
PlanPath = Annotated[
    Path | None,
    typer.Option(
        "--plan",
        metavar="PLAN",
        help="The plan that QUANT was made with, for the reasons why nodes stay float.",
    ),
]
Work = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Weight-only recipes and --fine-tune: store finished layers here; an interrupted run "
        "goes on from them.",
    ),
]
Device = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="Where weights are rounded or learn: cpu, or cuda with torch."
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
Effort = Annotated[
    str | None,
    typer.Option(
        metavar="LEVEL",
        help="What to try on top of the recipe, each kept if the error on holdout samples falls: "
        "low (nothing), medium (equalization, ranges of least squared error, bias correction) or "
        "high (also AdaRound on the most sensitive segments; needs torch).",
    ),
]
Sketches = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Store the observed ranges in this file; if it exists, the data is not run again.",
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

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


def read_budget(text: str | None) -> int:
    """Return the bytes that may be in memory at once; the usual number where none are given.

    >>> read_budget("512MB"), read_budget("1.5 GiB"), read_budget("4096")
    (512000000, 1610612736, 4096)
    """
    if text is None:
        from bitwright.observe import MEMORY_BUDGET

        return MEMORY_BUDGET
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]i?|)b?", text.strip().lower())
    if found is None:
        raise typer.BadParameter(f"'{text}' is no size; write 512MB, 2GB or a number of bytes")
    return int(float(found.group(1)) * _UNITS[found.group(2)])
