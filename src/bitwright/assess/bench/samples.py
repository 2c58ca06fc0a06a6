"""Samples to time models with: real or random, one by one or in batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from bitwright.data import (
    InputSpec,
    RandomData,
    Sample,
    Samples,
    Transform,
    open_data,
)
from bitwright.errors import DataError, did_you_mean

__all__ = ["check_shapes", "samples_for", "write_samples"]

_RANDOM_SAMPLES = 4
_REAL_SAMPLES = 16


def samples_for(
    specs: Sequence[InputSpec],
    *,
    data: Any = None,
    limit: int | None = None,
    transform: Transform = None,
    shapes: Mapping[str, Sequence[int] | int] | None = None,
    batch: int | None = None,
) -> tuple[list[Sample], str]:
    """Return the samples for a model with these inputs, and their description.

    `batch` puts so many samples into one, along the leading dimension, which must be open.

    >>> spec = InputSpec("x", np.dtype("float32"), ("n", 3))
    >>> samples, what = samples_for([spec], batch=8)
    >>> samples[0]["x"].shape, what
    ((8, 3), 'random data (seed 0)')
    """
    each = 1 if batch is None else batch
    if each < 1:
        raise DataError(f"a batch needs at least 1 sample, not {batch}.")
    wanted = (limit or _REAL_SAMPLES) if data is not None else _RANDOM_SAMPLES
    opened = _open(specs, data, wanted * each, transform, shapes)
    stream = iter(opened)
    if batch is None:
        return list(stream), opened.description
    batches: list[Sample] = []
    while len(batches) < wanted and (group := list(islice(stream, each))):
        # The last of the data starts again with the first, so that all batches are full.
        while len(group) < each:
            group += group[: each - len(group)]
        batches.append(_stack(group, specs))
    return batches, opened.description


def check_shapes(
    models: Sequence[Sequence[InputSpec]], shapes: Mapping[str, Sequence[int] | int]
) -> None:
    """Refuse a shape for something that no model has."""
    known = set[str]().union(*map(_names, models))
    for name in shapes:
        if name not in known:
            raise DataError(
                f"a shape was given for {name!r}, which is no input and no open dimension."
                f"{did_you_mean(name, known)}"
            )


def write_samples(samples: Sequence[Sample], folder: Path) -> list[Path]:
    """Write each sample to a file that the worker can read."""
    files = []
    for index, sample in enumerate(samples):
        for name, array in sample.items():
            if array.dtype.kind == "V":
                raise DataError(f"input {name!r} takes {array.dtype}, which cannot be timed yet.")
        path = folder / f"{index}.npz"
        texts = {n: a.astype(np.str_) if a.dtype == object else a for n, a in sample.items()}
        np.savez(path, **texts)  # type: ignore[arg-type]
        files.append(path)
    return files


def _open(
    specs: Sequence[InputSpec],
    data: Any,
    limit: int,
    transform: Transform,
    shapes: Mapping[str, Sequence[int] | int] | None,
) -> Samples:
    if data is None:
        # Of two models one may have other dimensions.
        known = _names(specs)
        own = {name: size for name, size in (shapes or {}).items() if name in known}
        data = RandomData(count=limit, shapes=own or None)
    elif shapes:
        raise DataError("shapes are for random data; leave them out, or leave the data out.")
    return open_data(data, specs, limit=limit, transform=transform)


def _names(specs: Sequence[InputSpec]) -> set[str]:
    """Return the inputs and open dimensions that a shape can be given for."""
    dims = {dim for spec in specs for dim in spec.shape or () if isinstance(dim, str)}
    return dims | {spec.name for spec in specs}


def _stack(group: Sequence[Sample], specs: Sequence[InputSpec]) -> Sample:
    open_inputs = [spec.name for spec in specs if spec.shape and not isinstance(spec.shape[0], int)]
    if not open_inputs:
        first = specs[0]
        raise DataError(
            f"the leading dimension of input {first} is fixed; a batch needs an open one."
        )
    try:
        return group[0] | {
            name: np.concatenate([sample[name] for sample in group]) for name in open_inputs
        }
    except ValueError as error:
        raise DataError(
            f"the samples cannot be put into one batch ({error}); give samples of one shape."
        ) from error
