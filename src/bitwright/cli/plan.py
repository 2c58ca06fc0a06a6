"""`bitwright plan`: decide how to quantize a model, and write only the plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from bitwright.cli import options as opt
from bitwright.cli.groups import described
from bitwright.cli.piping import STANDARD_OUTPUT, written
from bitwright.cli.recipe_choice import RecipeChoice
from bitwright.cli.screen import Screen


def plan_command(
    model: opt.Model,
    *,
    output: Annotated[
        Path,
        described(
            "PLAN",
            "Where to write the plan (JSON); - for a pipe. A name that ends with .encodings "
            "is a file of AIMET and QNN.",
            "--output",
            "-o",
        ),
    ],
    weights: opt.Weights = None,
    samples: opt.SampleOptions,
    recipe: RecipeChoice,
    placing: opt.PlacingOptions,
    effort: opt.Effort = None,
    sketches: opt.Sketches = None,
    run: opt.RunOptions,
    screen: Screen,
) -> None:
    """Write a plan of how to quantize: to read, edit and apply."""
    given = {**samples.arguments(), **run.arguments(), **placing.arguments()}

    from bitwright import graph
    from bitwright.api import make_plan
    from bitwright.cli.summary import ENCODINGS, plan_document, plan_parts, save_plan

    chosen = recipe.load(model, has_data=samples.source() is not None)
    for destination in (output, sketches):
        if destination is not None and destination != STANDARD_OUTPUT:
            others = [*samples.files(), recipe.file(), weights]
            others += [sketches] if destination is output else []
            graph.check_destination(destination, source=model, others=others)
    with written(output, ".json") as file:
        made = make_plan(
            model,
            weights=weights,
            recipe=chosen,
            effort=effort or recipe.effort,  # type: ignore[arg-type]  # checked where it is used
            sketches=sketches,
            progress=screen.wants_progress,
            **given,
        )
        save_plan(made, file, as_encodings=output.suffix == ENCODINGS)
        parts = plan_parts(made, str(output), verbose=screen.verbose)
        screen.show(plan_document(made, str(output)), parts)
