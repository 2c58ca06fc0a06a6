"""The contract: what every result keeps, whatever model it was made from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime

from zoo.case import Case, open_session, run, sqnr

# Whether ONNX Runtime takes signed activations, as on Arm, or keeps to x86's rules.
RULES = {"x86": "0", "arm": "1"}


class Broken(Exception):
    """The contract is broken, and how."""


@dataclass(frozen=True, slots=True)
class Found:
    """The error of the worst output that can be compared; None: there is none to compare."""

    sqnr: float | None
    output: str = ""


def check_result(case: Case, path: Path) -> Found:
    """Hold a written model against the float one.

    It loads at the default level under both rules, has the same inputs and outputs, gives outputs
    of the same shape, and no number that float does not give.
    """
    worst = Found(None)
    for rules, value in RULES.items():
        try:
            session = open_session(path, {"session.qdqisint8allowed": value})
        except Exception as error:
            raise Broken(f"does not load under the rules of {rules}: {error}") from error
        _check_interface(case, session)
        try:
            outputs = [run(session, sample) for sample in case.judged]
        except Exception as error:
            raise Broken(f"does not run under the rules of {rules}: {error}") from error
        found = _compare(case, outputs)
        if worst.sqnr is None or (found.sqnr is not None and found.sqnr < worst.sqnr):
            worst = found
    return worst


def own_error(case: Case) -> float:
    """Return how far the float model is from itself without the runtime's optimizations, in dB.

    Probabilities of a millionth, as a detector gives for noise, are off by a tenth of that.
    """
    session = open_session(case.path, optimized=False)
    found = _compare(case, [run(session, sample) for sample in case.judged])
    return math.inf if found.sqnr is None else found.sqnr


def _check_interface(case: Case, session: onnxruntime.InferenceSession) -> None:
    for side in ("get_inputs", "get_outputs"):
        before = [(x.name, x.type, x.shape) for x in getattr(case.session, side)()]
        after = [(x.name, x.type, x.shape) for x in getattr(session, side)()]
        if [b[:2] for b in before] != [a[:2] for a in after]:
            raise Broken(f"other {side[4:]}: {before} became {after}")
        for (name, _, old), (_, _, new) in zip(before, after, strict=True):
            # Some files declare a rank that their own outputs do not have.
            value = case.expected[0].get(name, np.empty([0] * len(old)))
            given = value.shape if isinstance(value, np.ndarray) else ()
            # What the file leaves open, the runtime may find out of one graph and not of another.
            if len(given) == len(old) and not _same_dims(case.declared[name], new):
                raise Broken(f"{side[4:-1]} {name!r} of shape {old} became one of shape {new}")


def _same_dims(old: list[int | str | None], new: list[int | str | None]) -> bool:
    """Return whether known sizes stayed; an open one may have become known, or got another name."""
    if not old or not new:
        return True
    return len(old) == len(new) and all(
        a == b or not isinstance(a, int) for a, b in zip(old, new, strict=True)
    )


def _compare(case: Case, outputs: list[dict[str, object]]) -> Found:
    worst = Found(None)
    for name, first in case.expected[0].items():
        if name in case.selected_outputs or not isinstance(first, np.ndarray):
            continue
        pairs = [(e[name], a[name]) for e, a in zip(case.expected, outputs, strict=True)]
        for expected, actual in pairs:
            if expected.shape != np.shape(actual):
                raise Broken(f"output {name!r} of shape {expected.shape} became {np.shape(actual)}")
        if first.dtype.kind != "f" or not first.size:
            continue
        found = np.concatenate([np.ravel(actual) for _, actual in pairs])
        wanted = np.concatenate([np.ravel(expected) for expected, _ in pairs])
        if not np.isfinite(found).all():
            raise Broken(f"output {name!r} has values that are no numbers")
        error = sqnr(wanted, found)
        if worst.sqnr is None or error < worst.sqnr:
            worst = Found(error, name)
    return worst
