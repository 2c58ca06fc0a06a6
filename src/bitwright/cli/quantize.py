"""`bitwright quantize`: a float model and some data in, a quantized model out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bitwright.cli import options as opt
from bitwright.cli.screen import Screen

__all__ = ["quantize_command"]


def quantize_command(
    model: opt.Model,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="OUT", help="Where to write the result.")
    ],
    data: opt.DataPath = None,
    recipe: opt.RecipeName = None,
    target: opt.Target = None,
    format: opt.Format = None,
    dynamic: opt.Dynamic = False,
    qat: opt.Qat = False,
    ranges: opt.Ranges = None,
    exclude: opt.Exclude = None,
    op_types: opt.OpTypes = None,
    effort: opt.Effort = None,
    equalize: opt.Equalize = False,
    bias_correction: opt.BiasCorrection = None,
    fine_tune: opt.FineTune = None,
    iterations: opt.Iterations = None,
    settings: opt.Set = None,
    preprocess: opt.Preprocess = None,
    tokenizer: opt.Tokenizer = None,
    tokens: opt.Tokens = None,
    limit: opt.Limit = None,
    hold_back: Annotated[
        bool, typer.Option(help="Keep up to eight samples out of calibration to measure with.")
    ] = True,
    random_data: opt.RandomCount = None,
    input_shape: opt.InputShape = None,
    sketches: opt.Sketches = None,
    plan_out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the plan, as JSON.")
    ] = None,
    external_data: opt.ExternalData = None,
    provider: opt.Provider = None,
    memory_budget: opt.MemoryBudget = None,
    work: opt.Work = None,
    device: opt.Device = "cpu",
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = False,
) -> None:
    """Quantize a model with calibration data, prove that it runs, and write it."""
    screen = Screen(as_json=as_json, quiet=quiet, verbose=verbose)
    budget = None if memory_budget is None else opt.read_bytes(memory_budget)
    source = opt.choose_data(
        data,
        random_data,
        input_shape,
        limit=limit,
        preprocess=preprocess,
        tokenizer=tokenizer,
        tokens=tokens,
    )
    named = [path.absolute() for path in (output, plan_out, sketches) if path is not None]
    if len(set(named)) < len(named):
        raise typer.BadParameter("--output, --plan-out and --sketches must be different files")

    if qat:
        _refuse_calibration(
            recipe=recipe, target=target, dynamic=dynamic, ranges=ranges, equalize=equalize,
            effort=effort, bias_correction=bias_correction, fine_tune=fine_tune,
            iterations=iterations, set=settings,
            sketches=sketches, memory_budget=memory_budget,
        )  # fmt: skip

    from bitwright import graph
    from bitwright.api import import_qat, quantize
    from bitwright.cli.settings import choose_recipe
    from bitwright.cli.summary import result_parts
    from bitwright.observe import MEMORY_BUDGET

    chosen = choose_recipe(
        recipe,
        target,
        dynamic=dynamic,
        format=format,
        settings=settings,
        ranges=ranges,
        exclude=exclude,
        op_types=op_types,
        equalize=equalize,
        bias_correction=bias_correction,
        fine_tune=fine_tune,
        iterations=iterations,
    )
    # All destinations before the work starts, not after it.
    for destination in (output, plan_out, sketches):
        if destination is not None:
            graph.check_destination(destination, source=model)
    if qat:
        if chosen.format not in ("qdq", "qoperator"):
            raise typer.BadParameter(f"--qat writes qdq or qoperator, not {chosen.format}")
        result = import_qat(
            model,
            output,
            format=chosen.format,
            select=chosen.select,
            data=source,
            limit=limit,
            preprocess=preprocess,
            external_data=external_data,
            providers=provider or None,
        )
    else:
        result = quantize(
            model,
            output,
            data=source,
            recipe=chosen,
            effort=effort,  # type: ignore[arg-type]  # checked where it is used
            limit=limit,
            preprocess=preprocess,
            held_back=hold_back,
            sketches=sketches,
            memory_budget=MEMORY_BUDGET if budget is None else budget,
            external_data=external_data,
            providers=provider or None,
            work=work,
            device=device,
            progress=screen.wants_progress,
        )
    if plan_out is not None:
        result.plan.save(plan_out)
    shown_plan = None if plan_out is None else str(plan_out)
    screen.show(
        {**result.to_dict(), "plan": shown_plan},
        result_parts(result, verbose=verbose, plan_path=shown_plan),
    )


def _refuse_calibration(**options: object) -> None:
    """Refuse options that decide what training has decided."""
    for name, given in options.items():
        if given:
            raise typer.BadParameter(
                f"--{name.replace('_', '-')} does not go with --qat, which keeps what was trained"
            )
