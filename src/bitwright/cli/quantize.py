"""`bitwright quantize`: a float model and some data in, a quantized model out."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bitwright.cli import options as opt
from bitwright.cli.piping import STANDARD_OUTPUT, refuse_pipe, written
from bitwright.cli.recipe_choice import RecipeChoice
from bitwright.cli.screen import Facts, Screen

if TYPE_CHECKING:
    from bitwright.verification import Verification

__all__ = ["quantize_command"]

_GO_WITH_QAT = {"format", "exclude", "op_types"}


def quantize_command(
    model: opt.ModelOrFolder,
    *,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="OUT", help="Where to write the result; - for a pipe."
        ),
    ],
    weights: opt.Weights = None,
    samples: opt.SampleOptions,
    holdout: Annotated[
        bool, typer.Option(help="Keep up to eight samples out of calibration to measure with.")
    ] = True,
    recipe: RecipeChoice,
    qat: opt.Qat = False,
    effort: opt.Effort = None,
    sketches: opt.Sketches = None,
    plan_out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also write the plan, as JSON; to a name that ends with .encodings, as AIMET and "
            "QNN read it.",
        ),
    ] = None,
    external_data: opt.ExternalData = None,
    run: opt.RunOptions,
    work: opt.Work = None,
    device: opt.Device = "cpu",
    screen: Screen,
) -> None:
    """Quantize a model, or a folder of models, and write it.

    Activations get their ranges from --data. The result is run beside the float model before it is
    written, and what was found is shown last, with the command to go on with.
    """
    given, running = samples.arguments(), run.arguments()
    named = [path.absolute() for path in (output, plan_out, sketches) if path is not None]
    if len(set(named)) < len(named):
        raise typer.BadParameter("--output, --plan-out and --sketches must be different files")

    if model.is_dir():
        refuse_pipe(output, "of a folder of models it writes a folder")
        for option, value in (("--qat", qat), ("--plan-out", plan_out), ("--sketches", sketches)):
            if value:
                raise typer.BadParameter(f"{option} is for one model, and {model} is a folder")
    if qat:
        later = {"effort": effort, "sketches": sketches, "memory_budget": run.memory_budget}
        later |= {"weights": weights, "engine": run.engine}
        _refuse_calibration({**asdict(recipe), **later})

    from bitwright import graph
    from bitwright.api import import_qat, quantize
    from bitwright.cli.summary import (
        ENCODINGS,
        folder_parts,
        next_command,
        result_parts,
        save_plan,
    )

    chosen = recipe.load(model)
    # All destinations before the work starts, not after it.
    for destination in (output, plan_out, sketches):
        if destination is not None and destination != STANDARD_OUTPUT and not model.is_dir():
            others = [*samples.files(), recipe.file(), weights]
            graph.check_destination(destination, source=model, others=others)
    result: Any  # a Result, or the FolderResult of a folder
    with written(output) as file:
        if qat:
            if chosen.format not in ("qdq", "qoperator"):
                raise typer.BadParameter(f"--qat writes qdq or qoperator, not {chosen.format}")
            result = import_qat(
                model,
                file,
                format=chosen.format,
                select=chosen.select,
                external_data=external_data,
                providers=running["providers"],
                **given,
            )
        else:
            result = quantize(
                model,
                file,
                weights=weights,
                recipe=chosen,
                effort=effort or recipe.effort,  # type: ignore[arg-type]  # checked where it is used
                holdout=holdout,
                sketches=sketches,
                external_data=external_data,
                work=work,
                device=device,
                progress=screen.wants_progress,
                **given,
                **running,
            )
        if model.is_dir():
            screen.show(result.to_dict(), folder_parts(result, verbose=screen.verbose))
            return
        if plan_out is not None:
            save_plan(result.plan, plan_out, as_encodings=plan_out.suffix == ENCODINGS)
        result.path = output
        shown_plan = None if plan_out is None else str(plan_out)
        # Sketches of random data are left out: with them the data would not be run.
        further = {
            "weights": weights,
            "no_holdout": not holdout,
            "effort": effort,
            "plan_out": plan_out,
            "external_data": external_data is True,
            "no_external_data": external_data is False,
            **asdict(run),
            "work": work,
            "device": None if device == "cpu" else device,
        }
        again = " ".join(filter(None, (recipe.words(), opt.typed(further))))
        on = found = None
        if output != STANDARD_OUTPUT:
            on = next_command(result, model, samples, again=again, target=recipe.target)
            found = _verified(output, recipe.target)
        parts = result_parts(result, verbose=screen.verbose, plan_path=shown_plan)
        last = [("Verdict", result.verdict.sentence)]
        last += [] if found is None else [("Target", found.describe())]
        parts.append(Facts([*last, *([("Next", on)] if on else [])]))
        document = {**result.to_dict(), "plan": shown_plan, "next": on}
        document |= {} if found is None else {"verification": found.to_dict()}
        screen.show(document, parts)


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
