"""How values of the Vitis AI quantizer's arguments and options are read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from bitwright.compat.options import Changes, Read, Row, read_mapping, read_names, read_pair
from bitwright.errors import RecipeError


def read_subgraphs(what: str, given: Any) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
    """Return the first and last nodes of each part that stays float."""
    try:
        return tuple((_read_ends(first), _read_ends(last)) for first, last in given or ())
    except (TypeError, ValueError) as error:
        raise RecipeError(
            f"{what} is a list of ([first nodes], [last nodes]), by name, not {given!r}."
        ) from error


def _read_ends(given: Any) -> tuple[str, ...]:
    if isinstance(given, str) or not all(isinstance(name, str) for name in given):
        raise TypeError(given)
    return tuple(given)


def read_excluded(what: str, given: Any) -> tuple[str, ...]:
    """Return names of nodes; a regular expression as Quark writes it begins with ^."""
    names = read_names(what, given)
    return tuple(f"re:{name[1:]}" if name.startswith("^") else name for name in names)


def unless_empty(path: str, read: Read = read_names) -> Row:
    """Return the row of a list, which asks for nothing where it is empty."""

    def row(what: str, given: Any) -> Changes:
        found = read(what, given)
        return {path: found} if found else {}

    return row


def read_percentiles(what: str, given: Any) -> tuple[float, ...]:
    """Return a list of percentiles."""
    try:
        return tuple(float(percentile) for percentile in given)
    except (TypeError, ValueError) as error:
        raise RecipeError(f"{what} is a list of percentiles, not {given!r}.") from error


def read_ranges(what: str, given: Any) -> dict[str, tuple[float, float]]:
    """Return the lowest and the highest value of each input."""
    ranges = read_mapping(what, given, "input names to [low, high]")
    return {name: read_pair(f"{what} of {name!r}", ends) for name, ends in ranges.items()}


def read_shapes(what: str, given: Any) -> dict[str, int | tuple[int, ...]]:
    """Return shapes from a dict, or from text such as "image:[1,3,8,8];mask:[1,8]"."""
    if isinstance(given, Mapping):
        return {
            str(name): sizes if isinstance(sizes, int) else tuple(sizes)
            for name, sizes in given.items()
        }
    found: dict[str, int | tuple[int, ...]] = {}
    for part in filter(None, str(given).replace(" ", "").split(";")):
        name, _, sizes = part.rpartition(":")
        if not name or not re.fullmatch(r"\[\d+(,\d+)*\]", sizes):
            raise RecipeError(f"{what} is like 'image:[1,3,224,224];mask:[1,8]', not {given!r}.")
        found[name] = tuple(int(size) for size in sizes[1:-1].split(","))
    return found


def read_op_type_pairs(what: str, given: Any) -> tuple[tuple[str, ...], ...]:
    """Return pairs of op types."""
    if not isinstance(given, tuple | list) or not all(
        isinstance(pair, tuple | list) and len(pair) == 2 for pair in given
    ):
        raise RecipeError(f"{what} is a list of pairs of op types, not {given!r}.")
    return tuple(tuple(pair) for pair in given)


def random_shapes(given: Any) -> Any:
    """Return shapes as random data takes them: by name, or one for each input."""
    if not len(given):
        return None
    if isinstance(given, Mapping):
        return dict(given)
    one_input = all(isinstance(size, int) for size in given)
    return [tuple(given)] if one_input else [tuple(sizes) for sizes in given]
