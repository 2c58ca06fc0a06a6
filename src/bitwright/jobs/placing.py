"""Placement by cost as a step of a job: nodes stay float where integers would cost time."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec
import onnx_ir as ir

from bitwright import graph
from bitwright.data import Sample
from bitwright.decide.left_float import leave_float
from bitwright.decide.placement.place import PartTimes, Placed, place, time_parts
from bitwright.errors import RecipeError
from bitwright.jobs.opening import Prepared
from bitwright.plan import QuantPlan
from bitwright.prepare.fold_constants import fold_constants
from bitwright.recipe import Purpose, Recipe
from bitwright.support.logs import logged
from bitwright.targets.costs import CostTable, read_costs

__all__ = [
    "SLOWER",
    "can_be_placed",
    "estimate_parts",
    "is_placed_by_cost",
    "place_by_cost",
    "with_purpose",
]

SLOWER = "in integers the model would be slower"
"""Why a node is float that the target takes in integers."""

_PREFERENCE: dict[Purpose, float] = {"balanced": 1.05, "speed": 1.0}
"""Up to how many times the time of float integers may take, since they are smaller."""


def with_purpose(recipe: Recipe, purpose: Purpose | None, cpu: str | None) -> Recipe:
    """Return the recipe for a purpose on a class of CPU, by name or by a file of its costs.

    >>> with_purpose(Recipe(), "speed", "x86-vnni").place.cpu
    'x86-vnni'
    """
    changes = {"purpose": purpose, "cpu": cpu}
    changes = {name: value for name, value in changes.items() if value is not None}
    wanted = purpose or recipe.place.purpose
    if wanted == "size":
        if cpu is not None:
            raise RecipeError(
                "a class of CPU counts where a purpose asks for its costs",
                remedy="add purpose='balanced' or purpose='speed'",
                command="add --for balanced or --for speed",
            )
        return recipe.replace(place=changes) if changes else recipe
    if changes and not can_be_placed(recipe):
        raise RecipeError(
            f"the purpose {wanted!r} weighs the integer kernels of a CPU against its float ones, "
            f"and the recipe {recipe.name!r} is not for these: it needs static mode and 8 bits, "
            "without a vendor's operators."
        )
    read_costs(cpu or recipe.place.cpu)
    return recipe.replace(place=changes) if changes else recipe


def is_placed_by_cost(recipe: Recipe) -> bool:
    """Return whether nodes of a recipe's models stay float where integers would cost time.

    >>> is_placed_by_cost(Recipe()), is_placed_by_cost(Recipe(place={"purpose": "speed"}))
    (False, True)
    """
    return recipe.place.purpose != "size" and can_be_placed(recipe)


def can_be_placed(recipe: Recipe) -> bool:
    """Return whether a recipe's integers are for kernels of which the costs are known."""
    return (
        recipe.mode == "static"
        and recipe.activation.bits == recipe.weight.bits == 8
        and recipe.limits is None
        and recipe.simulate is None
        and not recipe.output_format.vendor_ops
    )


@logged("place by cost")
def place_by_cost(prepared: Prepared, plan: QuantPlan, samples: Sequence[Sample]) -> QuantPlan:
    """Return a plan with its nodes in float where that is faster, by the costs of its recipe.

    Sizes that inputs leave open are those of the first of the samples.
    """
    recipe = plan.recipe
    if not is_placed_by_cost(recipe):
        return plan
    costs = read_costs(recipe.place.cpu)
    purpose: Purpose = recipe.place.purpose
    placed = place(_sized(prepared, samples), plan, costs, preference=_PREFERENCE[purpose])
    plan = msgspec.structs.replace(plan, recipe=recipe.replace(place={"cpu": costs.cpu}))
    if placed is None:
        return plan.with_notes([_UNKNOWN])
    plan = leave_float(prepared.model, plan, dict.fromkeys(placed.times, SLOWER))
    nodes = {
        name: msgspec.structs.replace(node, times=placed.times[name])
        if name in placed.times
        else node
        for name, node in plan.nodes.items()
    }
    return msgspec.structs.replace(plan, nodes=nodes).with_notes([_describe(costs, placed)])


def estimate_parts(
    prepared: Prepared,
    plan: QuantPlan,
    parts: Sequence[Collection[str]],
    samples: Sequence[Sample],
) -> PartTimes | None:
    """Return what parts of a plan take by the costs that it is placed by, each given by its nodes.

    None where the sizes of products are not known, at the sizes of the first sample.
    """
    return time_parts(_sized(prepared, samples), plan, read_costs(plan.recipe.place.cpu), parts)


def _sized(prepared: Prepared, samples: Sequence[Sample]) -> ir.Model:
    """Return the model at the sizes of the first sample, where its inputs leave some open."""
    fixed = all(isinstance(d, int) for spec in prepared.inputs for d in spec.shape or (None,))
    if fixed or not samples:
        return prepared.model
    sizes = dict[str, int]()
    for spec in prepared.inputs:
        for dim, size in zip(spec.shape or (), samples[0][spec.name].shape, strict=False):
            if isinstance(dim, str):
                sizes[dim] = size
    model = graph.clone_model(prepared.model)
    shapes = {name: array.shape for name, array in samples[0].items()}
    graph.set_input_shapes(model, shapes, sizes)
    graph.infer_shapes(model)
    fold_constants(model)  # shapes that are computed
    graph.infer_shapes(model)
    return model


_UNKNOWN = (
    "not placed by cost: the sizes of its products are not known; give the shapes of inputs with "
    "rewrite.fix_shapes or --fix-shape NAME=SIZE"
)


def _describe(costs: CostTable, placed: Placed) -> str:
    borrowed = "" if costs.borrowed_from is None else f" (those of {costs.borrowed_from})"
    ratio, planned = (time / placed.float_time for time in (placed.time, placed.planned_time))
    return (
        f"placed by the costs of {costs.cpu}{borrowed}: about {ratio:.2f} of the prepared float "
        f"model's time; all that can be in integers: {planned:.2f}"
    )
