"""Cache samples that can be read only once, for a second pass."""

from __future__ import annotations

from bitwright.data.sources import Samples
from bitwright.data.specs import Sample
from bitwright.errors import DataError

__all__ = ["cache_samples"]


def cache_samples(samples: Samples, *, max_bytes: int | None = None) -> Samples:
    """Return the samples in a form that can be read again: themselves, or a copy in memory.

    A copy of more than `max_bytes`, where given, is refused.

    >>> import numpy as np
    >>> from bitwright.data import InputSpec, open_data
    >>> spec = InputSpec("x", np.dtype("float32"), (1, 2))
    >>> once = open_data(iter([{"x": np.zeros((1, 2), np.float32)}]), [spec])
    >>> cached = cache_samples(once, max_bytes=1000)
    >>> len(list(cached)), len(list(cached))
    (1, 1)
    """
    if samples.repeatable:
        return samples
    cached: list[Sample] = []
    size = 0
    for sample in samples:
        size += sum(array.nbytes for array in sample.values())
        if max_bytes is not None and size > max_bytes:
            raise DataError(
                f"the calibration data ({samples.description}) can be read only once, two passes "
                f"need it, and it does not fit in the memory budget of {max_bytes:,} bytes; give "
                "a list or files, fewer samples, or a larger budget."
            )
        # A reader may fill the same buffer again.
        cached.append({name: array.copy() for name, array in sample.items()})
    return Samples(
        lambda: ((sample, None) for sample in cached),
        samples.specs,
        description=samples.description,
        len_hint=len(cached),
    )
