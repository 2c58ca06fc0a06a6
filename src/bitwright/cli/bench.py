"""`bitwright bench`: how fast models are, side by side, and where the time goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bitwright.cli import options as opt
from bitwright.cli.screen import Facts, Part, Screen, Table, show_bytes, show_ratio

if TYPE_CHECKING:
    from bitwright.assess import Benchmark, ModelBenchmark

__all__ = ["bench_command"]

_MOST_ROWS = 8


def bench_command(
    models: Annotated[
        list[Path],
        typer.Argument(metavar="MODEL...", help="The models; the first is the yardstick."),
    ],
    *,
    data: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Samples to run; random ones if not given."),
    ] = None,
    limit: opt.Limit = None,
    preprocess: opt.Preprocess = None,
    input_shape: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SHAPE",
            help="Shape of an input (image=1x3x224x224) or size of an open dimension (length=128) "
            "of random samples; repeatable.",
        ),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(metavar="N", help="Run N samples at once, in one batch.")
    ] = None,
    seconds: Annotated[float, typer.Option(metavar="S", help="Time for each model.")] = 3.0,
    runs: Annotated[
        int | None, typer.Option(metavar="N", help="Runs of each model, instead of --seconds.")
    ] = None,
    warm_up: Annotated[
        int, typer.Option(metavar="N", help="Runs before, which are not counted.")
    ] = 3,
    threads: Annotated[
        int | None, typer.Option(metavar="N", help="Threads of each model; all cores if not given.")
    ] = None,
    provider: opt.Provider = None,
    profile: Annotated[bool, typer.Option(help="Say which ops take the time.")] = True,
    screen: Screen,
) -> None:
    """Time models against each other, and name the ops that became slower or stayed float.

    Each model has a process of its own, and they run in turns, so that a machine that slows down
    slows all of them alike.
    """
    if data is not None and input_shape:
        raise typer.BadParameter("--input-shape is for random samples; give it or --data")
    shapes = opt.read_shapes(input_shape or ())

    from bitwright.api import bench

    found = bench(
        models,
        data=data,
        limit=limit,
        preprocess=preprocess,
        shapes=shapes,
        batch=batch,
        seconds=seconds,
        runs=runs,
        warm_up=warm_up,
        threads=threads,
        providers=provider or None,
        profile=profile,
        progress=screen.wants_progress,
    )
    screen.show(found.to_dict(), _parts(_with_short_names(found), screen.verbose))


def _with_short_names(found: Benchmark) -> Benchmark:
    """Return the same with file names instead of paths, where they tell the models apart."""
    names = [Path(model.name).name for model in found.models]
    if len(set(names)) < len(names):
        return found
    models = (replace(m, name=name) for m, name in zip(found.models, names, strict=True))
    return replace(found, models=tuple(models))


def _parts(found: Benchmark, verbose: bool) -> list[Part]:
    columns = ("model", "median ms", "p90 ms", "mean ms", "samples/s", "size", "memory", "runs")
    figures = [
        (
            model.name,
            f"{model.median:.3f}",
            f"{model.p90:.3f}",
            f"{model.mean:.3f}",
            f"{model.throughput:.1f}",
            show_bytes(model.size),
            "-" if model.peak_memory is None else show_bytes(model.peak_memory),
            str(len(model.times)),
        )
        for model in found.models
    ]
    ratios = [
        (
            model.name,
            show_ratio(found.speedup(index), "faster", "slower"),
            show_ratio(found.shrinkage(index), "smaller", "larger"),
        )
        for index, model in enumerate(found.models)
        if index
    ]
    # A table without rows is not shown.
    parts: list[Part] = [
        Table("Models", columns, figures),
        Table(f"Against {found.models[0].name}", ("model", "time", "size"), ratios),
    ]
    for index, model in enumerate(found.models):
        parts += _profile(found, index, model, verbose)
    parts.append(Facts([("Measured", found.detail), ("Memory", _memory_note(found))]))
    return parts


def _profile(found: Benchmark, index: int, model: ModelBenchmark, verbose: bool) -> list[Part]:
    if model.profile is None:
        return []
    most = None if verbose else _MOST_ROWS
    ops = [
        (row.op, row.kind, str(row.nodes), f"{row.milliseconds:.3f}", f"{100 * row.share:.1f} %")
        for row in model.profile.by_op()
    ]
    parts: list[Part] = [
        Table(f"Time by op: {model.name}", ("op", "kind", "nodes", "ms", "share"), ops[:most])
    ]
    floats = [
        (node.name, node.op, f"{node.milliseconds:.3f}", node.reason or "")
        for node in found.float_nodes(index)
    ]
    title = f"Between pairs, but in float: {model.name}{_more(floats, most)}"
    parts.append(Table(title, ("node", "ran as", "ms", "because"), floats[:most]))
    slower = [
        (node.name, node.op, f"{node.before:.3f}", f"{node.after:.3f}", node.reason)
        for node in (found.slower_nodes(index) if index else ())
    ]
    title = f"Slower than in {found.models[0].name}: {model.name}{_more(slower, most)}"
    columns = ("node", "ran as", "before, ms", "now, ms", "because")
    return [*parts, Table(title, columns, slower[:most])]


def _more(rows: Sequence[Sequence[str]], most: int | None) -> str:
    hidden = 0 if most is None else len(rows) - most
    return f" (and {hidden} more; --verbose names all)" if hidden > 0 else ""


def _memory_note(found: Benchmark) -> str:
    first = found.models[0]
    if first.peak_memory is None or first.runtime_memory is None:
        return first.memory_source
    own = show_bytes(first.runtime_memory)
    return (
        f"peak of each model's own process ({first.memory_source}), about {own} of it Python and "
        "ONNX Runtime"
    )
