"""Ranges of activations and weights: by other methods, and by what becomes of each tensor.

What a range costs is not what it does to the tensor: a value that a Relu cuts off, or that a small
weight multiplies, may be clipped for nothing. So each product runs by itself on inputs quantized
over the range of every method, and the outputs are compared behind its activation function.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from bitwright.data import Sample
from bitwright.decide.function_behind import function_behind
from bitwright.decide.ops import LINEAR_OPS
from bitwright.graph import is_constant
from bitwright.jobs.improve.loop import Trail
from bitwright.jobs.improve.proposals.combinations import Attempts, try_combinations
from bitwright.jobs.improve.recipes import Change, RecipeCandidate, RecipeMaker
from bitwright.jobs.opening import Prepared
from bitwright.numerics.quantize import fake_quantize
from bitwright.plan import QuantPlan
from bitwright.recipe import MSE, MeanExtremes, MinMax, MinMSE, Override, RangeMethod, Recipe
from bitwright.run import LayerwiseRun, open_path
from bitwright.support.wording import counted

__all__ = [
    "BYTE",
    "MIN_SAVED",
    "activation_ranges",
    "better_methods",
    "has_fine_weights",
    "ranges_by_readers",
    "weight_ranges",
]

BYTE = 8
MIN_SAVED = 0.1
"""The share of the error behind its readers that a range must save to be another than the rest."""
READER_SAMPLES = 8
"""How many samples what reads a tensor is run on, for each range method."""


def activation_ranges(recipe: Recipe, prepared: Prepared) -> Iterator[Change]:
    """Propose other range methods for all activations."""
    method = recipe.ranges
    channelwise = isinstance(method, MinMax) and method.per_channel
    if recipe.activation.is_integer and not channelwise:
        yield from _by_error(recipe, "ranges", "activations", method)
        if recipe.scales == "float" and not isinstance(method, MeanExtremes):
            mean = MeanExtremes(symmetric=method.symmetric)
            yield Change("ranges of activations by mean extremes", {"ranges": mean})


def weight_ranges(recipe: Recipe, prepared: Prepared) -> Iterator[Change]:
    """Propose to clip weights, where 8 bits for each channel do not hold them well anyway."""
    if recipe.weight.is_integer and not recipe.block_size and not has_fine_weights(recipe):
        yield from _by_error(recipe, "weight_ranges", "weights", recipe.weight_ranges)


def has_fine_weights(recipe: Recipe) -> bool:
    """Whether each channel of a weight has 8 bits and a scale of its own."""
    return recipe.per_channel and recipe.weight.bits >= BYTE and recipe.scales == "float"


def _by_error(recipe: Recipe, field: str, tensors: str, method: RangeMethod) -> Iterator[Change]:
    best = MinMSE if recipe.scales == "power-of-two" else MSE
    if not isinstance(method, best):
        chosen = best(symmetric=method.symmetric)
        yield Change(f"ranges of {tensors} by least squared error", {field: chosen})


def ranges_by_readers(maker: RecipeMaker, trail: Trail[RecipeCandidate]) -> Attempts:
    """Try for each tensor the range method of the least error behind what reads it."""
    assert trail.best is not None  # the recipe as it was given
    recipe, given = trail.best.recipe, maker.prepared.recipe
    others = [change.fields["ranges"] for change in activation_ranges(given, maker.prepared)]
    methods = [recipe.ranges, *(m for m in (given.ranges, *others) if m != recipe.ranges)]
    decided = [maker.decide(recipe.replace(ranges=method)) for method in methods]
    plans = [one.plan for one in decided]
    better = better_methods(decided[0].prepared, plans, maker.judged[1][:READER_SAMPLES])
    overrides = dict(recipe.overrides)
    for name, index in better.items():
        before = overrides.get(name, Override())
        overrides[name] = msgspec.structs.replace(before, ranges=methods[index])
    title = f"ranges of {counted(len(better), 'tensor')} by the error behind what reads them"
    changes = [Change(title, {"overrides": overrides})] if better else []
    kind = "ranges by the error behind what reads them"
    yield from try_combinations(maker, recipe, {kind: changes})


def better_methods(
    prepared: Prepared, plans: Sequence[QuantPlan], samples: Sequence[Sample]
) -> dict[str, int]:
    """Return for which tensors another plan than the first has a range of less error, and which.

    The plans are for the same layout, and differ in the ranges of activations alone.
    """
    first, *_ = plans
    layers = _products(prepared, first)
    errors: defaultdict[str, npt.NDArray[np.float64]] = defaultdict(lambda: np.zeros(len(plans)))
    if not layers:
        return {}
    with LayerwiseRun(prepared.model, list(layers), samples, providers=prepared.providers) as run:
        for inputs in run:
            source, result, key = layers[inputs.node]
            product = open_path(
                prepared.model,
                source,
                result,
                assumed_type=ir.TensorType(ir.DataType.FLOAT),
                providers=prepared.providers,
            )
            size, lost = 0.0, np.zeros(len(plans))
            for array in inputs.values(source):
                wanted = product(array)
                size += float(np.vdot(wanted, wanted))
                for index, plan in enumerate(plans):
                    found = plan.parameters(key)
                    seen = fake_quantize(array, found.scale, found.zero_point, found.qtype)
                    change = product(seen) - wanted
                    lost[index] += float(np.vdot(change, change))
            if size > 0:
                errors[first.root(key)] += lost / size
    chosen = {key: int(np.argmin(lost)) for key, lost in errors.items()}
    return {
        key: best
        for key, best in chosen.items()
        if errors[key][best] < (1 - MIN_SAVED) * errors[key][0]
    }


def _products(prepared: Prepared, plan: QuantPlan) -> dict[str, tuple[str, str, str]]:
    """Return what each product reads and gives, and the entry of what it reads, by its name."""
    found = {}
    for node in prepared.model.graph:
        planned = plan.nodes.get(node.name or "")
        if planned is None or planned.action != "quantize" or node.op_type not in LINEAR_OPS:
            continue
        source, key = node.inputs[0], planned.inputs[0]
        if (
            source is None
            or key is None
            or not all(map(is_constant, filter(None, node.inputs[1:])))
        ):
            continue
        entry = plan.tensors[plan.root(key)]
        if entry.role != "activation" or entry.scale is None or np.ndim(entry.scale):
            continue
        end = function_behind(node.outputs[0])
        found[node.name or ""] = source.name or "", end.name or "", key
    return found
