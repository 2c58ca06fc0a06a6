"""Placement by cost as a step of a job: nodes stay float where integers would cost time."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from weakref import WeakKeyDictionary

import msgspec
import onnx_ir as ir

from bitwright import graph
from bitwright._version import TOOL
from bitwright.data import Sample
from bitwright.decide.layout.dynamic import lay_out_dynamic
from bitwright.decide.layout.entries import Layout
from bitwright.decide.layout.static import lay_out
from bitwright.decide.left_float import leave_float
from bitwright.decide.ops import CONVOLUTIONS, MATRIX_PRODUCTS
from bitwright.decide.ops.product_sizes import RECURRENT, multiply_adds
from bitwright.decide.placement.noise import noise_shares
from bitwright.decide.placement.place import PartTimes, Placed, place, time_parts
from bitwright.errors import NothingQuantizedError, RecipeError
from bitwright.graph import constant_of, static_shape, weight_of
from bitwright.jobs.calibration import Calibrated, Calibration, take_samples
from bitwright.jobs.opening import Prepared
from bitwright.plan import NodePlan, QuantPlan
from bitwright.prepare.fold_constants import fold_constants
from bitwright.recipe import Purpose, Recipe
from bitwright.support.logs import logged
from bitwright.targets.costs import CostTable, read_costs

SLOWER = "in integers the model would be slower"
"""Why a node is float that the target takes in integers."""

NOISY = "in integers its activations would lose more than the time is worth"
"""Why a node is float that is faster in integers."""

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
    if changes and not recipe.can_be_placed:
        raise RecipeError(
            f"the purpose {wanted!r} weighs the integer kernels of a CPU against its float ones, "
            f"and the recipe {recipe.name!r} is not for these: it needs static mode, 8 bits "
            "and the format qdq."
        )
    read_costs(cpu or recipe.place.cpu)
    return recipe.replace(place=changes) if changes else recipe


def plan_all_float(
    prepared: Prepared, calibration: Calibration, layout: Layout | None = None
) -> QuantPlan | None:
    """Return the plan of a model that is fastest in float, which needs no calibration; else None.

    `layout` is that of the model, where it is known already.
    Without data a model is refused as ever, and sketches that are asked for are made.
    """
    wanted = calibration.data is None or calibration.sketches is not None
    if not prepared.recipe.is_placed_by_cost or wanted:
        return None
    samples = () if is_sized(prepared) else take_samples(prepared, calibration, 1)
    if layout is None:
        layout = lay_out(prepared.model, prepared.recipe, keep_float=prepared.keep_float)
    return _all_float(prepared, layout, samples)


def predict(prepared: Prepared, layout: Layout, samples: Sequence[Sample]) -> Placed | None:
    """Return where the nodes of a layout would run, and the time of that; None: not to be told."""
    paired = {entry.name for entry in layout.entries.values() if entry.role == "activation"}
    costs = read_costs(prepared.recipe.place.cpu)
    return _place(prepared, layout.nodes, paired, costs, samples)


def _all_float(prepared: Prepared, layout: Layout, samples: Sequence[Sample]) -> QuantPlan | None:
    placed = predict(prepared, layout, samples) if layout.entries else None
    if placed is None or placed.integers:
        return None
    recipe, costs = prepared.recipe, read_costs(prepared.recipe.place.cpu)
    left = {**prepared.keep_float, **dict.fromkeys(placed.times, SLOWER)}
    layout = lay_out(prepared.model, recipe, keep_float=left)
    plan = QuantPlan(
        tool=TOOL,
        fingerprint=prepared.fingerprint,
        recipe=recipe,
        tensors={},
        nodes=layout.nodes,
        outputs=layout.outputs,
        notes=layout.notes,
    )
    return _with_times(plan, costs, placed)


@logged("place by cost")
def place_by_cost(
    prepared: Prepared, layout: Layout, plan: QuantPlan, calibrated: Calibrated
) -> QuantPlan:
    """Return a plan with its nodes in float where that is faster, by the costs of its recipe.

    Where the purpose is balanced, rounding has a price as well, as far as sketches tell of it.
    Sizes that inputs leave open are those of the first of the samples.
    """
    recipe = plan.recipe
    if not recipe.is_placed_by_cost:
        return plan
    samples, costs = calibrated.evaluation.samples, read_costs(recipe.place.cpu)
    noises = dict[str, float]()
    if recipe.place.purpose == "balanced":
        shares = noise_shares(plan.tensors.values(), calibrated.sketches)
        noises = {name: recipe.place.noise_price * share for name, share in shares.items()}
    placed = _place(prepared, plan.nodes, _pairs(plan), costs, samples, noises)
    if placed is None:
        return plan.with_notes([_UNKNOWN])
    if not placed.integers and (found := _all_float(prepared, layout, samples)) is not None:
        return found  # the same as where nothing was calibrated
    reasons = {
        name: SLOWER if in_integers >= in_float else NOISY
        for name, (in_float, in_integers) in placed.times.items()
    }
    plan = leave_float(prepared.model, plan, reasons)
    return _with_times(plan, costs, placed)


def _pairs(plan: QuantPlan) -> set[str]:
    """Return the activations that have integers."""
    return {entry.tensor for entry in plan.tensors.values() if entry.role == "activation"}


def _place(
    prepared: Prepared,
    nodes: Mapping[str, NodePlan],
    paired: Collection[str],
    costs: CostTable,
    samples: Sequence[Sample],
    noises: Mapping[str, float] = MappingProxyType({}),
) -> Placed | None:
    purpose: Purpose = prepared.recipe.place.purpose
    model, preference = _sized(prepared, samples), _PREFERENCE[purpose]
    return place(model, nodes, paired, costs, preference=preference, noises=noises)


def _with_times(plan: QuantPlan, costs: CostTable, placed: Placed) -> QuantPlan:
    """Return a placed plan with what its float nodes take, on which class of CPU."""
    nodes = {
        name: msgspec.structs.replace(node, times=placed.times[name])
        if name in placed.times
        else node
        for name, node in plan.nodes.items()
    }
    recipe = plan.recipe.replace(place={"cpu": costs.cpu})
    plan = msgspec.structs.replace(plan, recipe=recipe, nodes=nodes)
    return plan.with_notes([_describe(costs, placed)])


def is_sized(prepared: Prepared) -> bool:
    """Whether the inputs leave no size open."""
    return all(isinstance(d, int) for spec in prepared.inputs for d in spec.shape or (None,))


def estimate_parts(
    prepared: Prepared, plan: QuantPlan, parts: Sequence[Collection[str]], samples: Sequence[Sample]
) -> PartTimes | None:
    """Return what parts of a plan take by the costs that it is placed by, each given by its nodes.

    None where the sizes of products are not known, at the sizes of the first sample.
    """
    costs = read_costs(plan.recipe.place.cpu)
    return time_parts(_sized(prepared, samples), plan.nodes, _pairs(plan), costs, parts)


def _sized(prepared: Prepared, samples: Sequence[Sample]) -> ir.Model:
    """Return the model at the sizes of the first sample, where its inputs leave some open."""
    if is_sized(prepared) or not samples:
        return prepared.model
    shapes = {name: array.shape for name, array in samples[0].items()}
    known, model = _SIZED.get(prepared.model, ({}, prepared.model))
    if known == shapes:
        return model
    sizes = dict[str, int]()
    for spec in prepared.inputs:
        for dim, size in zip(spec.shape or (), shapes[spec.name], strict=False):
            if isinstance(dim, str):
                sizes[dim] = size
    model = graph.clone_model(prepared.model)
    graph.set_input_shapes(model, shapes, sizes)
    graph.infer_shapes(model)
    fold_constants(model)  # shapes that are computed
    graph.infer_shapes(model)
    _SIZED[prepared.model] = shapes, model
    return model


_SIZED = WeakKeyDictionary[ir.Model, tuple[dict[str, tuple[int, ...]], ir.Model]]()
"""Models at the sizes of samples: each candidate of a job is placed anew."""


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


# Which part of a model gains from dynamic quantization: large products of matrices -------------


MAX_SHARE = 0.5
"""The share of multiply-adds in convolutions from which on a model's work is said to be in them:
halving the time of all else would then save a quarter at most."""
SLOW_CONVOLUTION = "measured at run time, the integers of a convolution take longer than its floats"

MIN_WEIGHTS = 1 << 17
"""The weights that the readers of one activation have together, from which on rows of integers are
faster than floats whatever their number. With 2^16 of them (256 to 256 channels, x86 with VNNI,
ONNX Runtime 1.31) they take 1.07, 1.29 and 0.94 of float's time for 1, 16 and 128 rows, and with
384 to 384 channels 0.72, 0.88 and 0.71."""
SMALL = (
    "the products of its activation are so small that finding the range of each row takes longer "
    "than integers save"
)


def leave_slower_float(prepared: Prepared) -> Prepared:
    """Return a model with those nodes kept float that a dynamic recipe would make slower.

    These are convolutions, of which ONNX Runtime's ConvInteger takes 2 to 4 times the time of the
    float Conv, and small products; those that the recipe names are taken. A model whose work is in
    convolutions is refused: a static recipe makes it faster, and this one would not. One with
    recurrent layers that gain is not.
    """
    select = prepared.recipe.select
    if select.nodes is not None:
        return prepared
    planned = lay_out_dynamic(prepared.model, prepared.recipe).nodes
    nodes = [node for node in prepared.model.graph.all_nodes() if (node.name or "") in planned]
    taken = [n for n in nodes if planned[n.name or ""].quantized]
    named = {*(select.op_types or ()), *select.more_op_types} & CONVOLUTIONS
    slower = [n for n in taken if n.op_type in CONVOLUTIONS and not named]
    share = _work(slower) / max(_work(nodes), 1)
    # How often a recurrent layer runs is not known.
    if slower and share >= MAX_SHARE and not any(n.op_type in RECURRENT for n in taken):
        raise NothingQuantizedError(
            f"{share:.0%} of the model's multiply-adds are in convolutions, which ONNX Runtime "
            "computes 2 to 4 times slower than in float where ranges are measured at run time",
            remedy="take a static recipe, such as 'int8-per-channel', with data (RandomData() to "
            "try things out), or go on with force_dynamic=True",
            command="leave out --dynamic and give --data PATH (--random-data 8 to try things out), "
            "or go on with --force-dynamic",
        )
    kept = dict.fromkeys((node.name or "" for node in slower), SLOW_CONVOLUTION)
    kept |= _small_products(taken, planned)
    return replace(prepared, keep_float={**prepared.keep_float, **kept})


def _small_products(taken: Iterable[ir.Node], planned: Mapping[str, NodePlan]) -> dict[str, str]:
    """Return the products by rows whose activation has few weights behind it, and why.

    Where no other product would be left, they are taken all the same.
    """
    readers = defaultdict[ir.Value | None, list[ir.Node]](list)
    products = [node for node in taken if node.op_type in MATRIX_PRODUCTS]
    for node in products:
        if planned[node.name or ""].per_token:
            readers[node.inputs[0]].append(node)
    small = [
        node.name or ""
        for group in readers.values()
        if sum(_weights(node) for node in group) < MIN_WEIGHTS
        for node in group
    ]
    return {} if len(small) == len(products) else dict.fromkeys(small, SMALL)


def _weights(node: ir.Node) -> int:
    weight = weight_of(node)
    return 0 if weight is None else math.prod(static_shape(weight.value) or ())


def _work(nodes: Iterable[ir.Node]) -> int:
    """Return the multiply-adds of nodes; open sizes and unknown lengths count as one."""
    return sum(_multiply_adds(node) for node in nodes)


def _multiply_adds(node: ir.Node) -> int:
    known = multiply_adds(node, open_size=1)
    if known is not None:
        return known
    weights = [constant_of(value) for value in node.inputs[1:3] if value is not None]
    return sum(weight.size for weight in weights if weight is not None and weight.ndim > 1)
