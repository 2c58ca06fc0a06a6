"""`include_fast_ft` and `extra_options["FastFinetune"]`, translated into a recipe's `fine_tune`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bitwright.errors import RecipeError, did_you_mean
from bitwright.recipe import AdaQuant, AdaRound, FineTuning

__all__ = ["FastFinetune", "read_fast_finetune"]

REG_PARAM_UNIT = 1000.0
"""Their regularizer is a sum over weights beside a plain error, ours a mean beside a relative one:
their default 0.01 does what our default 10 does."""


@dataclass(slots=True)
class FastFinetune:
    """What was asked for: the method, the device it runs on, and what the caller is told."""

    method: FineTuning
    device: str = "cpu"
    sentences: list[str] = field(default_factory=list)


def read_fast_finetune(options: Mapping[str, Any] | None) -> FastFinetune:
    """Return what the options ask for; an unknown key is an error with a suggestion.

    >>> read_fast_finetune({"OptimAlgorithm": "adaquant", "NumIterations": 50}).method.iterations
    50
    >>> read_fast_finetune({"NumIteration": 50})
    Traceback (most recent call last):
    bitwright.errors.RecipeError: unknown option 'NumIteration' in FastFinetune. Did you mean \
'NumIterations'?
    """
    if options is not None and not isinstance(options, Mapping):
        raise RecipeError(f"option 'FastFinetune' is a dict, not {options!r}.")
    given = {key: value for key, value in (options or {}).items() if value is not None}
    for key in options or {}:
        known = {*_FIELDS, *_CHECKED, "OptimAlgorithm", "OptimDevice"}
        if key not in known:
            raise RecipeError(f"unknown option {key!r} in FastFinetune.{did_you_mean(key, known)}")
    kind = _algorithm(given.get("OptimAlgorithm", "adaround"))
    # A layer at a time, a sample at a time, scales as they are: what the numbers are meant for.
    fields: dict[str, Any] = {"scope": "layer", "batch_size": 1}
    if kind is AdaQuant:
        fields["learn_scales"] = False
    asked = FastFinetune(kind(), _device(given.get("OptimDevice", "cpu")))
    for key, value in given.items():
        if key in _CHECKED:
            asked.sentences += _CHECKED[key](key, value)
        elif key in _FIELDS:
            found = _FIELDS[key](key, value)
            if all(name in kind.__struct_fields__ for name in found):
                fields |= found
            elif value is not False:
                name = kind.__struct_config__.tag
                asked.sentences.append(
                    f"the option {key!r} of FastFinetune has no effect with {name}."
                )
    asked.method = kind(**fields)
    return asked


def _algorithm(value: Any) -> type[AdaRound] | type[AdaQuant]:
    kinds = {"adaround": AdaRound, "adaquant": AdaQuant}
    if not isinstance(value, str) or value.lower() not in kinds:
        raise RecipeError(
            f"option 'OptimAlgorithm' in FastFinetune is 'adaround' or 'adaquant', not {value!r}."
        )
    return kinds[value.lower()]  # type: ignore[return-value]


def _device(value: Any) -> str:
    found = re.fullmatch(r"(cpu|cuda|hip)(:\d+)?", str(value).lower())
    if found is None:
        raise RecipeError(
            f"option 'OptimDevice' in FastFinetune is 'cpu', or one GPU such as 'cuda:0', not "
            f"{value!r}."
        )
    # torch has one name for both makes.
    name = "cpu" if found.group(1) == "cpu" else "cuda"
    return name + (found.group(2) or "" if name == "cuda" else "")


# How values are read ----------------------------------------------------------------------------

Reader = Callable[[str, Any], dict[str, Any]]
Check = Callable[[str, Any], list[str]]


def _number(name: str, kind: type, least: float, unit: float = 1) -> Reader:
    def read(key: str, value: Any) -> dict[str, Any]:
        try:
            number = kind(value)
        except (TypeError, ValueError) as error:
            raise RecipeError(
                f"option {key!r} in FastFinetune is a number, not {value!r}."
            ) from error
        if isinstance(value, bool) or number != value or not number >= least:
            raise RecipeError(
                f"option {key!r} in FastFinetune is {'a whole' if kind is int else 'a'} number of "
                f"at least {least:g}, not {value!r}."
            )
        return {name: number * unit if unit != 1 else number}

    return read


def _flag(read_flag: Callable[[bool], dict[str, Any]]) -> Reader:
    def read(key: str, value: Any) -> dict[str, Any]:
        return read_flag(_as_flag(key, value))

    return read


def _as_flag(key: str, value: Any) -> bool:
    if not isinstance(value, bool | int) or int(value) not in (0, 1):
        raise RecipeError(f"option {key!r} in FastFinetune is True or False, not {value!r}.")
    return bool(value)


def _pair(name: str) -> Reader:
    def read(key: str, value: Any) -> dict[str, Any]:
        if isinstance(value, Sequence) and not value:
            return {}
        try:
            first, second = (float(number) for number in value)
        except (TypeError, ValueError) as error:
            raise RecipeError(
                f"option {key!r} in FastFinetune is a pair of numbers, not {value!r}."
            ) from error
        return {name: (first, second)}

    return read


def _op_types(key: str, value: Any) -> dict[str, Any]:
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise RecipeError(f"option {key!r} in FastFinetune is a list of op types, not {value!r}.")
    return {"op_types": tuple(value)}


def _window(key: str, value: Any) -> dict[str, Any]:
    # Theirs stands for a tenth of all steps where it is 1.
    found = _number("patience", int, 1)(key, value)
    return found if found["patience"] > 1 else {}


_FIELDS: dict[str, Reader] = {
    "FixedSeed": _number("seed", int, 0),
    "DataSize": _number("samples", int, 1),
    "BatchSize": _number("batch_size", int, 1),
    "NumBatches": _window,
    "NumIterations": _number("iterations", int, 1),
    "LearningRate": _number("learning_rate", float, 0),
    "EarlyStop": _flag(lambda on: {"early_stop": on}),
    "LRAdjust": _pair("learning_rate_above"),
    "TargetOpType": _op_types,
    # Without a choice nothing has to be held out for it.
    "SelectiveUpdate": _flag(
        lambda on: {"selective": True} if on else {"selective": False, "holdout_fraction": 0.0}
    ),
    "UpdateBias": _flag(lambda on: {"update_bias": on}),
    "OutputQDQ": _flag(lambda on: {"output_pairs": on}),
    "DropRatio": _number("drop_ratio", float, 0),
    "Parallel": _flag(lambda on: {"sequential": False, "workers": None} if on else {}),
    "RegParam": _number("regularization", float, 0, REG_PARAM_UNIT),
    "BetaRange": _pair("beta"),
    "WarmStart": _number("warm_start", float, 0),
}


def _refuse(reason: str, *, unless: tuple[Any, ...] = (False, "", 0)) -> Check:
    """Refuse a value that asks for something; those in `unless` ask for what happens anyway."""

    def check(key: str, value: Any) -> list[str]:
        if value not in unless:
            raise RecipeError(f"option {key!r} in FastFinetune is not supported: {reason}.")
        return []

    return check


def _memory_level(key: str, value: Any) -> list[str]:
    # Whatever the level: what segments read lies in files that are mapped into memory.
    if value not in (0, 1, 2):
        raise RecipeError(f"option {key!r} in FastFinetune is 0, 1 or 2, not {value!r}.")
    return []


def _log_period(key: str, value: Any) -> list[str]:
    _number("log_period", int, 1)(key, value)
    return [f"the option {key!r} of FastFinetune has no effect: each segment is told once."]


def _any_flag(key: str, value: Any) -> list[str]:
    _as_flag(key, value)
    return []


_CHECKED: dict[str, Check] = {
    "MemOptLevel": _memory_level,
    # Samples are stacked into batches wherever the segment computes each by itself.
    "DynamicBatch": _any_flag,
    "LogPeriod": _log_period,
    "InferDevice": _refuse(
        "all runs of ONNX Runtime take execution_providers; name the GPU's there",
        unless=("cpu", "CPU"),
    ),
    "OutputIndex": _refuse("each segment is judged by its own outputs"),
    "RefModelPath": _refuse("segments are held against the float model that is given"),
    "CacheDir": _refuse("files lie in the system's temporary folder; set TMPDIR for another"),
    "SelectMaxMemLayer": _refuse("segments learn in the order of the graph"),
    "NumWorkers": _refuse(
        "segments read from memory; set Parallel to learn several at a time", unless=(0, 1)
    ),
    "PinMemory": _refuse("segments lie on the device while they learn"),
    "UseGDS": _refuse("segments lie on the device while they learn"),
}
