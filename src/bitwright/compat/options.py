"""Options of other tools, translated into a recipe by tables: one row an option.

A row reads the value of an option and returns the fields that it sets, by their paths:
`{"emulate.weight_pairs": True}`. `to` makes the row of an option that sets one field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bitwright.errors import RecipeError, did_you_mean
from bitwright.recipe import Emulation, Placement, Selection, SmoothQuant
from bitwright.support.wording import warn_user

Read = Callable[[str, Any], Any]
"""Checks a value and returns it as a recipe has it; the first argument names it in errors."""
Changes = dict[str, Any]
"""The path of a field -> its value."""
Row = Callable[[str, Any], Changes]


@dataclass(slots=True)
class RecipeParts:
    """The fields of a recipe, gathered option by option: a dict for each part of it."""

    asked: dict[str, Any] = field(default_factory=dict)
    """What several fields follow from: a method, a target, switches of whole steps."""
    recipe: dict[str, Any] = field(default_factory=dict)
    select: dict[str, Any] = field(default_factory=dict)
    place: dict[str, Any] = field(default_factory=dict)
    emulate: dict[str, Any] = field(default_factory=dict)
    calibration: dict[str, Any] = field(default_factory=dict)
    smooth: dict[str, Any] = field(default_factory=dict)
    rewrite: dict[str, Any] = field(default_factory=dict)
    simulate: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)
    equalize: dict[str, Any] = field(default_factory=dict)
    fuse: dict[str, Any] = field(default_factory=dict)
    fuse_pairs: dict[str, Any] = field(default_factory=dict)
    bias: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    fine_tune: dict[str, Any] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    """The path of a field -> the option that set it."""
    notes: list[str] = field(default_factory=list)
    """What the caller is warned of."""

    def apply(self, option: str, changes: Changes) -> None:
        """Set the fields that an option asks for."""
        for path, value in changes.items():
            section, name = path.split(".", 1)
            getattr(self, section)[name] = value
            self.options[path] = option

    def drop(self, path: str, reason: str) -> None:
        """Forget what an option asked for, with a warning, where it has no effect.

        A switch that is off asks for nothing, so it is forgotten in silence.
        """
        section, name = path.split(".", 1)
        if getattr(self, section).pop(name) is False:
            return
        warn_user(f"option {self.options.get(path, name)!r} is ignored: {reason}.")

    def choose_nodes(
        self,
        op_types: Sequence[str] | None,
        nodes: Sequence[str] | None,
        exclude: Sequence[str] | None,
    ) -> None:
        """Select nodes as the arguments of the same meaning do: an empty list asks for nothing."""
        for name, argument, given in (
            ("op_types", "op_types_to_quantize", op_types),
            ("nodes", "nodes_to_quantize", nodes),
            ("exclude", "nodes_to_exclude", exclude),
        ):
            names = read_names(argument, given)
            if names:
                self.select[name] = names

    def build(self) -> dict[str, Any]:
        """Return the recipe's fields."""
        settings = dict(self.smooth)
        asked = settings.pop("asked", None)
        folding: dict[str, Any] = {}
        if "folding" in settings:
            folding["smooth_folding"] = settings.pop("folding")
        if asked is None and (settings or folding):
            raise RecipeError(
                "SmoothQuantAlpha and SmoothQuantFolding go with SmoothQuant=True; add it."
            )
        # Other tools look at what is observed alone, and only static recipes have ranges.
        observed: dict[str, Any] = {"cut_saturated": False, "known_ranges": False}
        is_static = self.recipe.get("mode", "static") == "static"
        # They write the type that they are told, as pairs for accelerators are written anyway.
        told = is_static and not self.place.get("isolated")
        signed: dict[str, Any] = {"unsigned_activations": False} if told else {}
        return {
            **self.recipe,
            "smooth": SmoothQuant(**settings) if asked else None,
            "select": Selection(**self.select),
            "place": Placement(**{**signed, **self.place}),
            "emulate": Emulation(**(observed if is_static else {}), **folding, **self.emulate),
        }


def translate(
    options: Any, rows: Mapping[str, Row], *, name: str = "extra_options", ignore: bool = False
) -> Iterator[tuple[str, Changes]]:
    """Yield each option that is given with what it changes; one of None asks for nothing.

    With `ignore`, an unknown option is ignored with a warning, else it is an error.
    """
    where = "" if name == "extra_options" else f" in {name}"
    given = read_mapping(name, options, "option names")
    known = ignore_unknown(given, rows, where) if ignore else given
    refuse_unknown(known, rows, where)
    for key, value in known.items():
        yield key, {} if value is None else rows[key](f"option {key!r}{where}", value)


def refuse_unknown(given: Iterable[Any], known: Iterable[str], where: str = "") -> None:
    """Refuse a key that is not among the known ones, with a suggestion."""
    names = list(known)
    for key in given:
        if key not in names:
            raise RecipeError(f"unknown option {key!r}{where}.{did_you_mean(key, names)}")


def ignore_unknown(
    given: Mapping[str, Any], known: Iterable[str], where: str = ""
) -> dict[str, Any]:
    """Return what is known of the given settings, with a warning about the others.

    A setting that is None, as callers pass for what they do not use, asks for nothing.
    """
    names = list(known)
    for key in given:
        if key not in names and given[key] is not None:
            warn_user(f"option {key!r}{where} is unknown and ignored.{did_you_mean(key, names)}")
    return {key: value for key, value in given.items() if key in names}


# Rows -----------------------------------------------------------------------------------------


def to(path: str, read: Read | None = None) -> Row:
    """Return the row of an option that sets one field; without `read` it is True or False."""
    return lambda what, value: {path: (read or read_switch)(what, value)}


def as_given(_: str, value: Any) -> Any:
    """Return a value that is read later, with others."""
    return value


def when_on(changes: Changes) -> Row:
    """Return the row of a switch that makes these changes where it is on, and none otherwise."""
    return lambda what, value: changes if read_switch(what, value) else {}


def checked(read: Read) -> Row:
    """Return the row of an option that is only checked, since what it asks for happens anyway."""

    def row(what: str, value: Any) -> Changes:
        read(what, value)
        return {}

    return row


def only(wanted: bool | str, reason: str) -> Row:
    """Return the row of an option of which only one value is what happens here."""

    def row(what: str, value: Any) -> Changes:
        found = read_switch(what, value) if isinstance(wanted, bool) else value
        if found != wanted:
            raise RecipeError(f"{what} must be {wanted!r}, not {value!r}: {reason}.")
        return {}

    return row


def refused(reason: str, *, unless: Sequence[Any] = (False, "", {}, [])) -> Row:
    """Return the row of an option that is not supported; values in `unless` ask for nothing."""

    def row(what: str, value: Any) -> Changes:
        if value not in unless:
            raise RecipeError(f"{what} is not supported: {reason}.")
        return {}

    return row


def without_effect(reason: str) -> Row:
    """Return the row of an option that changes nothing in the model: the caller is told so."""

    def row(what: str, value: Any) -> Changes:
        if value is not False:
            warn_user(f"{what} has no effect: {reason}.")
        return {}

    return row


# Values ---------------------------------------------------------------------------------------


def find_name(name: Any, known: Mapping[str, Any], what: str) -> Any:
    """Return the value of a name, or raise with a suggestion."""
    if name not in known:
        raise RecipeError(f"unknown {what} {name!r}.{did_you_mean(str(name), known)}")
    return known[name]


def read_switch(what: str, given: Any) -> bool:
    """Return what is True or False, or 1 or 0; None is False."""
    if given is None:
        return False
    if not isinstance(given, bool | np.bool_ | int) or given not in (0, 1):
        raise RecipeError(f"{what} is True or False, not {given!r}.")
    return bool(given)


def negated(what: str, given: Any) -> bool:
    """Return the opposite of a switch."""
    return not read_switch(what, given)


def read_names(what: str, given: Any, kind: str = "names") -> tuple[str, ...]:
    """Return a list of names; None is an empty one."""
    if given is None:
        return ()
    is_list = isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping)
    names = tuple(given) if is_list else (None,)
    if not all(isinstance(name, str) for name in names):
        raise RecipeError(f"{what} is a list of {kind}, not {given!r}.")
    return names


read_op_types = partial(read_names, kind="op types")


def read_mapping(what: str, given: Any, keys: str) -> Mapping[str, Any]:
    """Return a dict with names as its keys; None is an empty one."""
    given = {} if given is None else given
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise RecipeError(f"{what} is a dict of {keys}, not {given!r}.")
    return given


def read_path(what: str, given: Any) -> str | Path:
    """Return the path of a file or folder."""
    if not isinstance(given, str | Path):
        raise RecipeError(f"{what} is a path, not {given!r}.")
    return given


def read_pair(what: str, given: Any) -> tuple[float, float]:
    """Return two numbers."""
    try:
        first, second = (float(number) for number in given)
    except (TypeError, ValueError) as error:
        raise RecipeError(f"{what} is a pair of numbers, not {given!r}.") from error
    return first, second


def number(kind: type, least: float, unit: float = 1) -> Read:
    """Return a reader of numbers from `least` on, given in units of so much."""
    name = "a whole number" if kind is int else "a number"

    def read(what: str, given: Any) -> Any:
        try:
            found = kind(given)
        except (TypeError, ValueError, OverflowError) as error:
            raise RecipeError(f"{what} is {name}, not {given!r}.") from error
        is_cut = kind is int and found != given and not isinstance(given, str)
        if isinstance(given, bool) or is_cut or not found >= least:
            raise RecipeError(f"{what} is {name} of at least {least:g}, not {given!r}.")
        return found if unit == 1 else found * unit

    return read


def choice(values: Mapping[Any, Any], remark: str = "") -> Read:
    """Return a reader of one of a few values, or of an enumeration's members by their names."""

    def read(what: str, given: Any) -> Any:
        name = getattr(given, "name", given)
        try:
            return values[name]
        except (KeyError, TypeError) as error:
            *others, last = map(repr, values)
            hint = did_you_mean(name, map(str, values))
            raise RecipeError(
                f"{what} is {', '.join(others)} or {last}, not {name!r}{remark}."
                f"{hint if 'mean' in hint else ''}"
            ) from error

    return read
