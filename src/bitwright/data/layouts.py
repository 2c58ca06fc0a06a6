"""Convert samples to NHWC for a model whose inputs were converted from NCHW."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import numpy as np

from bitwright.data.sources import Samples
from bitwright.data.specs import Array, InputSpec, Sample

__all__ = ["channels_first_specs", "to_channels_last"]


def channels_first_specs(
    specs: Sequence[InputSpec], channels_last: Collection[str]
) -> tuple[InputSpec, ...]:
    """Return the inputs as they were before those in `channels_last` became NHWC.

    >>> spec = InputSpec("image", np.dtype("float32"), ("batch", 8, 9, 3))
    >>> print(*channels_first_specs([spec], {"image"}))
    'image' float32[batch,3,8,9]
    """
    return tuple(
        _permuted(spec, (0, 3, 1, 2)) if spec.name in channels_last else spec for spec in specs
    )


def to_channels_last(samples: Samples, channels_last: Collection[str]) -> Samples:
    """Return the same stream with the arrays for these inputs converted from NCHW to NHWC.

    >>> from bitwright.data.sources import open_data
    >>> spec = InputSpec("image", np.dtype("float32"), (1, 3, 8, 9))
    >>> samples = open_data(np.zeros((2, 3, 8, 9), np.float32), [spec])
    >>> [sample["image"].shape for sample in to_channels_last(samples, {"image"})]
    [(1, 8, 9, 3), (1, 8, 9, 3)]
    """
    if not channels_last:
        return samples

    def produce() -> Iterator[tuple[Sample, None]]:
        for sample in samples:
            yield {k: _to_last(v) if k in channels_last else v for k, v in sample.items()}, None

    return Samples(
        produce,
        [
            _permuted(spec, (0, 2, 3, 1)) if spec.name in channels_last else spec
            for spec in samples.specs
        ],
        description=samples.description,
        len_hint=samples.len_hint,
        repeatable=samples.repeatable,
    )


def _to_last(array: Array) -> Array:
    return np.ascontiguousarray(array.transpose(0, 2, 3, 1))


def _permuted(spec: InputSpec, order: Sequence[int]) -> InputSpec:
    shape = spec.shape
    return spec if shape is None else replace(spec, shape=tuple(shape[axis] for axis in order))
