"""Caches of attention in integers: observed on the quantized model, written, and measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np
import onnx_ir as ir

from bitwright import graph
from bitwright.emit.caches import (
    AttentionCache,
    bits_of,
    channel_scales,
    find_caches,
    quantize_caches,
    with_float_caches,
)
from bitwright.errors import DataError, ModelError, RecipeError
from bitwright.jobs.calibration import Calibration, Evaluation, unseen_samples
from bitwright.jobs.opening import Prepared
from bitwright.jobs.output import Written, assess_model, sign_model
from bitwright.jobs.result import Result
from bitwright.jobs.weight_only.answers import compare_answers, show_figures
from bitwright.jobs.weight_only.work import WeightWork
from bitwright.plan import CachePlan
from bitwright.recipe import Recipe, find_override
from bitwright.run import Session
from bitwright.support import Array, counted, logged, show_bytes

_SHOWN_TOKENS = 1024


def with_windows(prepared: Prepared, calibration: Calibration, *, known: bool) -> WeightWork:
    """Return the data for caches: of a text, or what the model writes if no scales are `known`."""
    find_caches(prepared.model, bits_of(prepared.recipe.cache))  # before any work
    return WeightWork(prepared, calibration).with_windows(needs_data=not known)


@logged("quantize caches")
def write_caches(work: WeightWork, result: Result) -> Result:
    """Return a result with its caches in integers."""
    prepared, calibration = work.prepared, work.calibration
    plan, bits = result.plan, bits_of(result.plan.recipe.cache)
    model = graph.clone_model(result.model)
    caches = find_caches(model, bits)
    plans = plan.caches or _given_scales(plan.recipe, caches)
    if plans:
        evaluation, data = unseen_samples(prepared, calibration), result.data
    else:
        plans, evaluation, data = _observe(prepared, result.model, caches, calibration)
    token = quantize_caches(model, plans, bits)
    plan = msgspec.structs.replace(plan, caches=dict(plans))
    plan = plan.with_notes([*_prices(bits, token), *work.notes])
    sign_model(model, plan)
    if prepared.float_size > graph.MAX_HELD_BYTES:
        return assess_model(prepared, Written(model, plan), evaluation, data)
    return _measure(prepared, result, Written(model, plan), evaluation, data)


def _observe(
    prepared: Prepared, model: ir.Model, caches: Sequence[AttentionCache], calibration: Calibration
) -> tuple[dict[str, CachePlan], Evaluation, str]:
    """Return scales for the largest magnitude of each channel in what a model caches."""
    if calibration.data is None:
        raise DataError(
            "caches of integers need scales, and the model cannot write its own samples; give data "
            "(a text with the folder's tokenizer, or arrays), or scales (--encodings)."
        )
    split = calibration.split(model)
    session = Session(model, providers=prepared.providers)
    names = [value.name or "" for cache in caches for value in cache.present]
    peaks: dict[str, Array] = {}
    for sample in split:
        for name, array in session.run(sample, names).items():
            found = np.abs(array.astype(np.float32)).max(axis=(0, 2), initial=0.0)
            peaks[name] = np.maximum(peaks.get(name, found), found)
    broken = next((name for name, peak in peaks.items() if not np.isfinite(peak).all()), None)
    if broken is not None:
        raise ModelError(f"{broken!r} holds NaN or infinity on the data; repair the model.")
    plans, bits = {}, bits_of(prepared.recipe.cache)
    for cache in caches:
        key, value = (channel_scales(peaks[v.name or ""], bits) for v in cache.present)
        plans[cache.node.name or ""] = CachePlan(key=key, value=value)
    data = f"{counted(split.count, 'sample')} of {split.description}"
    return plans, Evaluation.of(split), data


def _measure(
    prepared: Prepared, before: Result, written: Written, evaluation: Evaluation, data: str
) -> Result:
    """Return the result, and what its caches lose beside float ones on the same samples."""
    view = graph.clone_model(written.model)
    with_float_caches(view)
    session = Session(view, providers=prepared.providers)
    written = replace(written, session=session)
    if not evaluation:
        return assess_model(prepared, written, evaluation, data)
    plain = Session(before.model, providers=prepared.providers)
    floats, integers = compare_answers(
        prepared, [Written(before.model, before.plan, plain), written], evaluation.samples
    )
    known = floats.judgement.perplexity, integers.judgement.perplexity
    read = ""
    if known[0] is not None and known[1] is not None:
        read = f"the perplexity from {known[0].after:.3f} to {known[1].after:.3f}"
    lost = show_figures(floats.judgement, integers.judgement)
    note = f"caches of {before.plan.recipe.cache} change {read or 'the answers'}{lost}"
    written = replace(written, plan=written.plan.with_notes([note]), compared=integers)
    return assess_model(prepared, written, evaluation, data)


def _prices(bits: int, token: tuple[int, int]) -> list[str]:
    before, after = (show_bytes(_SHOWN_TOKENS * size) for size in token)
    loss = "" if bits == 8 else "; 4 bits lose about as much as weights of 4 bits do"
    return [
        f"warning: prompts take longer with caches of int{bits}, the more the longer they are (8 "
        "bits, 135M parameters, one thread: 1.6 of float's time for 512 tokens, 2.1 for 1,024), "
        f"and next tokens behind them less (0.8){loss}",
        f"the cache of {_SHOWN_TOKENS:,} tokens takes {after} in place of {before}",
    ]


def _given_scales(recipe: Recipe, caches: Sequence[AttentionCache]) -> dict[str, CachePlan]:
    """Return the scales that overrides of a recipe give: of all caches, or of none."""
    names = [value.name or "" for cache in caches for value in cache.present]
    given = {name: find_override(recipe.overrides, name) for name in names}
    scales = {name: one.scale for name, one in given.items() if one is not None and one.scale}
    strange = [n for n in recipe.overrides if n not in names] if recipe.mode != "dynamic" else []
    if strange or (scales and len(scales) < len(names)):
        missing = strange[0] if strange else next(name for name in names if name not in scales)
        what = "no cache has the name" if strange else "no scales are given for the cache"
        raise RecipeError(f"{what} {missing!r}; give scales of all caches, or of none.")
    plans = {}
    for cache in caches if scales else ():
        key, value = (np.ravel(scales[v.name or ""]).tolist() for v in cache.present)
        plans[cache.node.name or ""] = CachePlan(key=tuple(key), value=tuple(value))
    return plans
