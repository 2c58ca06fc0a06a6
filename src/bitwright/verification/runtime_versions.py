"""What a version of ONNX Runtime refuses, computes wrongly or crashes on, by a measured table."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import onnx_ir as ir

from bitwright.errors import ModelError, TargetError
from bitwright.graph import infer_shapes, input_at, opset_of
from bitwright.targets.target import DATA, Consequence
from bitwright.verification.findings import Finding, Verification

_EFFECTS: Mapping[str, tuple[Consequence, str]] = {
    "refused": ("refused", "does not load"),
    "wrong": ("wrong", "computes wrongly"),
    "crash": ("refused", "crashes on"),
}


def verify_for_version(model: ir.Model, runtime: str) -> Verification:
    """Check a model against what a version of ONNX Runtime, as in '1.20', is known to do."""
    table = _table()
    known = [_number(name) for name in table["versions"]]
    found = re.fullmatch(r"(?:onnxruntime )?(\d+\.\d+)(?:\.\d+)?", runtime.strip())
    if found is None or _number(found[1]) < known[0]:
        first, *_, last = table["versions"]
        raise TargetError(
            f"nothing was measured of {runtime!r}; give a version of onnxruntime from {first} on, "
            f"such as {last}."
        )
    try:
        infer_shapes(model)
    except ModelError:  # the installed version crashes by it; it is another that is asked for
        infer_shapes(model, apart=True)
    version, opset = _number(found[1]), opset_of(model)
    limits = table["versions"][".".join(map(str, min(version, known[-1])))]
    findings = [
        Finding(rule, "", f"it has {rule} {given}, above {limits[rule]}", consequence="refused")
        for rule, given in (("opset", opset), ("ir", model.ir_version))
        if given > limits[rule]
    ]
    for node, fact in _facts(model, opset):
        for effect, (consequence, verb) in _EFFECTS.items():
            ends = [map(_number, pair) for pair in fact.get(effect, ())]
            if any(first <= version and (not last or version <= last) for first, last in ends):
                message = f"onnxruntime {found[1]} {verb} {fact['what']}"
                own: dict[str, Any] = {"remedy": fact["remedy"], "consequence": consequence}
                findings.append(Finding(node.op_type, node.name or "", message, **own))
    rules = ("opset", "ir", *dict.fromkeys(fact["op"] for fact in table["facts"]))
    return Verification(f"onnxruntime {found[1]}", rules, tuple(findings))


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads((DATA.parent / "runtimes.toml").read_text(encoding="utf-8"))


def _number(name: str) -> tuple[int, ...]:
    """Return a version as numbers; an open end of a range has none."""
    return tuple(map(int, name.split("."))) if name else ()


def _facts(model: ir.Model, opset: int) -> Iterator[tuple[ir.Node, dict[str, Any]]]:
    for node in model.graph.all_nodes():
        for fact in _table()["facts"]:
            same = (fact["op"], fact.get("domain", "")) == (node.op_type, node.domain)
            if same and opset >= fact.get("opset", 0) and _has(node, fact):
                yield node, fact


def _has(node: ir.Node, fact: Mapping[str, Any]) -> bool:
    """Whether a node has the attributes (True: any but 0), types and inputs of a fact."""
    for name, wanted in fact.get("attributes", {}).items():
        given = node.attributes[name].value if name in node.attributes else 0
        if (bool(given) if wanted is True else given) != wanted:
            return False
    types = {int(place): kind for place, kind in fact.get("types", {}).items()}
    values = {place: input_at(node, place) for place in (*types, *fact.get("present", ()))}
    if any(value is None for value in values.values()):
        return False
    kinds = {place: value.dtype and value.dtype.name for place, value in values.items() if value}
    maker = node.inputs[0].producer() if node.inputs and node.inputs[0] else None
    perm = maker.attributes.get_ints("perm", ()) if maker else ()
    fed = "perms" not in fact or [*(perm or ())] in fact["perms"]
    return fed and all(kinds[place] == kind for place, kind in types.items())
