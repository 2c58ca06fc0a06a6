"""Timing: a result beside the prepared float model, once it is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from bitwright.assess import PROMPT, Clock, middle_sized, stays_float, time_models
from bitwright.data import RandomData, Sample, TextData, fill_token_inputs, is_cache
from bitwright.data.token_inputs import fixed_length, folder_of_configuration, is_tokens
from bitwright.errors import DataError, ModelError
from bitwright.graph import clone_model, input_at, static_shape
from bitwright.jobs.opening import Prepared, open_model
from bitwright.jobs.result import Result
from bitwright.plan import QuantPlan
from bitwright.prepare import prepare_exactly
from bitwright.recipe import Recipe
from bitwright.support.logs import logged
from bitwright.targets.host import detect_cpu_class

CONTEXT = 512
"""Tokens in a cache that is quantized, and of the prompt that fills it, where these are timed."""
TOO_LONG = "too few runs fit into two seconds; 'bitwright bench' takes the time"
MAX_BYTES = 1 << 30
"""Size of both models together from which opening them once more takes longer than is to be waited
for."""


@logged("time the result")
def time_result(prepared: Prepared, result: Result, *, elsewhere: bool = False) -> Clock | str:
    """Return the time of a result beside the prepared float model, on one thread; or why not.

    Models for accelerators cannot be timed here, or that this runtime does not run, that need
    samples of the user's, that are larger than a gigabyte, or that take most of a second.
    """
    why = why_untimed(result.plan, result.plan.recipe, elsewhere=elsewhere)
    if why is not None:
        return why
    if prepared.float_size + result.size > MAX_BYTES:
        return "both models together are larger than a gigabyte; 'bitwright bench' takes the time"
    try:
        models = [yardstick_of(prepared), result.model]
        samples = _token_samples(prepared, result)
        if not samples:
            drawn = list(result.evaluation) or list(RandomData(count=1).samples(prepared.inputs))
            samples = [middle_sized(drawn)]
        context = _context_of(result)
        options: dict[str, Any] = {"providers": prepared.providers, "however_long": bool(context)}
        found = [time_models(models, [s, s], **options) for s in samples]
    except (DataError, ModelError):
        # The result was checked before: its notes say what it does not run on.
        return "this machine's runtime does not run it on samples that can be made up"
    first, prompt = ([None if clocks is None else clocks[0] for clocks in found] + [None])[:2]
    if first is None:
        return TOO_LONG
    return first if prompt is None else replace(first, prompt=prompt, context=context)


def why_untimed(plan: QuantPlan | None, recipe: Recipe | None, *, elsewhere: bool) -> str | None:
    """Return why the time of a model says nothing here, if it does not.

    `elsewhere`: it is for a target that is not this machine.
    """
    if plan is not None and stays_float(plan):
        return "it is the prepared float model"
    if elsewhere or not (recipe is None or is_for_cpu(recipe)):
        return "it is made for other hardware than this machine's CPU"
    return None


def _token_samples(prepared: Prepared, result: Result) -> list[Sample]:
    """Return one token, and a prompt, of a language model of which the weights are quantized.

    Their times differ: the n-bit products of few rows are faster than float's, of many often not.
    Where the cache is quantized, the prompt is long, and the token comes behind as many.
    """
    specs = prepared.inputs
    text = TextData(text="", config=folder_of_configuration(prepared.source))
    reads = any(map(is_tokens, specs)) and not (text.unfilled(specs) or fixed_length(specs))
    context = _context_of(result)
    if not reads or (result.plan.recipe.mode != "weight-only" and context is None):
        return []
    seen = (s[spec.name] for s in result.evaluation for spec in specs if is_tokens(spec))
    tokens = next(seen, np.zeros((1, 1), np.int64))[:1]
    rows = [np.resize(tokens, (1, count)) for count in (1, context or PROMPT)]
    one, prompt = (next(iter(text.samples_of(row, specs, "tokens"))) for row in rows)
    if context is not None:
        sizes = {name: array.shape for name, array in one.items() if is_cache(name)}
        filled = {n: np.zeros((*s[:2], context, s[3]), one[n].dtype) for n, s in sizes.items()}
        later = fill_token_inputs(rows[0], specs, done=context, heads=text.heads())
        one = {**later, **filled}
    return [one, prompt]


def _context_of(result: Result) -> int | None:
    """Return how many tokens are before the one that is timed, of a model with a quantized cache.

    Rotary angles end where the model does.
    """
    if result.plan.recipe.cache is None:
        return None
    nodes = [node for node in result.model.graph.all_nodes() if node.name in result.plan.caches]
    angles = [static_shape(value) for node in nodes if (value := input_at(node, 7)) is not None]
    return min([CONTEXT, *(shape[0] // 2 for shape in angles if shape)])


def is_for_cpu(recipe: Recipe) -> bool:
    """Whether a recipe makes models for a CPU as this machine has it."""
    place, format = recipe.place, recipe.output_format
    of_host = place.cpu in (None, detect_cpu_class())
    return of_host and place.must_run and not (recipe.limits or place.isolated or format.vendor_ops)


def prepare_yardstick(source: Any, providers: Sequence[str] | None = None) -> Prepared | None:
    """Return what times are held against: a float model, prepared as for quantizing.

    None for a model that cannot be prepared, as one that is quantized already.
    """
    try:
        return open_model(source, Recipe(), providers)
    except ModelError:
        return None


def yardstick_of(prepared: Prepared) -> ir.Model:
    """Return the same for an opened model: few passes run where only weights are quantized."""
    recipe = prepared.recipe
    if recipe.optimize and recipe.mode != "weight-only":
        return prepared.reference
    model = clone_model(prepared.reference)
    prepare_exactly(model, widen=recipe.float16 == "widen", rewrite=recipe.rewrite)
    return model
