"""`include_fast_ft` and `extra_options["FastFinetune"]`, translated into a recipe's `fine_tune`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bitwright.compat.options import (
    Changes,
    Row,
    checked,
    choice,
    number,
    read_op_types,
    read_pair,
    read_switch,
    refused,
    to,
    translate,
    when_on,
)
from bitwright.errors import RecipeError
from bitwright.recipe import AdaQuant, AdaRound, FineTuning, LearningDetails

REG_PARAM_UNIT = 1000.0
"""Their regularizer is a sum over weights beside a plain error, ours a mean beside a relative one:
their default 0.01 does what our default 10 does."""


@dataclass(frozen=True, slots=True)
class FastFinetune:
    """The fine-tuning method, its device, and warnings for the caller."""

    method: FineTuning
    details: LearningDetails
    device: str = "cpu"
    notes: tuple[str, ...] = ()


def read_fast_finetune(options: Mapping[str, Any] | None) -> FastFinetune:
    """Return what the options ask for; an unknown one is an error with a suggestion."""
    given = dict(translate(options, OPTIONS, name="FastFinetune"))
    kind = given.pop("OptimAlgorithm", {}).get("kind", AdaRound)
    device = given.pop("OptimDevice", {}).get("device", "cpu")
    # A layer at a time, a sample at a time, scales as they are: what the numbers are meant for.
    fields: Changes = {"scope": "layer", "batch_size": 1}
    details: Changes = {}
    if kind is AdaQuant:
        fields["learn_scales"] = False
    notes = []
    for option, found in given.items():
        if "note" in found:
            notes.append(f"the option {option!r} of FastFinetune has no effect: {found['note']}.")
        elif all(name in kind.__struct_fields__ for name in found):
            fields |= found
        elif all(name in LearningDetails.__struct_fields__ for name in found) and (
            kind is AdaRound or option not in _OF_ADAROUND
        ):
            details |= found
        elif any(value is not False for value in found.values()):
            tag = kind.__struct_config__.tag
            notes.append(f"the option {option!r} of FastFinetune has no effect with {tag}.")
    return FastFinetune(kind(**fields), LearningDetails(**details), device, tuple(notes))


_OF_ADAROUND = ("RegParam", "BetaRange", "WarmStart")


# How values are read ----------------------------------------------------------------------------


def _algorithm(what: str, given: Any) -> Any:
    methods = {"adaround": AdaRound, "adaquant": AdaQuant}
    return choice(methods)(what, given.lower() if isinstance(given, str) else given)


def _device(what: str, given: Any) -> str:
    found = re.fullmatch(r"(cpu|cuda|hip)(:\d+)?", str(given).lower())
    if found is None:
        raise RecipeError(f"{what} is 'cpu', or one GPU such as 'cuda:0', not {given!r}.")
    # torch has one name for both makes.
    return "cpu" if found.group(1) == "cpu" else f"cuda{found.group(2) or ''}"


def _pair(name: str) -> Row:
    return lambda what, given: {} if given in ((), []) else {name: read_pair(what, given)}


def _patience(what: str, given: Any) -> Changes:
    # Theirs stands for a tenth of all steps where it is 1.
    patience = number(int, 1)(what, given)
    return {"patience": patience} if patience > 1 else {}


def _selective(what: str, given: Any) -> Changes:
    # Without a choice nothing has to be held out for it.
    if read_switch(what, given):
        return {"selective": True}
    return {"selective": False, "holdout_fraction": 0.0}


def _log_period(what: str, given: Any) -> Changes:
    number(int, 1)(what, given)
    return {"note": "progress shows each segment once"}


_ON_DEVICE = refused("segments lie on the device while they learn")

OPTIONS: dict[str, Row] = {
    "OptimAlgorithm": to("kind", _algorithm),
    "OptimDevice": to("device", _device),
    "FixedSeed": to("seed", number(int, 0)),
    "DataSize": to("samples", number(int, 1)),
    "BatchSize": to("batch_size", number(int, 1)),
    "NumBatches": _patience,
    "NumIterations": to("iterations", number(int, 1)),
    "LearningRate": to("learning_rate", number(float, 0)),
    "EarlyStop": to("early_stop"),
    "LRAdjust": _pair("learning_rate_above"),
    "TargetOpType": to("op_types", lambda what, given: read_op_types(what, given or "none")),
    "SelectiveUpdate": _selective,
    "UpdateBias": to("update_bias"),
    "OutputQDQ": to("output_pairs"),
    "DropRatio": to("drop_ratio", number(float, 0)),
    "Parallel": when_on({"sequential": False, "workers": None}),
    "RegParam": to("regularization", number(float, 0, REG_PARAM_UNIT)),
    "BetaRange": _pair("beta"),
    "WarmStart": to("warm_start", number(float, 0)),
    # Whatever the level: what segments read lies in files that are mapped into memory.
    "MemOptLevel": checked(choice({0: 0, 1: 1, 2: 2})),
    # Samples are stacked into batches wherever the segment computes each by itself.
    "DynamicBatch": checked(read_switch),
    "LogPeriod": _log_period,
    "InferDevice": refused(
        "all runs of ONNX Runtime take execution_providers; name the GPU's there",
        unless=("cpu", "CPU"),
    ),
    "OutputIndex": refused("each segment is judged by its own outputs"),
    "RefModelPath": refused("segments are compared with the float model that is given"),
    "CacheDir": refused("files lie in the system's temporary folder; set TMPDIR for another"),
    "SelectMaxMemLayer": refused("segments learn in the order of the graph"),
    "NumWorkers": refused(
        "segments read from memory; set Parallel to learn several at a time", unless=(0, 1)
    ),
    "PinMemory": _ON_DEVICE,
    "UseGDS": _ON_DEVICE,
}
"""The name of an option in FastFinetune -> its row."""
