"""Float model in, float model out: passes that ease quantization, or rewrite for hardware."""

from __future__ import annotations

from functools import partial

import onnx_ir as ir

from bitwright.graph import is_transposed_constant
from bitwright.prepare.add_biases import give_biases
from bitwright.prepare.batch_norm_to_conv import batch_norm_to_conv
from bitwright.prepare.channels_last import channels_last, channels_last_inputs
from bitwright.prepare.clip_to_relu import clip6_to_relu, clip_to_relu
from bitwright.prepare.drop_no_ops import drop_no_ops
from bitwright.prepare.drop_pad_counts import drop_pad_counts
from bitwright.prepare.flatten_weights import flatten_weights
from bitwright.prepare.fold_batch_norm import fold_batch_norm
from bitwright.prepare.fold_constants import fold_constants
from bitwright.prepare.fold_gemm_scalars import fold_gemm_scalars
from bitwright.prepare.fold_pads import lowest_pads_into_pools, zero_pads_into_convolutions
from bitwright.prepare.fold_scale_shift import fold_scale_shift
from bitwright.prepare.fuse_gelu import fuse_gelu
from bitwright.prepare.fuse_hard_swish import fuse_hard_swish
from bitwright.prepare.fuse_l2_norm import fuse_l2_norm
from bitwright.prepare.fuse_norms import fuse_instance_norm, fuse_layer_norm, fuse_rms_norm
from bitwright.prepare.fuse_space_to_depth import fuse_space_to_depth
from bitwright.prepare.keep_zero_pads import keep_zero_pads
from bitwright.prepare.nearest_to_floor import nearest_to_floor
from bitwright.prepare.norms_of_one import norms_of_one
from bitwright.prepare.pads_of_all_axes import pads_of_all_axes
from bitwright.prepare.passes import Pass, run_passes, run_until_stable
from bitwright.prepare.positive_indices import positive_indices
from bitwright.prepare.reduce_mean_to_pool import reduce_mean_to_pool
from bitwright.prepare.simulation import simulate_npu, simulation_steps
from bitwright.prepare.split_fused_products import split_fused_products
from bitwright.prepare.split_large_pools import split_large_pools
from bitwright.prepare.split_to_slice import split_to_slice
from bitwright.prepare.swish_to_mul import swish_to_mul
from bitwright.prepare.trained import Trained, read_trained
from bitwright.prepare.widen_float16 import widen_bfloat16, widen_half_floats
from bitwright.prepare.write_conv_attributes import write_conv_attributes
from bitwright.recipe import Emulation, Rewrites, Simulation

__all__ = [
    "Trained",
    "approximate",
    "approximates",
    "channels_last_inputs",
    "give_biases",
    "prepare_exactly",
    "prepare_for_halves",
    "prepare_weights",
    "read_trained",
    "simulation_steps",
    "widen_bfloat16",
]


_REMOVED = "removed {} constant, idle or repeated node"
_DROP_NO_OPS = Pass(drop_no_ops, "dropped {} no-op")
_FOLD_GEMM_SCALARS = Pass(fold_gemm_scalars, "folded the scalars of {} Gemm node")

# Constants come first: a folded weight is what the passes after it look for.
_FIRST = (
    Pass(keep_zero_pads, "kept zeros out of {} max pool"),
    Pass(norms_of_one, "made instance norms of {} training batch norm"),
    Pass(fold_constants, _REMOVED),
)
# Larger patterns come before the folding, which would take their pieces away one by one.
_PATTERNS = (
    Pass(fuse_instance_norm, "fused {} instance norm", "fuse_instance_norm"),
    Pass(fuse_l2_norm, "fused {} L2 norm", "fuse_l2_norm"),
    Pass(fuse_layer_norm, "fused {} layer norm", "fuse_layer_norm"),
    Pass(fuse_gelu, "fused {} Gelu", "fuse_gelu"),
    Pass(fuse_space_to_depth, "made a SpaceToDepth of {} chain", "fuse_space_to_depth"),
    Pass(drop_pad_counts, "dropped the count of pads of {} average pool"),
    Pass(lowest_pads_into_pools, "folded the pads of {} max pool"),
)
# Each of these can open new places for the others; each removes nodes, so this ends. The hard swish
# comes before the scales and shifts, for the same reason.
_FOLDING = (
    _DROP_NO_OPS,
    Pass(fuse_hard_swish, "fused {} hard-swish pattern"),
    Pass(zero_pads_into_convolutions, "folded the pads of {} convolution"),
    Pass(fold_batch_norm, "folded {} batch norm"),
    Pass(fold_scale_shift, "folded {} constant scale or shift node"),
    _FOLD_GEMM_SCALARS,
)
# Means become pools before large pools are split. A batch norm becomes a convolution only where
# nothing could take it. The layout comes last: transposes would hide patterns.
_REWRITES = (
    Pass(batch_norm_to_conv, "made convolutions of {} batch norm", "batch_norm_to_conv"),
    Pass(reduce_mean_to_pool, "made pools of {} mean", "reduce_mean_to_pool"),
    Pass(split_large_pools, "split {} large pool", "split_large_pools"),
    Pass(split_to_slice, "made slices of {} Split", "split_to_slice"),
    Pass(swish_to_mul, "made products of {} swish", "swish_to_mul"),
    Pass(write_conv_attributes, "wrote out the attributes of {} convolution", "conv_attributes"),
    Pass(pads_of_all_axes, "wrote the pads of all axes of {} Pad node", "pads_of_all_axes"),
    Pass(positive_indices, "wrote indices from the front of {} Gather node", "positive_indices"),
    Pass(nearest_to_floor, "wrote the nearest mode floor of {} Resize node", "nearest_to_floor"),
    Pass(channels_last, "transposed to NHWC: {} outer tensor", "channels_last"),
)
_CLIP_TO_RELU = Pass(clip_to_relu, "made Relu of {} Clip", "clip_to_relu")
_CLIP6_TO_RELU = Pass(clip6_to_relu, "made Relu of {} 0-to-6 Clip", "clip6_to_relu")
# What brings out weights and leaves them as they are. A product reads its weight through a
# Transpose; folded, a head would be a second copy of its embedding, and all weights in memory.
_FOR_WEIGHTS = (
    Pass(partial(fold_constants, keep=is_transposed_constant), _REMOVED),
    _DROP_NO_OPS,
    Pass(split_fused_products, "took the product out of {} fused operator"),
    Pass(flatten_weights, "made matrices of {} weight with axes of one"),
)


def prepare_exactly(
    model: ir.Model,
    *,
    optimize: bool = True,
    widen: bool = True,
    rewrite: Rewrites = Rewrites(),  # noqa: B008 (frozen)
    widen_interface: bool = False,
) -> list[str]:
    """Run the passes that leave what the model computes, but for rounding and its inputs' layout.

    Without `widen`, float16 stays; with `widen_interface`, inputs and outputs are float32, too.
    """
    widened = partial(widen_half_floats, interface=widen_interface)
    first = [Pass(widened, "widened {} float16 tensor")] if widen else []
    first += _FIRST if optimize else ()
    return [
        *run_passes(model, [*first, *_PATTERNS], rewrite),
        # The scalars of Gemm are needed for right numbers, the rest is an optimization.
        *run_until_stable(model, _FOLDING if optimize else [_FOLD_GEMM_SCALARS]),
        *run_passes(model, _REWRITES, rewrite),
    ]


def prepare_for_halves(model: ir.Model) -> list[str]:
    """Let squares be summed within norms, where they are float32 also in float16."""
    layer_norms = Pass(fuse_layer_norm, "fused {} layer norm")
    return run_passes(model, [layer_norms, Pass(fuse_rms_norm, "fused {} RMS norm")])


def prepare_weights(model: ir.Model, *, optimize: bool = True) -> list[str]:
    """Run the passes that bring out weights and leave them as they are, float16 ones too."""
    return run_passes(model, [*(_FOR_WEIGHTS if optimize else ()), _FOLD_GEMM_SCALARS])


def approximates(
    rewrite: Rewrites,
    simulate: Simulation | None = None,
    emulate: Emulation = Emulation(),  # noqa: B008 (frozen)
) -> bool:
    """Return whether `approximate` may change anything of any model."""
    return rewrite.clip6_to_relu or emulate.clip_to_relu or simulate is not None


def approximate(
    model: ir.Model,
    *,
    rewrite: Rewrites,
    simulate: Simulation | None = None,
    emulate: Emulation = Emulation(),  # noqa: B008 (frozen)
) -> list[str]:
    """Run the passes that change what the model computes: it imitates the hardware from then on."""
    done = run_passes(model, [_CLIP_TO_RELU], emulate)
    done += run_passes(model, [_CLIP6_TO_RELU], rewrite)
    return done if simulate is None else done + simulate_npu(model, simulate, emulate.simulate)
