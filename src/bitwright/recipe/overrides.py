"""Overrides: what single nodes and tensors get instead of a recipe's defaults."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

from bitwright.errors import RecipeError
from bitwright.numerics.types import QType
from bitwright.recipe.methods import RangeMethod
from bitwright.support.settings import Settings

__all__ = ["Override", "find_override"]


_OF_NODES = frozenset({"activation", "weight", "keep_float"})


class Override(Settings, frozen=True, kw_only=True):
    """What some nodes, or some tensors, get instead of the recipe's defaults.

    `activation`, `weight` and `keep_float` are for the nodes that its name stands for in a recipe:
    the name of a node, of a torch module or of an op type, or `re:...` over names of nodes and
    modules. All else is for the tensor of that name, or the tensors that `re:...` fits.

    >>> from bitwright.numerics.types import UINT16
    >>> Override(activation=UINT16).for_nodes, Override(qtype=UINT16).for_nodes
    (True, False)
    """

    activation: QType | None = None
    """Nodes: the type of the activations that they read and write. A tensor has the widest type of
    the nodes that write and read it; who reads another gets it from one pair behind that."""
    weight: QType | None = None
    """Nodes: the type of their weights; `block_size` beside it is that of these."""
    keep_float: bool = False
    """Nodes: they read and write float."""
    qtype: QType | None = None
    """The number type."""
    symmetric: bool | None = None
    """As in the recipe."""
    reduce_range: bool | None = None
    """As in the recipe."""
    rmin: float | tuple[float, ...] | None = None
    """Where the range begins, and ends; what is None is observed."""
    rmax: float | tuple[float, ...] | None = None
    """Where it ends."""
    scale: float | tuple[float, ...] | None = None
    """The scale itself; `zero_point` goes with it."""
    zero_point: int | tuple[int, ...] | None = None
    """The zero point itself."""
    axis: int | None = None
    """The channel axis of a weight; `scale` and the rest may then be lists."""
    per_tensor: bool = False
    """One scale for the whole tensor, also where others get one for each channel."""
    block_size: int | None = None
    """One scale for each block of this many rows of a weight."""
    ranges: RangeMethod | None = None
    """Another range method."""
    convert: Override | None = None
    """A second type for some readers: the tensor is quantized again behind its own pair."""
    convert_for: tuple[str, ...] | None = None
    """Names of the nodes that read the second type; None: every one."""

    @property
    def for_nodes(self) -> bool:
        """Whether it says something about nodes."""
        return bool(self.activation or self.weight or self.keep_float)

    @property
    def for_tensors(self) -> bool:
        """Whether it says something about tensors, or nothing at all."""
        of_nodes = _OF_NODES | ({"block_size"} if self.weight else set())
        return not self.for_nodes or not self._given().keys() <= of_nodes

    @property
    def types(self) -> tuple[QType, ...]:
        """The number types that it names."""
        converted = () if self.convert is None else self.convert.types
        return (*(t for t in (self.activation, self.weight, self.qtype) if t), *converted)

    def merged(self, other: Override) -> Override:
        """Return both in one; where they differ, the other one counts.

        >>> from bitwright.numerics.types import INT4, UINT16
        >>> both = Override(weight=INT4).merged(Override(activation=UINT16))
        >>> both.weight, both.activation
        (INT4, UINT16)
        """
        return Override(**(self._given() | other._given()))

    def _given(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: value for name, value in fields.items() if value != getattr(_PLAIN, name)}

    def __post_init__(self) -> None:
        if self.keep_float and (self.activation or self.weight):
            raise RecipeError("an override with keep_float has no types to give; drop one of them.")
        if self.convert_for is not None and self.convert is None:
            raise RecipeError("an override with convert_for needs convert, too.")
        if self.convert is not None:
            _check_convert(self.convert)
        if (self.scale is None) != (self.zero_point is None):
            raise RecipeError("an override gives both scale and zero_point, or neither.")
        clash = [
            name
            for name in ("symmetric", "reduce_range", "rmin", "rmax", "ranges")
            if getattr(self, name) is not None
        ]
        if self.scale is not None and clash:
            raise RecipeError(
                f"an override with scale and zero_point leaves nothing for {', '.join(clash)} "
                "to decide; drop one or the other."
            )
        ends = (self.rmin, self.rmax)
        if None in ends and any(isinstance(end, tuple) for end in ends):
            raise RecipeError("an override of channels gives both rmin and rmax, or neither.")
        if self.per_tensor and self.axis is not None:
            raise RecipeError("an override is per_tensor or has an axis, not both.")


def _check_convert(convert: Override) -> None:
    unfit = [
        name
        for name in ("axis", "block_size", "reduce_range", "convert", "activation", "weight")
        if getattr(convert, name) is not None
    ]
    if unfit:
        raise RecipeError(f"convert is for whole activations and takes no {', '.join(unfit)}.")
    if convert.qtype is None:
        raise RecipeError("convert needs a qtype: the type to convert to.")


_PLAIN = Override()


def find_override(overrides: Mapping[str, Override], tensor: str) -> Override | None:
    """Return what a tensor gets: what stands under its name, before what a pattern says."""
    found = [
        override
        for name, override in overrides.items()
        if name.startswith("re:") and override.for_tensors and re.fullmatch(name[3:], tensor)
    ]
    exact = overrides.get(tensor)
    if exact is not None and exact.for_tensors:
        found.append(exact)
    return functools.reduce(Override.merged, found) if found else None
