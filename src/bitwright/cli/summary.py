"""Summaries of results and plans: nodes quantized and left float, sizes, errors."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitwright.cli.screen import Facts, Part, Table
from bitwright.support.wording import counted, printable
from bitwright.targets import find_target

if TYPE_CHECKING:
    from bitwright.cli.options import DataOptions
    from bitwright.jobs.folder import FolderResult
    from bitwright.jobs.result import Result
    from bitwright.plan import QuantPlan

ENCODINGS = ".encodings"
"""How names of encodings files end."""


def result_parts(result: Result, *, verbose: bool, plan_path: str | None = None) -> list[Part]:
    """Return the summary of a finished job."""
    plan = result.plan
    rows = [*_plan_facts(plan), *result.facts()]
    if plan_path is not None:
        rows.append(("Plan", plan_path))
    if result.path is not None:
        rows.append(("Written to", str(result.path)))
    return [*_node_tables(plan, verbose), Facts(rows)]


def next_command(
    result: Result, model: Path, samples: DataOptions, *, again: str = "", target: str | None = None
) -> str:
    """Return what to type next: what would make the model better, or show that it is good.

    `again` is what the same job takes beside its paths and its data.
    """
    paths = shlex.join([str(model), str(result.path)])
    on = samples.words() or "--data PATH"
    if result.plan.random_data:
        files = f"{shlex.quote(str(model))} -o {shlex.quote(str(result.path))}"
        return " ".join(filter(None, ("bitwright quantize", files, "--data PATH", again)))
    if result.verdict.level == "unknown":
        return f"bitwright compare {paths} --data PATH"
    if result.verdict.level == "float":
        return f"bitwright {shlex.quote(str(model))}"  # what each way to quantize it would bring
    if result.verdict.level in ("good", "slow"):
        if target is not None and not find_target(target).cpus:
            return (
                f"bitwright verify {shlex.quote(str(result.path))} --target {shlex.quote(target)}"
            )
        known = result.verdict.level == "good" and result.clock is not None
        return f"bitwright check {paths} {on}" if known else f"bitwright bench {paths}"
    on = on if target is None else f"{on} --target {shlex.quote(target)}"
    return f"bitwright report {paths} -o report.html {on}"


def save_plan(plan: QuantPlan, path: Path, *, as_encodings: bool) -> None:
    """Write a plan, as its own JSON or as an encodings file of AIMET and QNN."""
    if as_encodings:
        from bitwright.jobs.encodings import write_encodings_file

        write_encodings_file(plan, path)
    else:
        plan.save(path)


def folder_parts(result: FolderResult, *, verbose: bool) -> list[Part]:
    """Return the summary of a folder of models; with `verbose`, what became of every node, too."""
    nodes = [
        part
        for name, one in result.results.items()
        if verbose
        for part in (printable(name), *_node_tables(one.plan, verbose))
    ]
    facts, copies = result.facts(), counted(len(result.folder.others), "other file")
    if result.path is not None:
        facts.append(("Written to", f"{result.path}, with {copies}"))
    return [*nodes, *(Table(*section) for section in result.sections()), Facts(facts)]


def plan_parts(plan: QuantPlan, path: str, *, verbose: bool) -> list[Part]:
    """Return the summary of a plan."""
    notes = [("Note", note) for note in plan.notes]
    return [*_node_tables(plan, verbose), Facts([*_plan_facts(plan), *notes, ("Written to", path)])]


def plan_document(plan: QuantPlan, path: str) -> dict[str, Any]:
    """Return the summary of a plan as a JSON object."""
    return {
        "recipe": plan.recipe.name,
        "nodes": len(plan.nodes),
        "quantized": dict(plan.quantized.most_common()),
        "skipped": [
            {"op": op, "reason": reason, "count": count}
            for (op, reason), count in plan.left_float.most_common()
        ],
        "tensors": len(plan.tensors),
        "notes": list(plan.notes),
        "plan": path,
    }


def _plan_facts(plan: QuantPlan) -> list[tuple[str, str]]:
    done = sum(node.quantized for node in plan.nodes.values())
    total = len(plan.nodes)
    taken, left = plan.recipe.done_and_left
    return [
        ("Recipe", plan.recipe.name),
        ("Nodes", f"{done} of {total} {taken}, {total - done} {left}"),
    ]


def _node_tables(plan: QuantPlan, verbose: bool) -> list[Part]:
    absorbed = Counter(node.op for node in plan.nodes.values() if node.action == "absorb")
    quantized = [
        (op, str(count), str(absorbed[op] or "-")) for op, count in plan.quantized.most_common()
    ]
    taken, left = (words.capitalize() for words in plan.recipe.done_and_left)
    parts: list[Part] = [Table(taken, ("op", "nodes", "absorbed"), quantized)]
    skipped = _left_float(plan)
    if verbose:
        rows = [(op, name, reason) for (op, reason), names in skipped.items() for name in names]
        parts.append(Table(left, ("op", "node", "because"), rows))
    else:
        counted = [(op, str(len(names)), reason) for (op, reason), names in skipped.items()]
        parts.append(Table(left, ("op", "nodes", "because"), counted))
    return parts


def _left_float(plan: QuantPlan) -> dict[tuple[str, str], list[str]]:
    """Return (op type, reason) -> the names of the nodes."""
    names: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, node in plan.nodes.items():
        if not node.quantized:
            names[node.op, node.reason or "not said"].append(name)
    return dict(sorted(names.items(), key=lambda item: (-len(item[1]), item[0])))
