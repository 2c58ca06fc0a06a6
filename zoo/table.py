"""The table: counts by verb and exporter, every reason of a refusal, every low SQNR's cause."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from zoo.journal import RESULTS, Record, write_records
from zoo.verbs import VERBS

OUTCOMES = ("passed", "low", "refused", "failed")
MAX_DIFFERENCE = 1.0
"""dB between the results of two exporters of the same network."""
QUIET = 60.0
"""Above this, in dB, two exporters' results differ by roundings alone."""


def write_results(records: Sequence[Record], folder: Path) -> None:
    """Write the records themselves, from which other machines go on, and the table."""
    write_records(records, folder / RESULTS)
    ordered = sorted(records, key=lambda record: record.key)
    (folder / "results.md").write_text(make_table(ordered), encoding="utf-8")


def make_table(records: Sequence[Record]) -> str:
    """Return the whole table as Markdown."""
    parts = [
        "# What the zoo found\n",
        "Made by `python -m zoo table`; `README.md` says what is tried and what the words mean.\n",
        "## Architectures\n",
        _architectures(records),
        "## By verb\n",
        _by_verb(records),
        "## Failures\n",
        _failures(records),
        "## Refusals and their reasons\n",
        _refusals(records),
        "## Errors above the bar, and why\n",
        _low(records),
        "## Exporters that differ by more than 1 dB\n",
        _differences(records),
        "## Not exported\n",
        _not_exported(records),
    ]
    return "\n".join(parts)


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(map(_cell, row)) + " |" for row in rows]
    if not lines:
        return "None.\n"
    rule = "|" + "---|" * len(head)
    return "\n".join(["| " + " | ".join(head) + " |", rule, *lines]) + "\n"


def _cell(value: object) -> str:
    return str(value).replace("|", "/").replace("\n", " ")


def _tried(records: Iterable[Record]) -> list[Record]:
    return [r for r in records if r.verb != "export" and r.outcome != "not exported"]


def library_of(record: Record) -> str:
    """Return the part of an architecture's name before its first slash."""
    return record.architecture.partition("/")[0]


def _architectures(records: Sequence[Record]) -> str:
    """Count networks by library and exporter: passed means that no verb failed on any export."""
    groups: dict[tuple[str, str], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for record in _tried(records):
        key = (library_of(record), record.exporter)
        groups[key]["tried"].add(record.architecture)
        groups[key][record.outcome].add(record.architecture)
    rows = []
    for (library, exporter), found in sorted(groups.items()):
        refused = found["refused"] - found["passed"] - found["failed"] - found["low"]
        passed = found["tried"] - found["failed"] - refused
        counts = (len(found["tried"]), len(passed), len(refused), len(found["failed"]))
        rows.append((library, exporter, *counts))
    total = {r.architecture for r in _tried(records)}
    failed = {r.architecture for r in records if r.outcome == "failed"}
    whole = find_whole(records)
    text = _table(("library", "exporter", "tried", "passed", "refused", "failed"), rows)
    return (
        f"{text}\n{len(total)} models in all, {len(failed)} with a failure; {len(whole)} of them "
        f"through all {len(VERBS)} verbs. Passed: at least one verb kept the contract and none "
        "broke it; refused: every verb said why not.\n"
    )


def find_whole(records: Sequence[Record]) -> set[str]:
    """Return the architectures of which one export at least went through every verb."""
    tried: dict[tuple[object, ...], set[str]] = defaultdict(set)
    for record in _tried(records):
        tried[record.key[:4]].add(record.verb)
    every = {verb.name for verb in VERBS}
    return {str(key[0]) for key, verbs in tried.items() if verbs >= every}


def _by_verb(records: Sequence[Record]) -> str:
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for record in _tried(records):
        counts[record.verb, record.exporter][record.outcome] += 1
    order = [verb.name for verb in VERBS]
    rows = [
        (verb, exporter, *(count[outcome] for outcome in OUTCOMES))
        for (verb, exporter), count in sorted(
            counts.items(), key=lambda item: (order.index(item[0][0]), item[0][1])
        )
    ]
    return _table(("verb", "exporter", *OUTCOMES), rows)


def _name(record: Record) -> str:
    return f"{record.architecture} ({record.exporter} {record.opset} {record.variant})"


def _failures(records: Sequence[Record]) -> str:
    failed = [r for r in records if r.outcome == "failed"]
    rows = [(_name(r), r.verb, r.reason[:300]) for r in failed]
    return _table(("model", "verb", "what happened"), rows)


def plain_reason(reason: str) -> str:
    """Return a reason without the names and numbers of one model, to count those alike.

    >>> plain_reason("output 'y' of shape [1, 3] has 12 values (the first of 2)")
    "output '…' of shape […] has # values (…)"
    >>> plain_reason("cannot load model from /home/a/b.onnx: it is cut off")
    'cannot load model from …: it is cut off'
    """
    reason = re.sub(r"\((?:[^()]|\([^()]*\))*\)", "(…)", reason)
    reason = re.sub(r"'[^']*'", "'…'", reason)
    reason = re.sub(r"\[[^\]]*\]", "[…]", reason)
    reason = re.sub(r"(?<!\S)/[^\s:]+", "…", reason)
    return re.sub(r"\d+", "#", reason)[:300]


def _refusals(records: Sequence[Record]) -> str:
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in _tried(records):
        if record.outcome == "refused":
            groups[record.verb, plain_reason(record.reason)].append(record)
    rows = [
        (verb, len(found), reason, found[0].architecture)
        for (verb, reason), found in sorted(groups.items())
    ]
    return _table(("verb", "models", "reason", "for example"), rows)


def _low(records: Sequence[Record]) -> str:
    by_key = {record.key: record for record in records}
    rows = [
        (_name(r), r.verb, f"{r.sqnr:.1f}", r.facts.get("cause") or find_cause(r, by_key))
        for r in records
        if r.outcome == "low"
    ]
    return _table(("model", "verb", "SQNR in dB", "cause"), rows)


# Weights of 4 bits, or scales that are powers of two: the format itself is coarse.
_COARSE = {
    "a8w4": "weights of 4 bits with one scale per channel",
    "int4-rtn": "weights of 4 bits, rounded without data",
    "int4-gptq": "weights of 4 bits, two samples to round by",
    "int4-awq": "weights of 4 bits, two samples to scale by",
    "npu-cnn": "power-of-two scales, one per tensor",
    "per-tensor": "one scale per weight",
}


def find_cause(record: Record, by_key: dict[tuple[str, str, int, str, str], Record]) -> str:
    """Return why a result is below its bar, from what other recipes reach on the same model."""

    def reached(verb: str) -> float | None:
        other = by_key.get((*record.key[:4], verb))
        return None if other is None else other.sqnr

    fine, dynamic = reached("a16w8"), reached("dynamic")
    if record.verb == "a16w8":
        weights = reached("dynamic")
        seen = "" if weights is None else f" (dynamic: {weights:.1f} dB)"
        return f"weights of 8 bits are too coarse for this network{seen}"
    if fine is not None and fine >= 25:
        if record.verb in _COARSE and record.verb != "per-tensor":
            return f"{_COARSE[record.verb]} (a16w8 has {fine:.1f} dB)"
        return f"activations of 8 bits: with 16 it has {fine:.1f} dB"
    if fine is not None:
        return f"the weights: even with activations of 16 bits it has {fine:.1f} dB"
    if dynamic is not None:
        return f"{_COARSE.get(record.verb, 'unknown')} (dynamic has {dynamic:.1f} dB)"
    return _COARSE.get(record.verb, "unknown")


_KNOWN_CAUSES = {
    "timm/botnet26t_256": (
        "the mean over all pixels is a ReduceMean from dynamo, which stays float, and a "
        "GlobalAveragePool from TorchScript; on all eight samples both have 29.2 dB"
    ),
}
"""What was found by looking at both graphs."""

_NORM_OPSET = 17
"""The first opset with LayerNormalization."""


def find_differences(records: Sequence[Record]) -> list[tuple[Record, Record]]:
    """Return pairs of results from two exporters that differ by more than the bar."""
    groups: dict[tuple[str, str], dict[str, Record]] = defaultdict(dict)
    for record in records:
        if record.sqnr is not None and "half" not in record.variant:
            groups[record.architecture, record.verb][record.exporter] = record
    pairs = []
    for found in groups.values():
        one, two = found.get("torchscript"), found.get("dynamo")
        if one is None or two is None or one.sqnr is None or two.sqnr is None:
            continue
        if abs(min(one.sqnr, QUIET) - min(two.sqnr, QUIET)) > MAX_DIFFERENCE:
            pairs.append((one, two))
    return pairs


def _differences(records: Sequence[Record]) -> str:
    rows = [
        (one.architecture, one.verb, f"{one.sqnr:.1f}", f"{two.sqnr:.1f}", why_different(one, two))
        for one, two in find_differences(records)
    ]
    return _table(("architecture", "verb", "torchscript", "dynamo", "cause"), rows)


def why_different(one: Record, two: Record) -> str:
    """Return what makes two exports of a network differ, as far as it is known."""
    older = min(one, two, key=lambda record: record.opset)
    if older.opset < _NORM_OPSET <= max(one.opset, two.opset):
        return (
            f"opset {older.opset} ({older.exporter}) has no LayerNormalization: its steps are "
            "rounded one by one"
        )
    return _KNOWN_CAUSES.get(one.architecture, "unknown")


def _not_exported(records: Sequence[Record]) -> str:
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        if record.verb == "export" and record.outcome == "not exported":
            groups[record.exporter, plain_reason(record.reason)[:160]].append(record)
    rows = [
        (exporter, len(found), reason, ", ".join(r.architecture for r in found[:4]))
        for (exporter, reason), found in sorted(groups.items())
    ]
    return _table(("exporter", "networks", "the exporter's words", "for example"), rows)
