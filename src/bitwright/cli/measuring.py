"""Arguments that the commands share which run models to measure them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bitwright.cli import options as opt

__all__ = ["FloatModel", "PlanPath", "QuantizedModel", "SamplePath", "read_budget"]

FloatModel = Annotated[Path, typer.Argument(metavar="FLOAT", help="The float model.")]
QuantizedModel = Annotated[
    Path, typer.Argument(metavar="QUANT", help="The quantized model, whoever made it.")
]
SamplePath = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="PATH",
        help="Samples to measure on: a .npy or .npz file, an image, a folder of these, or a text "
        "with --tokenizer.",
    ),
]
PlanPath = Annotated[
    Path | None,
    typer.Option(
        "--plan", metavar="PLAN", help="The plan that QUANT was made with: it has the reasons."
    ),
]


def read_budget(text: str | None) -> int:
    """Return the bytes that may be in memory at once; the usual number where none are given."""
    from bitwright.observe import MEMORY_BUDGET

    return MEMORY_BUDGET if text is None else opt.read_bytes(text)
