"""`--output -`: the result of a command on standard output, and all that it says on the other."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import typer

STANDARD_OUTPUT = Path("-")


@contextlib.contextmanager
def written(output: Path, suffix: str = ".onnx") -> Iterator[Path]:
    """Give the file to write: the output itself, or one that is sent to standard output behind it.

    For `-`, what is printed meanwhile goes to standard error, so that the result is all there is.
    """
    if output != STANDARD_OUTPUT:
        yield output
        return
    if sys.stdout.isatty():
        raise typer.BadParameter("--output - is for a pipe or a file behind it: -o - > model.onnx")
    with tempfile.TemporaryDirectory(prefix="bitwright-") as folder:
        path = Path(folder) / f"output{suffix}"
        with contextlib.redirect_stdout(sys.stderr):
            yield path
        if len(list(Path(folder).iterdir())) > 1:
            raise typer.BadParameter(
                "--output - holds one file, and the weights of this model are in another "
                "(--external-data, or above 2 GB); give a path"
            )
        sys.stdout.flush()
        with path.open("rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)


def refuse_pipe(output: Path, why: str) -> None:
    """Refuse `-` for a command that writes more than one file, or one more than once."""
    if output == STANDARD_OUTPUT:
        raise typer.BadParameter(f"--output - is not for this command: {why}; give a path")
