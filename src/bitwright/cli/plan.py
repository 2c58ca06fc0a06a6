"""`bitwright plan`: decide everything, write only the decisions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bitwright.cli import options as opt
from bitwright.cli.screen import Screen

__all__ = ["plan_command"]


def plan_command(
    model: opt.Model,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="PLAN", help="Where to write the plan (JSON).")
    ],
    data: opt.DataPath = None,
    recipe: opt.RecipeName = None,
    target: opt.Target = None,
    format: opt.Format = None,
    dynamic: opt.Dynamic = False,
    ranges: opt.Ranges = None,
    exclude: opt.Exclude = None,
    op_types: opt.OpTypes = None,
    equalize: opt.Equalize = False,
    bias_correction: opt.BiasCorrection = None,
    fine_tune: opt.FineTune = None,
    iterations: opt.Iterations = None,
    settings: opt.Set = None,
    preprocess: opt.Preprocess = None,
    tokenizer: opt.Tokenizer = None,
    tokens: opt.Tokens = None,
    limit: opt.Limit = None,
    random_data: opt.RandomCount = None,
    input_shape: opt.InputShape = None,
    sketches: opt.Sketches = None,
    provider: opt.Provider = None,
    memory_budget: opt.MemoryBudget = None,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = False,
) -> None:
    """Decide how to quantize a model and write the plan, to read, edit and apply."""
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

    from bitwright import graph
    from bitwright.api import make_plan
    from bitwright.cli.settings import choose_recipe
    from bitwright.cli.summary import plan_document, plan_parts
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
    for destination in (output, sketches):
        if destination is not None:
            graph.check_destination(destination, source=model)
    made = make_plan(
        model,
        data=source,
        recipe=chosen,
        limit=limit,
        preprocess=preprocess,
        sketches=sketches,
        memory_budget=MEMORY_BUDGET if budget is None else budget,
        providers=provider or None,
        progress=screen.wants_progress,
    )
    made.save(output)
    screen.show(plan_document(made, str(output)), plan_parts(made, str(output), verbose=verbose))
