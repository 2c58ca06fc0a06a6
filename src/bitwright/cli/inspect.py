"""`bitwright inspect`: what is in a model, and what of it is quantized."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bitwright.cli.groups import complete_target, described
from bitwright.cli.screen import Facts, Json, Part, Screen, Table, Verbose, show_bytes

if TYPE_CHECKING:
    from bitwright.assess import Inspection
    from bitwright.jobs.choices import Choice


def inspect_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Any .onnx file.")],
    target: Annotated[
        str | None,
        described(
            "NAME", "Also say whether this target can run it.", autocompletion=complete_target
        ),
    ] = None,
    choices: Annotated[
        bool, described(None, "Also say what can be done with a float model.", "--choices")
    ] = False,
    data: Annotated[
        Path | None,
        described("PATH", "With --choices: data for its commands, which knows the open sizes."),
    ] = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Show a model's ops, types, sizes, and what is quantized.

    'bitwright MODEL' also says what can be done with it (--choices), with the size and the time
    that are expected.
    """
    from bitwright import graph
    from bitwright.api import inspect, verify

    facts = inspect(model)
    size = graph.file_size(model)
    document = {"model": str(model), "file_bytes": size, **facts.to_dict()}
    parts = _parts(model, size, facts)
    if target is not None:
        found = verify(model, target)
        document["verification"] = found.to_dict()
        parts.insert(1, Facts([("Target", found.describe())]))
    if choices and not facts.is_quantized:
        from bitwright.jobs.choices import find_choices

        found_choices = find_choices(model, data)
        document["choices"] = [choice._asdict() for choice in found_choices]
        parts.append(_choices_part(found_choices, size))
    Screen(as_json=as_json, verbose=verbose).show(document, parts)


def _choices_part(choices: Sequence[Choice], size: int) -> Table:
    rows = [
        (
            choice.what,
            f"{show_bytes(choice.size)} ({choice.size / size:.0%})".replace("%", " %"),
            "measured once it is written" if choice.time is None else f"{choice.time:.2f}",
            choice.command,
        )
        for choice in choices
    ]
    columns = ("what", "size, about", "time over prepared float", "command")
    return Table("What can be done", columns, rows)


def _parts(model: Path, size: int, facts: Inspection) -> list[Part]:
    rows = [("Model", str(model)), ("Size", show_bytes(size)), *facts.facts()]
    made_by = _recipe_name(facts.metadata.get("bitwright.recipe"))
    rows += [("Recipe", made_by)] if made_by and facts.is_quantized else []
    return [Facts(rows), *(Table(*section) for section in facts.sections())]


def _recipe_name(text: str | None) -> str | None:
    """Return the name in the metadata; whoever wrote the file may have written anything there."""
    try:
        found = json.loads(text or "null")
    except ValueError:
        return None
    return str(found["name"]) if isinstance(found, dict) and "name" in found else None
