"""Split arrays that stack many samples along their first dimension."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from bitwright.data.specs import Array, InputSpec, Sample
from bitwright.errors import DataError

__all__ = ["split_stack"]


def split_stack(
    arrays: Mapping[str, Array], specs: Sequence[InputSpec], *, origin: str, lone: bool
) -> tuple[int, Iterator[Sample]]:
    """Count the samples in a set of arrays, and give them one after the other.

    The rule, for each input of rank r:

    1. an array of rank r + 1 is a stack: its first dimension counts the samples;
    2. an array of rank r whose first dimension is a multiple of the model's fixed batch size is
       cut into batches of that size;
    3. where the model leaves the batch size open, an array that is all there is (`lone`: one file,
       or one array in memory) is cut into batches of one; one file among many is one sample.

    Inputs must agree in the number of samples; an input with only one is used for every sample.

    >>> import numpy as np
    >>> spec = InputSpec("x", np.dtype("float32"), (1, 4))
    >>> count, samples = split_stack(
    ...     {"x": np.zeros((10, 4), np.float32)}, [spec], origin="x.npy", lone=True
    ... )
    >>> count, next(samples)["x"].shape
    (10, (1, 4))
    """
    by_name = {spec.name: spec for spec in specs}
    steps = {
        name: _samples_and_step(array, by_name[name], lone)
        for name, array in arrays.items()
        if name in by_name
    }
    counts = {name: count for name, (count, _) in steps.items() if count != 1}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name!r} {count}" for name, count in counts.items())
        raise DataError(
            f"the inputs in {origin} hold different numbers of samples ({listed}); "
            "give every input the same number."
        )
    total = next(iter(counts.values()), 1)

    def samples() -> Iterator[Sample]:
        for position in range(total):
            yield {
                name: _cut(array, steps.get(name, (1, None)), position)
                for name, array in arrays.items()
            }

    return total, samples()


def _samples_and_step(array: Array, spec: InputSpec, lone: bool) -> tuple[int, int | None]:
    """Return how many samples the array holds, and how many rows each has.

    A step of 0 takes one row and drops the dimension; None takes the array whole.
    """
    if spec.shape is None or array.ndim == 0:
        return 1, None
    rank, rows = len(spec.shape), array.shape[0]
    if array.ndim == rank + 1:
        return rows, 0
    if array.ndim != rank:
        return 1, None
    batch = spec.shape[0]
    if isinstance(batch, int):
        return (rows // batch, batch) if rows % batch == 0 else (1, None)
    return (rows, 1) if lone else (1, None)


def _cut(array: Array, step: tuple[int, int | None], position: int) -> Array:
    count, rows = step
    at = position if count != 1 else 0
    if rows is None:
        return array
    if rows == 0:
        piece: Array = array[at]
        return piece
    return array[at * rows : (at + 1) * rows]
