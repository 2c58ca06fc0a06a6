"""Groups of options that several commands share, each a dataclass."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

__all__ = ["expand_groups"]


def expand_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with each dataclass among its parameters replaced by its fields.

    Typer makes an option of each field, in the place where the dataclass stands; the command gets
    the dataclass, made of what was typed.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Size:
    ...     width: int = 1
    ...     height: int = 2
    >>> def draw(name: str, *, size: Size, bold: bool = False) -> None:
    ...     print(name, size)
    >>> list(inspect.signature(expand_groups(draw)).parameters)
    ['name', 'width', 'height', 'bold']
    >>> expand_groups(draw)(name="box", width=5, height=2, bold=True)
    box Size(width=5, height=2)
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    options: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        if parameter.name in groups:
            options += _options_of(groups[parameter.name])
        else:
            # By name only: then those with a default may stand before those without.
            options.append(
                parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=hints[parameter.name])
            )

    @functools.wraps(command)
    def call(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    call.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    return call


def _options_of(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=hints[field.name],
        )
        for field in fields(group)
    ]
