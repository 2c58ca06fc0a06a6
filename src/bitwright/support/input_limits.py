"""Limits of what a file may ask for: a small one can name a billion nodes or tensors of 2^62."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace

from bitwright.errors import ArgumentError, BitwrightError, did_you_mean
from bitwright.support.arguments import check_arguments

# In the environment, so that worker processes have the same ones.
_VARIABLE = "BITWRIGHT_LIMITS"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputLimits:
    """What a model and its inputs may have at most."""

    nodes: int = 1_000_000
    """Nodes of all graphs, with each function counted wherever it is called."""
    nesting: int = 8
    """Bodies of If, Loop and Scan within each other."""
    elements: int = 1 << 31
    """Elements of one tensor that is made up: a random input."""
    unpacked: int = 1 << 30
    """Bytes of a file's compressed arrays once they are unpacked, which is all at once."""


def current_limits() -> InputLimits:
    """Return the limits that hold: those of `input_limits`, of `--limits` or of the environment."""
    return InputLimits(**read_limits(os.environ.get(_VARIABLE, "")))


def read_limits(text: str) -> dict[str, int]:
    """Read limits as they are written at `--limits` and in `BITWRIGHT_LIMITS`.

    >>> read_limits("nodes=2e6,nesting=20")
    {'nodes': 2000000, 'nesting': 20}
    """
    known = [field.name for field in fields(InputLimits)]
    given: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, number = (word.strip() for word in part.partition("="))
        if name not in known:
            raise ArgumentError(f"there is no limit {name!r}.{did_you_mean(name, known)}")
        if not re.fullmatch(r"[1-9]\d{0,18}(e\d{1,2})?", number):
            raise ArgumentError(f"the limit {part!r} is not NAME=NUMBER; write {name}=2000000.")
        given[name] = int(float(number)) if "e" in number else int(number)
    return given


@check_arguments
@contextmanager
def input_limits(
    *,
    nodes: int | None = None,
    nesting: int | None = None,
    elements: int | None = None,
    unpacked: int | None = None,
) -> Iterator[None]:
    """Raise or lower limits for what runs inside, worker processes too.

    They hold for the whole process, also for its other threads.

    >>> with input_limits(nesting=40):
    ...     current_limits().nesting
    40
    """
    limits = {"nodes": nodes, "nesting": nesting, "elements": elements, "unpacked": unpacked}
    text = ",".join(f"{name}={value}" for name, value in limits.items() if value is not None)
    given = replace(current_limits(), **read_limits(text))
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = ",".join(f"{name}={value}" for name, value in asdict(given).items())
    try:
        yield
    finally:
        os.environ.pop(_VARIABLE)
        if before is not None:
            os.environ[_VARIABLE] = before


def check_limit(name: str, value: int, what: str, error: type[BitwrightError]) -> None:
    """Refuse what is above a limit, and say how to raise it.

    >>> from bitwright.errors import ModelError
    >>> check_limit("nesting", 20, "the model has 20 bodies within each other", ModelError)
    Traceback (most recent call last):
    bitwright.errors.ModelError: the model has 20 bodies within each other, and the limit is 8; \
if that is right, set --limits nesting=20 (in Python: bitwright.input_limits(nesting=20)).
    """
    limit = asdict(current_limits())[name]
    if value > limit:
        raise error(
            f"{what}, and the limit is {limit}; if that is right, set --limits {name}={value} "
            f"(in Python: bitwright.input_limits({name}={value}))."
        )
