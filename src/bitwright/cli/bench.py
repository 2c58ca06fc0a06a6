"""`bitwright bench`: how fast models are, side by side, and where the time goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from bitwright.cli import options as opt
from bitwright.cli.groups import option
from bitwright.cli.screen import Facts, Screen, Table, show_bytes

if TYPE_CHECKING:
    from bitwright.assess import Benchmark, GenerationBenchmark


_Runtime = StrEnum("_Runtime", ["web"])


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What models are timed on, and for how long."""

    data: Path | None = option("PATH", "Samples to run; random ones if not given.")
    limit: opt.Limit = None
    transform: opt.Transform = None
    input_shape: list[str] | None = option(
        "NAME=SHAPE",
        "Shape of an input (image=1x3x224x224) or size of an open dimension (length=128) "
        "of random samples; repeatable.",
    )
    batch: int | None = option("N", "Run N samples at once, in one batch.")
    prompt_tokens: int | None = option(
        "N", "Language models: tokens of the prompt; 128 if not given."
    )
    new_tokens: int | None = option(
        "N", "Language models: tokens generated one by one; 64 if not given."
    )
    seconds: float | None = option("S", "Time for each model: 3; 10 for language models.")
    runs: int | None = option("N", "Runs of each model, instead of --seconds.")
    warm_up: int | None = option(
        "N", "Runs before, which are not counted: 3; 1 for language models."
    )
    threads: int | None = option("N", "Threads of each model; all cores if not given.")
    provider: opt.Provider = None
    prepare: bool | None = option(
        None,
        "Time the first of several models as it is prepared to be quantized: yes.",
        "--prepare/--no-prepare",
    )
    profile: bool | None = option(
        None, "Say which ops take the time: yes, but for language models.", "--profile/--no-profile"
    )

    runtime: _Runtime | None = option(
        None,
        "Time models as a browser runs them: onnxruntime-web's WebAssembly on one thread; needs "
        "node, and the npm package onnxruntime-web in this folder.",
    )
    costs: Path | None = option(
        "PATH",
        "Instead of models, time ONNX Runtime's kernels on this machine, and write the table of "
        "costs that placement reads (.json).",
    )

    def measures_costs(self, models: Sequence[Path]) -> bool:
        """Whether kernels are timed, and no models."""
        if self.costs is None and not models:
            raise typer.BadParameter("give models to time, or --costs")
        if self.costs is not None and models:
            raise typer.BadParameter("--costs times kernels, not models; leave one of them out")
        return self.costs is not None

    def times_tokens(self, models: Sequence[Path]) -> bool:
        """Whether language models are timed token by token."""
        plain = ("data", "limit", "transform", "batch", "prepare", "runtime")
        named = [f"--{name}" for name in plain if getattr(self, name) is not None]
        if self.prompt_tokens is not None or self.new_tokens is not None:
            if named or self.profile:
                raise typer.BadParameter(
                    f"{named[0] if named else '--profile'} is not for tokens; leave it or the "
                    "numbers of tokens out"
                )
            return True
        from bitwright.assess import is_decoder

        return not (named or self.input_shape or self.profile) and all(map(is_decoder, models))

    def arguments(self, *names: str) -> dict[str, Any]:
        """Return the arguments of a verb that were given, of these names and those of all."""
        given = {name: getattr(self, name) for name in (*names, "seconds", "warm_up")}
        if "runtime" in given and self.runtime is not None:
            given["runtime"] = self.runtime.value
        return {
            **{name: value for name, value in given.items() if value is not None},
            "shapes": opt.read_shapes(self.input_shape or ()),
            "runs": self.runs,
            "threads": self.threads,
            "providers": self.provider or None,
        }


def bench_command(
    models: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="MODEL...",
            help="The models, or folders with a genai_config.json; the first is the yardstick.",
        ),
    ] = None,
    *,
    options: BenchOptions,
    screen: Screen,
) -> None:
    """Time models against each other.

    Also names the ops that became slower or stayed float. Each model has a process of its own, and
    they run in turns, so that a machine that slows down slows all of them alike. Of language
    models, folders and decoders with a cache, it shows tokens in a second, for the prompt and
    behind it; with --data, --input-shape or --batch a decoder is timed as any other model.
    """
    if options.data is not None and options.input_shape:
        raise typer.BadParameter("--input-shape is for random samples; give it or --data")
    opt.read_shapes(options.input_shape or ())  # refuses what is none
    progress = screen.wants_progress
    models = models or []
    if options.measures_costs(models):
        _measure_costs(options, screen)
    elif options.times_tokens(models):
        from bitwright.api import bench_generation

        given = options.arguments("prompt_tokens", "new_tokens")
        tokens = bench_generation(models, progress=progress, **given)
        tables = (Table(*section) for section in _with_short_names(tokens).sections())
        screen.show(tokens.to_dict(), [*tables, Facts([("Measured", tokens.detail)])])
    else:
        from bitwright.api import bench

        names = ("data", "limit", "transform", "batch", "prepare", "profile", "runtime")
        given = options.arguments(*names)
        found = bench(models, progress=progress, **given)
        short = _with_short_names(found)
        facts = Facts([("Measured", short.detail), ("Memory", _memory_note(short))])
        tables = (Table(*section) for section in short.sections(verbose=screen.verbose))
        screen.show(found.to_dict(), [*tables, facts])


def _measure_costs(options: BenchOptions, screen: Screen) -> None:
    from bitwright.jobs.cost_table import measure_costs
    from bitwright.targets.costs import write_costs

    path = options.costs
    assert path is not None
    seconds = {} if options.seconds is None else {"seconds": options.seconds}
    table = measure_costs(progress=screen.wants_progress, **seconds)
    write_costs(table, path)
    facts = [("Class of CPU", table.cpu), ("Processor", table.processor)]
    screen.show(
        {"path": str(path), "cpu": table.cpu, "processor": table.processor},
        [Facts([*facts, ("Kernels", str(len(table.kernels))), ("Written", str(path))])],
    )


_Found = TypeVar("_Found", "Benchmark", "GenerationBenchmark")


def _with_short_names(found: _Found) -> _Found:
    """Return the same with file names instead of paths, where they tell the models apart."""
    names = [Path(model.name).name for model in found.models]
    if len(set(names)) < len(names):
        return found
    models = (replace(m, name=name) for m, name in zip(found.models, names, strict=True))
    return replace(found, models=tuple(models))


def _memory_note(found: Benchmark) -> str:
    first = found.models[0]
    if first.peak_memory is None or first.runtime_memory is None:
        return first.memory_source
    own = show_bytes(first.runtime_memory)
    return (
        f"peak of each model's own process ({first.memory_source}), about {own} of it the "
        "runtime itself"
    )
