"""`bitwright compare`: where a quantized model differs from the float one, and by how much."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from bitwright.cli import options as opt
from bitwright.cli.groups import described
from bitwright.cli.screen import Facts, Part, Screen, Table
from bitwright.support.wording import counted

if TYPE_CHECKING:
    from bitwright.assess import Comparison


def compare_command(
    float_model: opt.FloatModel,
    quantized_model: opt.QuantizedModel,
    *,
    samples: opt.MeasuringOptions,
    plan: opt.PlanPath = None,
    worst: Annotated[int, described("N", "How many nodes to name.", min=1)] = 10,
    run: opt.RunOptions,
    screen: Screen,
) -> None:
    """Show the error of every node of a quantized model.

    Both models run on the same samples.

    `--verbose` shows every node in graph order.
    """
    given = {**samples.arguments(), **run.arguments()}

    from bitwright.api import compare

    found = compare(
        float_model, quantized_model, plan=plan, progress=screen.wants_progress, **given
    )
    document = {"float": str(float_model), "quantized": str(quantized_model), **found.to_dict()}
    document["worst"] = [node.name for node in found.worst(worst)]
    screen.show(document, _parts(found, worst, screen.verbose))


_EXPLANATION = (
    "SQNR, higher is better. Alone: only this node is quantized, and reads float values; by "
    "channel: the same, every channel counts alike, and the worst nodes are chosen by it (in graph "
    "order where it is the same to 0.1 dB); accumulated: all nodes before it are quantized, too."
)


def _parts(found: Comparison, worst: int, verbose: bool) -> list[Part]:
    sections = found.sections(verbose=verbose, n=worst)
    done = sum(node.action == "quantized" for node in found.nodes)
    facts = [
        *([("Columns", _EXPLANATION)] if any(rows for *_, rows in sections) else []),
        ("Samples", str(found.samples)),
        ("Nodes", f"{done} quantized, {len(found.nodes) - done} float"),
        *(("Against float", output.describe()) for output in found.outputs),
    ]
    if found.coverage is not None:
        facts.append(("Integer kernels", found.coverage.describe()))
    if found.judgement is not None:
        facts += [("Note", note) for note in found.judgement.notes]
    if found.weights:
        name, sqnr = min(found.weights.items(), key=lambda item: item[1])
        facts.append(("Worst weight", f"{name!r}: {sqnr:.1f} dB SQNR"))
    facts += [
        ("Not compared", f"{counted(len(others), 'node')}: {why}")
        for why, others in found.left_out.items()
    ]
    return [*(Table(*section) for section in sections), Facts(facts)]
