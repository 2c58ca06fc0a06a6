"""CSV files as calibration data for models of tables: a row is a sample."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bitwright.data.specs import Array, InputSpec, show_shape
from bitwright.errors import DataError, did_you_mean
from bitwright.support.files import check_regular_file

_LABELS = ("class", "label", "target", "y")
"""Columns that hold no feature, in lower case."""


def load_table(path: Path, specs: Sequence[InputSpec]) -> dict[str, Array]:
    """Read the columns of a CSV file as arrays for a model's inputs.

    The first line names the columns. A model with an input for each column finds it by its name;
    one with a single input of [batch, n] gets the n columns in their order. Other columns are for
    labels, and left out by their names: class, label, target or y.
    """
    names, rows = _read(path)
    if all(spec.name in names for spec in specs):
        return {spec.name: _column(path, spec, names.index(spec.name), rows) for spec in specs}
    if len(specs) > 1:
        missing = next(spec.name for spec in specs if spec.name not in names)
        raise DataError(
            f"{str(path)!r} has no column for the model's input {missing!r}."
            f"{did_you_mean(missing, names)}"
        )
    [spec] = specs
    if spec.shape is None or len(spec.shape) != 2:
        raise DataError(
            f"{str(path)!r} is a table, and input {spec.name!r} takes {show_shape(spec.shape)}; "
            "give .npy files."
        )
    features = [i for i, name in enumerate(names) if name.lower() not in _LABELS]
    width = spec.shape[1]
    if isinstance(width, int) and len(features) != width:
        raise DataError(
            f"{str(path)!r} has {len(features)} columns that are no label, and input "
            f"{spec.name!r} takes {width}; leave the others out."
        )
    numbers = [[_number(path, row, line, i, names) for i in features] for line, row in rows]
    return {spec.name: np.array(numbers, spec.dtype)}


def _read(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    check_regular_file(path, DataError)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            names = [name.strip() for name in next(reader, [])]
            rows = [(reader.line_num, row) for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"the table {str(path)!r} cannot be read ({error}).") from error
    if not rows:
        raise DataError(f"{str(path)!r} has no rows; give names of columns, and a row a sample.")
    for line, row in rows:
        if len(row) != len(names):
            raise DataError(
                f"line {line} of {str(path)!r} has {len(row)} values for {len(names)} columns."
            )
    return names, rows


def _column(
    path: Path, spec: InputSpec, index: int, rows: Sequence[tuple[int, list[str]]]
) -> Array:
    if spec.dtype.kind == "O":
        values: list[object] = [row[index] for _, row in rows]
    else:
        values = [_number(path, row, line, index, [spec.name] * (index + 1)) for line, row in rows]
    column = np.array(values, spec.dtype)
    # A stack of samples has the rank of the input where that has a batch dimension.
    rank = 1 if spec.shape is None else len(spec.shape)
    return column.reshape(len(rows), *(1,) * (rank - 1))


def _number(path: Path, row: Sequence[str], line: int, index: int, names: Sequence[str]) -> float:
    try:
        return float(row[index])
    except ValueError:
        raise DataError(
            f"line {line} of {str(path)!r} has {row[index]!r} for {names[index]!r}, which is no "
            "number; fill it in, or leave the row out."
        ) from None
