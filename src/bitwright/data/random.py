"""Random samples: they show that a model quantizes and runs, not how accurate it is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bitwright.data.samples import Samples
from bitwright.data.shapes import Shapes, read_shapes
from bitwright.data.specs import Array, InputSpec, Sample, show_shape
from bitwright.errors import DataError, did_you_mean
from bitwright.support import check_arguments, check_limit


@check_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class RandomData:
    """A request for random samples, where a model's inputs are not known yet.

    >>> RandomData(count=4).count
    4
    """

    count: int = 16
    seed: int = 0
    shapes: Shapes | None = None
    low: float = 0.0
    high: float = 1.0
    ranges: Mapping[str, tuple[float, float]] | None = None
    """Input name -> (low, high) of its values, instead of the above; of integers both ends."""

    def samples(self, specs: Sequence[InputSpec]) -> Samples:
        """Return the samples for a model with these inputs.

        Floats are uniform in [low, high), integers and booleans 0 or 1. An open leading dimension
        is taken for the batch and becomes 1. Every other open dimension must be given by `shapes`:
        a dict from input name to shape or from dimension symbol to size, or a list with one shape
        for each input. The same seed gives the same samples, in every pass over them.

        >>> spec = InputSpec("ids", np.dtype("int64"), ("batch", "length"))
        >>> samples = RandomData(count=2, shapes={"length": 5}).samples([spec])
        >>> [sample["ids"].shape for sample in samples]
        [(1, 5), (1, 5)]
        """
        count, low, high, ranges = self.count, self.low, self.high, self.ranges or {}
        if count < 1:
            raise DataError(f"random data needs a count of at least 1, not {count}.")
        if not low < high:
            raise DataError(f"random data needs low < high, not low={low} and high={high}.")
        resolved = _resolve_shapes(tuple(specs), self.shapes)
        for name, shape in resolved.items():
            elements = math.prod(shape)
            what = f"input {name!r} {show_shape(shape)} has {elements} elements"
            check_limit("elements", elements, what, DataError)
        _check_ranges(specs, ranges)

        def produce() -> Iterator[tuple[Sample, None]]:
            generator = np.random.default_rng(self.seed)
            for _ in range(count):
                sample = {}
                for spec in specs:
                    own = ranges.get(spec.name)
                    shape = resolved[spec.name]
                    sample[spec.name] = _draw(generator, spec.dtype, shape, (low, high), own)
                yield sample, None

        described = f"random data (seed {self.seed})"
        return Samples(produce, specs, description=described, len_hint=count)


def _check_ranges(specs: Sequence[InputSpec], ranges: Mapping[str, tuple[float, float]]) -> None:
    """Refuse inputs that random values cannot feed, and ranges that fit none or hold nothing."""
    for spec in specs:
        if spec.dtype.kind == "O":
            raise DataError(
                f"input {spec.name!r} takes strings, which cannot be made up; give real data."
            )
    by_name = {spec.name: spec for spec in specs}
    for name, (low, high) in ranges.items():
        if name not in by_name:
            raise DataError(
                f"a range was given for {name!r}, which is no input of the model."
                f"{did_you_mean(name, by_name)}"
            )
        if not low < high:
            raise DataError(f"the range of {name!r} needs low < high, not ({low:g}, {high:g}).")
        dtype = by_name[name].dtype
        if dtype.kind in "iu" and not np.iinfo(dtype).min <= low < high <= np.iinfo(dtype).max:
            raise DataError(
                f"the range ({low:g}, {high:g}) does not fit input {name!r} of type {dtype}."
            )


def _draw(
    generator: np.random.Generator,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    usual: tuple[float, float],
    own: tuple[float, float] | None,
) -> Array:
    if dtype.kind in "iub":
        # 0 and 1 are valid in every vocabulary, mask and segment; larger numbers may not be.
        first, last = own or (0, 1)
        return generator.integers(int(first), int(last), shape, endpoint=True).astype(dtype)
    low, high = own or usual
    drawn = generator.random(shape, np.float32)
    return (low + drawn * (high - low)).astype(dtype)


def _resolve_shapes(
    specs: tuple[InputSpec, ...], shapes: Shapes | None
) -> dict[str, tuple[int, ...]]:
    by_input, symbols = read_shapes(specs, shapes)
    for spec in specs:
        if spec.shape and isinstance(spec.shape[0], str):
            symbols.setdefault(spec.shape[0], 1)
    return {
        spec.name: by_input[spec.name] if spec.name in by_input else _resolve_shape(spec, symbols)
        for spec in specs
    }


def _resolve_shape(spec: InputSpec, symbols: Mapping[str, int]) -> tuple[int, ...]:
    if spec.shape is None:
        raise DataError(
            f"input {spec.name!r} has no shape in the model",
            remedy=f"give one, such as shapes={{{spec.name!r}: (1, 3, 224, 224)}}, or real data",
            command=f"give one, such as --input-shape {spec.name}=1x3x224x224, or --data PATH",
        )
    sizes: list[int] = []
    for axis, dim in enumerate(spec.shape):
        size = symbols.get(dim) if isinstance(dim, str) else dim
        if size is None and axis == 0:
            size = 1
        if size is None:
            label = f"{axis} ({dim!r})" if isinstance(dim, str) else str(axis)
            example = tuple(
                dim if isinstance(dim, int) else 1 if not at else 224
                for at, dim in enumerate(spec.shape)
            )
            raise DataError(
                f"dimension {label} of input {spec.name!r} {show_shape(spec.shape)} is open and "
                "random data cannot choose it",
                remedy=f"give a shape, such as shapes={{{spec.name!r}: {example}}}, or real data",
                command="give a shape, such as --input-shape "
                f"{spec.name}={'x'.join(map(str, example))}, or --data PATH",
            )
        sizes.append(size)
    return tuple(sizes)
