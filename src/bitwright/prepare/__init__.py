"""Float in, float out: passes that make a model easier to quantize, or fit for the hardware."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import onnx_ir as ir

from bitwright.graph import is_turned_constant
from bitwright.prepare.add_biases import give_biases
from bitwright.prepare.batch_norm_to_conv import batch_norm_to_conv
from bitwright.prepare.building import without_notes
from bitwright.prepare.channels_last import channels_last, turned_inputs
from bitwright.prepare.clip_to_relu import clip6_to_relu, clip_to_relu
from bitwright.prepare.drop_no_ops import drop_no_ops
from bitwright.prepare.flatten_weights import flatten_weights
from bitwright.prepare.fold_batch_norm import fold_batch_norm
from bitwright.prepare.fold_constants import fold_constants
from bitwright.prepare.fold_gemm_scalars import fold_gemm_scalars
from bitwright.prepare.fold_scale_shift import fold_scale_shift
from bitwright.prepare.fuse_hard_swish import fuse_hard_swish
from bitwright.prepare.fuse_instance_norm import fuse_instance_norm
from bitwright.prepare.fuse_l2_norm import fuse_l2_norm
from bitwright.prepare.reduce_mean_to_pool import reduce_mean_to_pool
from bitwright.prepare.simulation import simulate_npu, simulation_steps
from bitwright.prepare.split_large_pools import split_large_pools
from bitwright.prepare.split_to_slice import split_to_slice
from bitwright.prepare.swish_to_mul import swish_to_mul
from bitwright.prepare.trained import Trained, read_trained
from bitwright.prepare.widen_float16 import widen_half_floats
from bitwright.recipe import Rewrites, Simulation

__all__ = [
    "Trained",
    "approximate",
    "approximates",
    "batch_norm_to_conv",
    "channels_last",
    "clip6_to_relu",
    "clip_to_relu",
    "drop_no_ops",
    "flatten_weights",
    "fold_batch_norm",
    "fold_constants",
    "fold_gemm_scalars",
    "fold_scale_shift",
    "fuse_hard_swish",
    "fuse_instance_norm",
    "fuse_l2_norm",
    "give_biases",
    "prepare",
    "prepare_exactly",
    "prepare_weights",
    "read_trained",
    "reduce_mean_to_pool",
    "simulate_npu",
    "simulation_steps",
    "split_large_pools",
    "split_to_slice",
    "swish_to_mul",
    "turned_inputs",
    "widen_half_floats",
]


class _Pass(NamedTuple):
    change: Callable[[ir.Model], int]
    sentence: str
    is_optimization: bool = True
    """The others are needed for right numbers."""


# Constants come first: a folded weight is what the passes after it look for. The hard swish comes
# before the scales and shifts, which would take its pieces away one by one. Each pass can open new
# places for the others; each removes nodes, so this ends.
_FOLDING = (
    _Pass(drop_no_ops, "dropped {} no-op"),
    _Pass(fuse_hard_swish, "fused {} hard-swish pattern"),
    _Pass(fold_batch_norm, "folded {} batch norm"),
    _Pass(fold_scale_shift, "folded {} constant scale or shift node"),
    _Pass(fold_gemm_scalars, "folded the scalars of {} Gemm node", is_optimization=False),
)


class _Rewrite(NamedTuple):
    field: str
    """Of `Rewrites`."""
    change: Callable[[ir.Model, list[str]], int]
    sentence: str


# Larger patterns come before the folding too, for the same reason.
_PATTERNS = (
    _Rewrite("fuse_instance_norm", without_notes(fuse_instance_norm), "fused {} instance norm"),
    _Rewrite("fuse_l2_norm", fuse_l2_norm, "fused {} L2 norm"),
)
# Means become pools before large pools are split. A batch norm becomes a convolution only where
# nothing could take it. The layout comes last: transposes would hide patterns.
_REWRITES = (
    _Rewrite("batch_norm_to_conv", batch_norm_to_conv, "made convolutions of {} batch norm"),
    _Rewrite("reduce_mean_to_pool", without_notes(reduce_mean_to_pool), "made pools of {} mean"),
    _Rewrite("split_large_pools", split_large_pools, "split {} large pool"),
    _Rewrite("split_to_slice", split_to_slice, "made slices of {} Split"),
    _Rewrite("swish_to_mul", without_notes(swish_to_mul), "made products of {} swish"),
    _Rewrite("channels_last", channels_last, "turned to NHWC: {} outer tensor"),
)
_APPROXIMATIONS = (
    _Rewrite("clip_to_relu", without_notes(clip_to_relu), "made Relu of {} Clip"),
    _Rewrite("clip6_to_relu", without_notes(clip6_to_relu), "made Relu of {} 0-to-6 Clip"),
)


def prepare(
    model: ir.Model,
    *,
    optimize: bool = True,
    widen: bool = True,
    rewrite: Rewrites = Rewrites(),  # noqa: B008 (frozen)
    simulate: Simulation | None = None,
) -> list[str]:
    """Run the passes in place; return what each did, and why one that was asked for did not.

    >>> graph = ir.Graph([], [], nodes=[], opset_imports={"": 21})
    >>> prepare(ir.Model(graph, ir_version=10))
    []
    """
    return prepare_exactly(model, optimize=optimize, widen=widen, rewrite=rewrite) + approximate(
        model, rewrite=rewrite, simulate=simulate
    )


def prepare_exactly(
    model: ir.Model,
    *,
    optimize: bool = True,
    widen: bool = True,
    rewrite: Rewrites = Rewrites(),  # noqa: B008 (frozen)
) -> list[str]:
    """Run the passes that leave what the model computes, but for rounding and its inputs' layout.

    Without `widen`, float16 stays.

    >>> graph = ir.Graph([], [], nodes=[], opset_imports={"": 21})
    >>> prepare_exactly(ir.Model(graph, ir_version=10))
    []
    """
    widened = widen_half_floats(model, interface=rewrite.widen_interface) if widen else 0
    told = _said("widened {} float16 tensor", widened)
    if optimize:
        told += _said("removed {} constant, idle or repeated node", fold_constants(model))
    told += _rewrite(model, _PATTERNS, rewrite)
    told += _fold(model, [step for step in _FOLDING if optimize or not step.is_optimization])
    return told + _rewrite(model, _REWRITES, rewrite)


def prepare_weights(model: ir.Model, *, optimize: bool = True) -> list[str]:
    """Run the passes that bring out weights and leave them as they are, float16 ones too.

    >>> graph = ir.Graph([], [], nodes=[], opset_imports={"": 21})
    >>> prepare_weights(ir.Model(graph, ir_version=10))
    []
    """
    told = []
    if optimize:
        # A product reads its weight through a Transpose; folded, a head would be a second copy of
        # its embedding, and all weights would be in memory.
        removed = fold_constants(model, keep=is_turned_constant)
        told += _said("removed {} constant, idle or repeated node", removed)
        told += _said("dropped {} no-op", drop_no_ops(model))
        told += _said("made matrices of {} weight with axes of one", flatten_weights(model))
    return told + _said("folded the scalars of {} Gemm node", fold_gemm_scalars(model))


def _fold(model: ir.Model, steps: Sequence[_Pass]) -> list[str]:
    """Run steps until none of them finds anything more."""
    counts = [0] * len(steps)
    changed = True
    while changed:
        found = [step.change(model) for step in steps]
        counts = [sum(pair) for pair in zip(counts, found, strict=True)]
        changed = any(found)
    return [
        sentence
        for step, count in zip(steps, counts, strict=True)
        for sentence in _said(step.sentence, count)
    ]


def approximates(rewrite: Rewrites, simulate: Simulation | None = None) -> bool:
    """Return whether `approximate` may change anything of any model.

    >>> approximates(Rewrites(clip6_to_relu=True)), approximates(Rewrites())
    (True, False)
    """
    asked = any(getattr(rewrite, step.field) for step in _APPROXIMATIONS)
    return asked or simulate is not None


def approximate(
    model: ir.Model, *, rewrite: Rewrites, simulate: Simulation | None = None
) -> list[str]:
    """Run the passes that change what the model computes: it imitates the hardware from then on.

    >>> graph = ir.Graph([], [], nodes=[], opset_imports={"": 21})
    >>> approximate(ir.Model(graph, ir_version=10), rewrite=Rewrites(clip6_to_relu=True))
    []
    """
    told = _rewrite(model, _APPROXIMATIONS, rewrite)
    return told if simulate is None else told + simulate_npu(model, simulate)


def _rewrite(model: ir.Model, steps: Sequence[_Rewrite], wanted: Rewrites) -> list[str]:
    told: list[str] = []
    for step in steps:
        if getattr(wanted, step.field):
            left: list[str] = []
            told += _said(step.sentence, step.change(model, left)) + left
    return told


def _said(sentence: str, count: int) -> list[str]:
    return [sentence.format(count) + ("" if count == 1 else "s")] if count else []
