"""The verbs: what is tried on each model, and the bar that the error of each is held against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx

import bitwright
from zoo.again import CALIBRATION, ask_other_process, digests_of
from zoo.case import Case, digest_of
from zoo.contract import Broken, check_result, own_error
from zoo.journal import Outcome


@dataclass(frozen=True, slots=True)
class Done:
    """What a verb gave: its outcome, the error of its result, and what more there is to say."""

    outcome: Outcome = "passed"
    reason: str = ""
    sqnr: float | None = None
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb by name; `heavy` ones are tried after all others."""

    name: str
    run: Callable[[Case, Path], Done]
    heavy: bool = False


def _quantizing(
    recipe: str | dict[str, Any] | None,
    bar: float,
    *,
    samples: int = CALIBRATION,
    **options: Any,
) -> Callable[[Case, Path], Done]:
    def quantize(case: Case, folder: Path) -> Done:
        path = folder / "quantized.onnx"
        data = case.calibration[:samples]
        result = bitwright.quantize(
            case.path, path, data=data, recipe=recipe, progress=False, **options
        )
        placed = any(node.times is not None for node in result.plan.nodes.values())
        if not result.quantized and not placed:
            raise Broken("a silent no-op: nothing was quantized, and no error said so")
        return _judge(case, path, bar)

    return quantize


def _judge(case: Case, path: Path, bar: float) -> Done:
    found = check_result(case, path)
    digest = digest_of(path.read_bytes())
    if found.sqnr is not None and found.sqnr < bar:
        reason = f"output {found.output!r} is below {bar:g} dB"
        return Done("low", reason, found.sqnr, digest)
    return Done(sqnr=found.sqnr, digest=digest)


def _inspect(case: Case, folder: Path) -> Done:
    found = bitwright.inspect(case.path)
    graph = onnx.load(case.path, load_external_data=False).graph
    # Node tests of integer operators are quantized models.
    is_integer = any("Integer" in node.op_type or "Linear" in node.op_type for node in graph.node)
    if found.is_quantized and not is_integer:
        raise Broken("inspect takes a float model for a quantized one")
    return Done()


def _preprocess(case: Case, folder: Path) -> Done:
    path = folder / "prepared.onnx"
    bitwright.preprocess(case.path, path)
    # float16 keeps 11 bits, so folding moves the last of them.
    half = "half" in case.path.stem
    done = _judge(case, path, 30 if half else 80)
    if done.outcome == "low" and done.sqnr is not None:
        if done.sqnr < own_error(case) - MAX_BEHIND:
            raise Broken(f"preprocessing changed the function: {done.sqnr:.1f} dB")
        done = replace(done, outcome="passed", reason="")
    return done


def _plan(case: Case, folder: Path) -> Done:
    plan = bitwright.make_plan(case.path, data=case.calibration[:CALIBRATION], progress=False)
    plan.save(folder / "plan.json")
    bitwright.apply_plan(plan, case.path, folder / "planned.onnx", progress=False)
    bitwright.apply_plan(folder / "plan.json", case.path, folder / "again.onnx", progress=False)
    if (folder / "planned.onnx").read_bytes() != (folder / "again.onnx").read_bytes():
        raise Broken("a plan that was saved and read gives another model")
    return _judge(case, folder / "planned.onnx", STATIC_BAR)


def _static(case: Case, folder: Path) -> tuple[Path, bitwright.Result]:
    """Return the model as it is quantized by default, and where it is; made once for all verbs."""
    path = folder / "static.onnx"
    result = _results.get(case.path)
    if result is None:
        result = bitwright.quantize(
            case.path,
            path,
            data=case.calibration[:CALIBRATION],
            purpose="size",
            progress=False,
        )
        _results.clear()
        _results[case.path] = result
    else:
        result.save(path)
    return path, result


_results: dict[Path, bitwright.Result] = {}
"""The last model's result."""


def _quantize_by_default(case: Case, folder: Path) -> Done:
    path, result = _static(case, folder)
    if not result.quantized:
        raise Broken("a silent no-op: nothing was quantized, and no error said so")
    return _judge(case, path, STATIC_BAR)


def _verify(case: Case, folder: Path) -> Done:
    path, _ = _static(case, folder)
    for cpu in ("avx2", "vnni", "arm"):
        found = bitwright.verify(path, cpu=cpu)
        if not found.ok:
            raise Broken(f"verify ({cpu}) finds errors in our own result: {found.findings[:2]}")
    return Done()


def _compare(case: Case, folder: Path) -> Done:
    path, result = _static(case, folder)
    found = bitwright.compare(case.path, path, data=case.judged, plan=result.plan, progress=False)
    names = {output.name for output in onnx.load(path, load_external_data=False).graph.output}
    if not {output.name for output in found.outputs} <= names:
        raise Broken("compare names outputs that the model does not have")
    return Done()


def _sensitivity(case: Case, folder: Path) -> Done:
    _, result = _static(case, folder)
    found = bitwright.find_sensitivity(
        case.path, result.plan, data=case.judged, limit=1, candidates=3, progress=False
    )
    if not found.nodes:
        raise Broken("sensitivity measured no node")
    return Done()


def _report(case: Case, folder: Path) -> Done:
    path, result = _static(case, folder)
    page = folder / "report.html"
    bitwright.write_report(
        case.path,
        path,
        page,
        data=case.judged,
        plan=result.plan,
        latency=False,
        sensitivity=False,
        progress=False,
    )
    if page.stat().st_size < 1000:
        raise Broken("the report is empty")
    return Done()


def _same_bytes(case: Case, folder: Path) -> Done:
    """Quantize again in a process with another hash seed: the files are the same."""
    if case.draws:
        return Done(reason="the model draws at random, so that no two calibrations are the same")
    here, there = digests_of(case), ask_other_process(case.path)
    other = [name for name, digest in here.items() if there[name] != digest]
    if other:
        raise Broken(f"other bytes under another PYTHONHASHSEED: {', '.join(other)}")
    return Done()


# The bars, in dB. Weights are random and most networks here have no redundancy, so they lie far
# below what trained networks reach; a result below its bar gets its cause in the table.
STATIC_BAR = 15.0
# Preprocessing changes the order of sums, as the runtime's own optimizations do.
MAX_BEHIND = 10.0
VERBS = (
    Verb("inspect", _inspect),
    Verb("preprocess", _preprocess),
    Verb("static", _quantize_by_default),
    Verb("dynamic", _quantizing("int8-dynamic", STATIC_BAR, force_dynamic=True)),
    Verb("int4-rtn", _quantizing("int4-rtn", 8)),
    Verb("int4-gptq", _quantizing("int4-gptq", 8, samples=2)),
    Verb("per-tensor", _quantizing("int8", 8)),
    Verb(
        "qoperator",
        _quantizing({"base": "int8-per-channel", "format": "qoperator"}, STATIC_BAR),
    ),
    Verb("a16w8", _quantizing("a16w8", 25)),
    Verb("a8w4", _quantizing("a8w4", 4)),
    Verb("npu-cnn", _quantizing(None, 5, target="npu-cnn")),
    Verb("plan", _plan),
    Verb("verify", _verify),
    Verb("int4-awq", _quantizing("int4-awq", 8, samples=2)),
    Verb(
        "bias-correction",
        _quantizing({"base": "int8-per-channel", "bias_correction": "sequential"}, STATIC_BAR),
    ),
    Verb("compare", _compare),
    Verb("sensitivity", _sensitivity, heavy=True),
    Verb("report", _report, heavy=True),
    Verb("effort-medium", _quantizing(None, STATIC_BAR, samples=8, effort="medium"), heavy=True),
    Verb(
        "adaround",
        _quantizing(
            {
                "base": "int8-per-channel",
                "fine_tune": {"method": "adaround", "iterations": 5},
            },
            STATIC_BAR,
        ),
        heavy=True,
    ),
    Verb("same-bytes", _same_bytes, heavy=True),
)


def find_verbs(names: Sequence[str]) -> list[Verb]:
    """Return verbs by name; `main` and `heavy` stand for the ones of their kind, `all` for all."""
    groups = {
        "all": VERBS,
        "main": tuple(verb for verb in VERBS if not verb.heavy),
        "heavy": tuple(verb for verb in VERBS if verb.heavy),
    }
    by_name = {verb.name: (verb,) for verb in VERBS}
    return [verb for name in names for verb in (groups | by_name)[name]]
