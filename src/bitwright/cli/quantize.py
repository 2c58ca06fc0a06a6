"""`bitwright quantize`: a float model and some data in, a quantized model out."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bitwright.cli import options as opt
from bitwright.cli.groups import arguments_of, option, switch
from bitwright.cli.piping import STANDARD_OUTPUT, refuse_pipe, written
from bitwright.cli.recipe_choice import RecipeChoice
from bitwright.cli.screen import Facts, Screen

if TYPE_CHECKING:
    from bitwright.jobs.result import Result
    from bitwright.recipe import Recipe
    from bitwright.verification import Verification

_GO_WITH_QAT = {"format", "exclude", "block_nodes", "block_ops", "op_types"}


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeOptions:
    """How a model is to be quantized, by which data, and where the result goes."""

    output: Path | None = option(
        "OUT",
        "Where to write the result; - for a pipe. NAME-int8.onnx beside the model if not given.",
        "--output",
        "-o",
    )
    weights: opt.Weights = None
    samples: opt.SampleOptions
    holdout: bool = option(
        None, "Keep up to eight samples out of calibration to measure with.", default=True
    )
    recipe: RecipeChoice
    qat: bool = switch(
        "The model was trained with Q/DQ pairs: keep its scales, and write it so that the runtime "
        "fuses it. Needs no data."
    )
    placing: opt.PlacingOptions
    effort: opt.Effort = None
    sketches: opt.Sketches = None
    plan_out: Path | None = option(
        "FILE",
        "Also write the plan, as JSON; to a name that ends with .encodings, as AIMET and "
        "QNN read it.",
    )
    report: Path | None = option(
        "PAGE", "Also write a report (.html) on the samples that the result was measured on."
    )
    external_data: opt.ExternalData = None
    run: opt.RunOptions
    work: opt.Work = None
    device: opt.Device = "cpu"
    timing: bool | None = option(
        None,
        "Time the result beside the prepared float model once it is written, for two seconds at "
        "most: yes, but with --qat.",
        "--timing/--no-timing",
    )

    def check(self, model: Path) -> None:
        """Refuse options that clash, before any work."""
        named = [path.absolute() for path in self.written() if path is not None]
        if len(set(named)) < len(named):
            files = "--output, --plan-out, --sketches and --report"
            raise typer.BadParameter(f"{files} must be different files")
        if model.is_dir():
            if self.output is not None:
                refuse_pipe(self.output, "of a folder of models it writes a folder")
            alone = {"--qat": self.qat, "--plan-out": self.plan_out, "--sketches": self.sketches}
            alone["--report"] = self.report
            for option, value in alone.items():
                if value:
                    raise typer.BadParameter(f"{option} is for one model, and {model} is a folder")
        if self.report is not None and self.samples.source() is None:
            raise typer.BadParameter("--report measures on samples; give --data")
        if self.qat:
            later: dict[str, Any] = {"effort": self.effort, "sketches": self.sketches}
            later |= {"weights": self.weights, "timing": self.timing}
            later |= {"memory_budget": self.run.memory_budget, "engine": self.run.engine}
            _refuse_calibration({**asdict(self.recipe), **self.placing.words(), **later})

    def written(self) -> tuple[Path | None, ...]:
        """Return the files that are written."""
        return self.output, self.plan_out, self.sketches, self.report

    def with_output(self, model: Path, chosen: Recipe) -> QuantizeOptions:
        """Return the options with a file beside the model to write, where none is named."""
        if self.output is not None:
            return self
        bits = chosen.weights.bits if chosen.mode == "weight-only" else chosen.weight.bits
        whole = chosen.mode == "weight-only" or chosen.weight.is_integer
        tag = f"int{bits}" if whole else chosen.weight.name
        tag = chosen.name if chosen.name == "int8-cache" else tag
        name = model.resolve().name if model.is_dir() else model.stem
        output = model.with_name(f"{name}-{tag}{'' if model.is_dir() else '.onnx'}")
        if output.exists():
            raise typer.BadParameter(f"{output} is there already; say with -o where to write")
        return replace(self, output=output)

    def check_destinations(self, model: Path) -> None:
        """Refuse to overwrite what is read."""
        from bitwright import graph

        for destination in self.written():
            if destination is not None and destination != STANDARD_OUTPUT and not model.is_dir():
                others = [*self.samples.files(), self.recipe.file(), self.weights]
                graph.check_destination(destination, source=model, others=others)

    def arguments(self, chosen: Recipe) -> dict[str, Any]:
        """Return the arguments of `bitwright.quantize` that the options stand for."""
        given = arguments_of(self, "output", "recipe", "qat", "plan_out", "report")
        timing = self.timing is not False
        effort = self.effort or self.recipe.effort
        return given | {"recipe": chosen, "effort": effort, "timing": timing}

    def words(self) -> str:
        """Return the options to quantize with the same recipe again, as they are typed."""
        # Sketches of random data are left out: with them the data would not be run.
        further = {
            "weights": self.weights,
            **self.placing.words(),
            "no_holdout": not self.holdout,
            "effort": self.effort,
            "plan_out": self.plan_out,
            "report": self.report,
            "external_data": self.external_data is True,
            "no_external_data": self.external_data is False,
            **asdict(self.run),
            "work": self.work,
            "device": None if self.device == "cpu" else self.device,
            "no_timing": self.timing is False,
        }
        return " ".join(filter(None, (self.recipe.words(), opt.typed(further))))


def quantize_command(
    model: opt.ModelOrFolder,
    calibration: Annotated[
        Path | None, typer.Argument(metavar="DATA", help="Calibration data, as for --data.")
    ] = None,
    *,
    options: QuantizeOptions,
    screen: Screen,
) -> None:
    """Quantize a model, or a folder of models, and write it.

    Activations get their ranges from --data. The result is run beside the float model before it is
    written, and what was found is shown last, with the command to go on with.
    """
    if calibration is not None:
        if options.samples.data is not None:
            raise typer.BadParameter(f"DATA ({calibration}) and --data are one thing; drop one")
        options = replace(options, samples=replace(options.samples, data=calibration))
    data = options.samples.source()  # refuses options that clash
    options.check(model)

    from bitwright.api import quantize
    from bitwright.cli.summary import folder_parts

    chosen = options.recipe.load(model, has_data=data is not None)
    options = options.with_output(model, chosen)
    assert options.output is not None
    options.check_destinations(model)  # before the work starts, not after it
    result: Any  # a Result, or the FolderResult of a folder
    with written(options.output) as file:
        if options.qat:
            result = _import_qat(model, file, chosen, options)
        else:
            progress = screen.wants_progress
            result = quantize(model, file, progress=progress, **options.arguments(chosen))
        if model.is_dir():
            screen.show(result.to_dict(), folder_parts(result, verbose=screen.verbose))
        else:
            result.path = options.output
            _show(model, result, options, screen)


def _import_qat(model: Path, file: Path, chosen: Recipe, options: QuantizeOptions) -> Result:
    """Write a trained model as the runtime fuses it."""
    from bitwright.api import import_qat

    if chosen.format not in ("qdq", "qoperator"):
        raise typer.BadParameter(f"--qat writes qdq or qoperator, not {chosen.format}")
    return import_qat(
        model,
        file,
        format=chosen.format,
        select=chosen.select,
        external_data=options.external_data,
        providers=options.run.provider or None,
        **options.samples.arguments(),
    )


def _show(model: Path, result: Result, options: QuantizeOptions, screen: Screen) -> None:
    """Write the plan where it is asked for, and show what was found and how to go on."""
    from bitwright.cli.summary import ENCODINGS, next_command, result_parts, save_plan

    plan_out, output, target = options.plan_out, options.output, options.recipe.target
    if plan_out is not None:
        save_plan(result.plan, plan_out, as_encodings=plan_out.suffix == ENCODINGS)
    if options.report is not None:
        from bitwright.jobs.report import save_report

        providers = options.run.provider or None
        save_report(result, options.report, target=target, providers=providers)
    shown_plan = None if plan_out is None else str(plan_out)
    on = found = None
    if output is not None and output != STANDARD_OUTPUT:
        on = next_command(result, model, options.samples, again=options.words(), target=target)
        found = _verified(output, target)
    parts = result_parts(result, verbose=screen.verbose, plan_path=shown_plan)
    last = [("Verdict", result.verdict.sentence)]
    last += [] if found is None else [("Target", found.describe())]
    lines = result.lines(on, None if found is None else found.summarize())
    document = {**result.to_dict(), "plan": shown_plan, "lines": lines, "next": on}
    document |= {} if found is None else {"verification": found.to_dict()}
    screen.show(document, [*parts, Facts(last), *lines])


def _verified(path: Path, target: str | None) -> Verification | None:
    """Return what the rules of an accelerator say of a result; CPUs show it in integer kernels."""
    from bitwright.api import verify
    from bitwright.targets import find_target

    return None if target is None or find_target(target).cpus else verify(path, target)


def _refuse_calibration(given: dict[str, Any]) -> None:
    """Refuse options that decide what training has decided."""
    for name, value in given.items():
        if value and name not in _GO_WITH_QAT:
            option = "--set" if name == "settings" else f"--{name.replace('_', '-')}"
            raise typer.BadParameter(
                f"{option} does not go with --qat, which keeps what was trained"
            )
