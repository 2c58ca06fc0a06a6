"""Weights rounded one after the other, each for the inputs that the ones before it leave it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from bitwright.decide.layout.weight_only import product_source
from bitwright.equalize import CLIPPED, awq_clip, awq_scales
from bitwright.errors import DataError
from bitwright.jobs.weight_only.layers import Site, weight_sites
from bitwright.numerics.arrays import NUMPY, Arrays
from bitwright.numerics.blocks import (
    SHRINKS,
    QuantizedBlocks,
    quantize_in_blocks,
    round_on_grid,
)
from bitwright.numerics.second_moment import SecondMoment
from bitwright.observe import LayerInputs, LayerwiseRun
from bitwright.plan import QuantPlan, Smoothing
from bitwright.recipe import GPTQ, HQQ, Nearest, WeightOnly
from bitwright.rounding import BlockStore, HessianFactor, factor_hessian, gptq, hqq, refine

__all__ = ["find_scaling", "round_weights"]

Array = npt.NDArray[Any]
Feeds = Mapping[str, Array]


def round_weights(
    model: ir.Model,
    plan: QuantPlan,
    samples: Iterable[Feeds] | None,
    store: BlockStore,
    *,
    xp: Arrays = NUMPY,
    providers: Sequence[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Round every weight of the plan into the store; those that are in it already stay.

    Methods that weigh errors by a layer's inputs need samples. In a sequential recipe, each layer
    sees the inputs that the rounded layers before it give.
    """
    options = plan.recipe.weights
    sites = weight_sites(model, plan)
    watched: dict[str, list[Site]] = {}
    for site in sites:
        wants_inputs = options.needs_data or site.plan.rounding.needs_data
        if site.source is not None and wants_inputs:
            watched.setdefault(site.source, []).append(site)
    total, done = len(sites), 0

    def finish(site: Site, blocks: QuantizedBlocks) -> None:
        nonlocal done
        store.put(site.name, blocks)
        done += 1
        if progress is not None:
            progress(done, total)

    if watched and samples is None:
        method = next(iter(watched.values()))[0].plan.rounding
        raise DataError(
            f"the rounding {type(method).__name__} weighs errors by what each layer reads and "
            "needs calibration data; give data, or choose plain nearest or hqq."
        )
    seen = {site.name for group in watched.values() for site in group}
    for site in sites:
        if site.name not in seen and site.name not in store:
            finish(site, _round(site, None, options, xp))
    if not watched:
        return
    assert samples is not None
    starts = _starts(model, watched)
    with LayerwiseRun(model, list(starts), samples, providers=providers) as walk:
        for stop in walk:
            group = watched[starts[stop.node]]
            if not all(site.name in store for site in group):
                inputs = _Inputs(stop, starts[stop.node], group[0].shape[0], xp)
                for site in group:
                    if site.name not in store:
                        finish(site, _round(site, inputs, options, xp))
                del inputs  # a Hessian at a time
            if options.sequential:
                for site in group:
                    stop.put_weight(site.value.name or "", _restored(site, store))


def _starts(model: ir.Model, groups: Mapping[str, Sequence[Site]]) -> dict[str, str]:
    """Return the first product that reads each of the tensors; each product reads only one."""
    products = {
        (source, name) for source, group in groups.items() for s in group for name in s.plan.nodes
    }
    found: dict[str, str] = {}
    for node in model.graph:
        source = product_source(node)
        if source is not None and (source.name, node.name) in products:
            found.setdefault(source.name or "", node.name or "")
    return {node: source for source, node in found.items()}


def _restored(site: Site, store: BlockStore) -> ir.LazyTensor:
    """Return a rounded weight as the model would hold it, read when the model runs."""
    assert site.value.dtype is not None and site.value.shape is not None
    return ir.LazyTensor(
        lambda: ir.tensor(np.ascontiguousarray(site.restore(store.get(site.name)))),
        dtype=site.value.dtype,
        shape=ir.Shape(site.value.shape),
        name=site.value.name,
        cache=False,
    )


class _Inputs:
    """What a layer reads, in the forms that methods ask for; each is made once for its siblings."""

    def __init__(self, stop: LayerInputs, source: str, channels: int, xp: Arrays) -> None:
        moment = SecondMoment(channels, xp=xp)
        for array in stop.values(source):
            moment.update(array)
        self.moment = moment.matrix()
        self.magnitudes = moment.mean_magnitudes()
        self._xp = xp
        self._factors: dict[tuple[float, bool], HessianFactor] = {}

    def factor(self, method: GPTQ) -> HessianFactor:
        """Return the moment factored for GPTQ."""
        key = (method.damping, method.act_order)
        if key not in self._factors:
            self._factors[key] = factor_hessian(
                self.moment, damping=method.damping, act_order=method.act_order, xp=self._xp
            )
        return self._factors[key]


def _round(site: Site, inputs: _Inputs | None, options: WeightOnly, xp: Arrays) -> QuantizedBlocks:
    """Return one weight rounded as its plan says."""
    method, form, weight = site.plan.rounding, site.format(), site.read()
    shrinks: Sequence[float] = (method.shrink if isinstance(method, Nearest) else 1.0,)
    if not isinstance(method, HQQ) and method.clip:
        shrinks = SHRINKS
    clipped = options.awq is not None and options.awq.clip and site.plan.awq
    if isinstance(method, HQQ):
        blocks = hqq(weight, form, float_zero_points=method.float_zero_points, xp=xp)
    elif isinstance(method, GPTQ):
        assert inputs is not None
        grid = awq_clip(weight, inputs.moment, form, xp=xp) if clipped else None
        blocks = gptq(
            weight,
            inputs.factor(method),
            form,
            grid=grid,
            shrinks=shrinks,
            per_column=method.per_column,
        )
    elif inputs is not None and (clipped or method.clip):
        blocks = round_on_grid(weight, awq_clip(weight, inputs.moment, form, xp=xp), form, xp=xp)
    else:
        blocks = quantize_in_blocks(weight, form, shrinks=shrinks, xp=xp)
    if options.refine and inputs is not None:
        blocks = refine(weight, blocks, inputs.moment, rounds=options.refine, xp=xp)
    return blocks


# AWQ ------------------------------------------------------------------------------------------


def find_scaling(
    model: ir.Model,
    plan: QuantPlan,
    samples: Iterable[Feeds],
    *,
    xp: Arrays = NUMPY,
    providers: Sequence[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Smoothing]:
    """Return what AWQ divides the inputs of products by, and multiplies their weights with."""
    options = plan.recipe.weights
    assert options.awq is not None
    alphas = np.linspace(0, 1, options.awq.grid + 1).tolist()
    groups = _by_source(weight_sites(model, plan))
    starts = _starts(model, groups)
    found: dict[str, Smoothing] = {}
    with LayerwiseRun(model, list(starts), samples, providers=providers) as walk:
        for stop in walk:
            source = starts[stop.node]
            # A weight that others read too would be scaled for them as well.
            group = [s for s in groups[source] if s.plan.awq and len(s.plan.nodes) == 1]
            if group:
                inputs = _Inputs(stop, source, group[0].shape[0], xp)
                factors = awq_scales(
                    [site.read() for site in group],
                    inputs.magnitudes,
                    inputs.moment,
                    group[0].format(),
                    alphas=alphas,
                    shrinks=CLIPPED if options.awq.clip else (1.0,),
                    xp=xp,
                )
                if np.any(factors != 1):
                    # As float32, in which the model will hold them: the plan gives the same bytes.
                    stored = factors.astype(np.float32).astype(np.float64)
                    names = tuple(site.plan.nodes[0] for site in group)
                    found[source] = Smoothing(nodes=names, factors=tuple(stored.tolist()))
            if progress is not None:
                progress(len(found), len(groups))
    return found


def _by_source(sites: Iterable[Site]) -> dict[str, list[Site]]:
    groups: dict[str, list[Site]] = {}
    for site in sites:
        if site.source is not None:
            groups.setdefault(site.source, []).append(site)
    return groups
