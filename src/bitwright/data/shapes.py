"""User-given shapes of model inputs: whole shapes, or sizes of open dimensions by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, SupportsIndex, TypeAlias

from bitwright.data.specs import InputSpec, show_shape
from bitwright.errors import DataError, did_you_mean

Shapes: TypeAlias = Mapping[str, Sequence[int] | int] | Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapedData:
    """Data for a model whose open dimensions get these sizes: images are resized to them."""

    data: Any
    shapes: Shapes | None = None
    transform: Any = None
    """How the model's own folder prepares images; what the user says comes before it."""


def fix_shapes(
    specs: Sequence[InputSpec], shapes: Shapes | None
) -> tuple[tuple[InputSpec, ...], dict[str, int]]:
    """Return the inputs with the shapes that were given for them, and the sizes of symbols."""
    by_input, symbols = read_shapes(tuple(specs), shapes)

    def fixed(spec: InputSpec) -> InputSpec:
        dims = by_input.get(spec.name, spec.shape)
        if dims is None:
            return spec
        # 0 is a size here, and "open" in a specification: the symbol keeps standing for it.
        sizes = (symbols.get(dim, dim) or dim if isinstance(dim, str) else dim for dim in dims)
        return replace(spec, shape=tuple(sizes))

    return tuple(map(fixed, specs)), symbols


def read_shapes(
    specs: tuple[InputSpec, ...], shapes: Shapes | None
) -> tuple[dict[str, tuple[int, ...]], dict[str, int]]:
    """Separate shapes of inputs from sizes of symbols, which shapes of inputs give, too."""
    by_input, symbols = _split_shapes(specs, shapes)
    for name, sizes in (*by_input.items(), *((key, (size,)) for key, size in symbols.items())):
        if any(isinstance(size, int) and size < 0 for size in sizes):
            raise DataError(
                f"the shape given for {name!r} has a negative size ({show_shape(sizes)}); "
                "give the size to use, not -1."
            )
    for spec in specs:
        given, dims = by_input.get(spec.name), spec.shape
        if given is not None and dims is not None and len(given) == len(dims):
            named = zip(given, dims, strict=True)
            symbols |= {
                dim: size for size, dim in named if isinstance(dim, str) and isinstance(size, int)
            }
    return by_input, symbols


def _split_shapes(
    specs: tuple[InputSpec, ...], shapes: Shapes | None
) -> tuple[dict[str, tuple[int, ...]], dict[str, int]]:
    if shapes is None:
        return {}, {}
    if not isinstance(shapes, Mapping):
        if len(shapes) != len(specs):
            raise DataError(
                f"{len(shapes)} shapes were given, but the model takes {len(specs)} "
                f"({', '.join(spec.name for spec in specs)}); give one shape for each input."
            )
        return {
            spec.name: tuple(map(int, shape)) for spec, shape in zip(specs, shapes, strict=True)
        }, {}
    inputs = {spec.name for spec in specs}
    open_dims = {dim for spec in specs for dim in spec.shape or () if isinstance(dim, str)}
    by_input: dict[str, tuple[Any, ...]] = {}
    symbols: dict[str, int] = {}
    for name, value in shapes.items():
        is_size = isinstance(value, SupportsIndex)
        if isinstance(value, SupportsIndex) and name in open_dims:
            symbols[name] = int(value)
        elif isinstance(value, SupportsIndex) and name == "batch" and _leading(specs, int(value)):
            by_input |= _leading(specs, int(value))
        elif not isinstance(value, SupportsIndex) and name in inputs:
            by_input[name] = tuple(map(int, value))
        else:
            what = "dimension symbol" if is_size else "input"
            known = open_dims if is_size else inputs
            raise DataError(
                f"a shape was given for {name!r}, which is no {what} of the model."
                f"{did_you_mean(name, known)}"
            )
    return by_input, symbols


def _leading(specs: tuple[InputSpec, ...], size: int) -> dict[str, tuple[Any, ...]]:
    """Return the inputs with this batch whose first dimension is of that size, or has no name."""
    shapes = ((spec.name, spec.shape) for spec in specs if spec.shape)
    return {name: (size, *dims[1:]) for name, dims in shapes if dims[0] in (None, size)}
