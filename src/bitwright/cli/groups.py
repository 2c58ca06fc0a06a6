"""Options of commands as fields of dataclasses, which a command names as one parameter."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, field, fields, is_dataclass
from enum import Enum
from typing import Annotated, Any, get_type_hints

import typer

REQUIRED: Any = MISSING
"""The default of an option that has to be given."""
_OPTION, _SWITCH = "option", "switch"


def described(metavar: str | None, help: str, *flags: str, **more: Any) -> Any:
    """Return what typer asks of an option: its value's name, its sentence, its flags."""
    return typer.Option(*flags, metavar=metavar, help=help, **more)


def option(metavar: str | None, help: str, *flags: str, default: Any = None, **more: Any) -> Any:
    """Return the field of an option: its value's name, its sentence, its flags, more for typer."""
    return field(default=default, metadata={_OPTION: described(metavar, help, *flags, **more)})


def switch(help: str, *short: str) -> Any:
    """Return the field of an option that is given or not, and has no opposite."""
    return field(default=False, metadata={_SWITCH: (short, help)})


def expand_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with each dataclass among its parameters replaced by its fields.

    Typer makes an option of each field, in the place where the dataclass stands; the command gets
    the dataclass, made of what was typed. A field may be such a group itself.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    options: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        if parameter.name in groups:
            options += options_of(groups[parameter.name])
        else:
            options.append(_keyword(parameter.name, hints[parameter.name], parameter.default))

    @functools.wraps(command)
    def call(**values: Any) -> None:
        command(**{name: make_group(kind, values) for name, kind in groups.items()}, **values)

    call.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    return call


def options_of(group: Any) -> list[inspect.Parameter]:
    """Return a parameter for each field of a group, and of the groups among its fields."""
    hints = get_type_hints(group, include_extras=True)
    options: list[inspect.Parameter] = []
    for one in fields(group):
        kind, made = hints[one.name], one.metadata.get(_OPTION)
        if is_dataclass(kind):
            options += options_of(kind)
            continue
        if _SWITCH in one.metadata:
            short, help = one.metadata[_SWITCH]
            made = typer.Option(f"--{one.name.replace('_', '-')}", *short, help=help)
        default = inspect.Parameter.empty if one.default is MISSING else one.default
        options.append(_keyword(one.name, kind if made is None else Annotated[kind, made], default))
    return options


def arguments_of(group: Any, *without: str) -> dict[str, Any]:
    """Return the options of a group as arguments; groups among them say what they stand for."""
    found: dict[str, Any] = {}
    for name in (one.name for one in fields(group) if one.name not in without):
        value = getattr(group, name)
        own = value.arguments() if is_dataclass(value) else {name: value}  # type: ignore[union-attr]
        found |= {n: v.value if isinstance(v, Enum) else v for n, v in own.items()}
    return found


def _keyword(name: str, kind: Any, default: Any) -> inspect.Parameter:
    """Return a parameter by name only: then those with a default may stand before others."""
    only_by_name = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, only_by_name, default=default, annotation=kind)


def make_group(group: Any, values: dict[str, Any]) -> Any:
    """Return a group made of what was typed, which is taken out of the values."""
    hints = get_type_hints(group, include_extras=True)
    given = {}
    for name in (one.name for one in fields(group)):
        kind = hints[name]
        given[name] = make_group(kind, values) if is_dataclass(kind) else values.pop(name)
    return group(**given)


# The words that options take, for the completion of shells -----------------------------------


def complete_recipe(incomplete: str) -> list[str]:
    """Return the recipes whose names begin so, for the completion of shells."""
    from bitwright.recipe import RECIPES

    return [name for name in RECIPES if name.startswith(incomplete)]


def complete_target(incomplete: str) -> list[str]:
    """Return the targets whose names begin so."""
    from bitwright.recipe import TARGETS

    return [name for name in TARGETS if name.startswith(incomplete)]


def completing(*words: str) -> Callable[[str], list[str]]:
    """Return what completes one of a few words."""

    def complete(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return complete
