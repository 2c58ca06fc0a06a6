"""The sections of a recipe about hardware: graph rewrites, simulation, limits, equalization."""

from __future__ import annotations

import msgspec

from bitwright.errors import RecipeError
from bitwright.support.settings import Settings

__all__ = ["CrossLayerEqualization", "Limits", "Rewrites", "Simulation"]


class Rewrites(Settings, frozen=True, kw_only=True):
    """Graph rewrites that hardware asks for, each a pass of `prepare`; all off by default.

    >>> Rewrites(split_to_slice=True).split_to_slice
    True
    """

    batch_norm_to_conv: bool = False
    """A batch norm that folds into nothing becomes a depthwise 1x1 convolution."""
    reduce_mean_to_pool: bool = False
    """A mean over height and width becomes a GlobalAveragePool."""
    split_large_pools: bool = False
    """A GlobalAveragePool over more than 512 values becomes two smaller pools."""
    split_to_slice: bool = False
    """Each output of a Split becomes a Slice."""
    swish_to_mul: bool = False
    """A HardSwish or Swish becomes x times its HardSigmoid or Sigmoid."""
    conv_attributes: bool = False
    """Convolutions get the attributes that were left out, such as kernel_shape."""
    fuse_instance_norm: bool = False
    """The pieces of an instance norm become one InstanceNormalization."""
    fuse_l2_norm: bool = False
    """The pieces of an L2 norm become one LpNormalization."""
    fuse_layer_norm: bool = False
    """The pieces of a layer norm become one LayerNormalization, from opset 17 on."""
    fuse_gelu: bool = False
    """The pieces of a Gelu become one Gelu."""
    fuse_space_to_depth: bool = False
    """The Reshape and Transpose nodes of a SpaceToDepth become one; shapes have to be known."""
    clip_to_relu: bool = False
    """A Clip from 0 becomes a Relu: its upper end is left to the quantizer."""
    clip6_to_relu: bool = False
    """A Clip from 0 to 6 becomes a Relu, which equalization can pass; changes the function."""
    pads_of_all_axes: bool = False
    """A Pad that names its axes gets the pads of all of them."""
    positive_indices: bool = False
    """Constant indices of a Gather count from the front."""
    nearest_to_floor: bool = False
    """A Resize to the nearest value has the nearest mode floor, where that takes the same ones."""
    channels_last: bool = False
    """Inputs and outputs of four dimensions are NHWC instead of NCHW."""
    widen_interface: bool = False
    """Inputs and outputs of float16 become float32; inside, all float16 does anyway."""
    needs_fixed_shapes: bool = False
    """The hardware takes fixed shapes only: a note names what `fix_shapes` leaves open."""
    fix_shapes: dict[str, int | tuple[int, ...]] = msgspec.field(default_factory=dict)
    """Sizes of open dimensions by their name, or whole shapes by the input's: {"batch": 1}."""


class Simulation(Settings, frozen=True, kw_only=True):
    """Ops replaced by what the NPU computes in their place, each on its switch.

    >>> Simulation(softmax=True).sigmoid
    True
    """

    leaky_relu: bool = True
    """Alpha becomes a multiple of 1/256."""
    sigmoid: bool = True
    """A Sigmoid becomes a HardSigmoid with alpha 1/6."""
    hard_sigmoid: bool = True
    """Such a HardSigmoid is scaled by the NPU's 2731/16384 over 1/6."""
    average_pool: bool = True
    """Square average pools are scaled by the NPU's fixed-point reciprocal of their size."""
    reduce_mean: bool = True
    """So are means."""
    softmax: bool = False
    """A Softmax is computed in bfloat16 steps with the NPU's polynomial for the exponential."""
    instance_norm: bool = False
    """An InstanceNormalization is computed in bfloat16 steps."""
    clip: bool = False
    """The bounds of a Clip become integers of 8 bits."""


class Limits(Settings, frozen=True, kw_only=True):
    """What the NPU's shifters allow of power-of-two scales, each on its switch.

    >>> Limits(shift_cut=False).shift_bias
    True
    """

    align_concat: bool = True
    """Concat: all inputs and the output have one position p (scale 2^-p). The finer ones move."""
    align_pool: bool = True
    """MaxPool, AveragePool, GlobalAveragePool: input = output. The finer one moves."""
    align_pad: bool = True
    """Pad: input = output. The finer one moves."""
    align_slice: bool = True
    """Slice: input = output. The finer one moves."""
    shift_read: bool = True
    """Add, Sub: inputs at most 7 apart. The finer one moves."""
    shift_write: bool = True
    """Add: -7 <= coarsest input - output <= 25. Mul: 0 <= sum of inputs - output <= 32. The output
    moves."""
    shift_cut: bool = True
    """Conv, Gemm: 0 <= cut = weight + input - output <= 16. The weight moves; below 0, the
    output."""
    shift_bias: bool = True
    """Conv, Gemm: min(0, cut - 16) <= weight + input - bias <= 15, from 0 with a LeakyRelu. Bias
    and weight move, as it costs least."""
    hard_sigmoid: bool = True
    """HardSigmoid(1/6, 1/2): 0 <= input <= 15, 7 <= output <= 14 + input. Either moves."""
    shift_swish: bool = True
    """Mul of x with the HardSigmoid of x: 0 <= sum of inputs - output <= 15. The output moves."""
    max_rounds: int = 5
    """How often the rules are applied while scales still change."""

    def __post_init__(self) -> None:
        if self.max_rounds < 1:
            raise RecipeError(f"max_rounds of limits must be at least 1, not {self.max_rounds}.")


class CrossLayerEqualization(Settings, frozen=True, kw_only=True):
    """Cross-layer equalization of consecutive weights; the function of the model stays the same.

    >>> CrossLayerEqualization(steps=-1).append_bias
    True
    """

    steps: int = 1
    """How many sweeps over all pairs of layers; -1: until the weights no longer change."""
    total_layer_diff_threshold: float = 2e-7
    """With steps -1: stop when the mean changes of all weights add up to less."""
    append_bias: bool = True
    """The bias counts as one more weight of its channel."""
    weight_threshold: float | None = 0.5
    """Do not scale channels whose weights on both sides add up to less; None: scale all."""
    absorb_biases: bool = False
    """Then let a layer absorb what the channels before it always have above zero (high-bias
    absorption), so that their range becomes smaller; takes one more pass over the data."""

    def __post_init__(self) -> None:
        if self.steps != -1 and self.steps < 1:
            raise RecipeError(
                f"steps of equalize must be positive, or -1 for as many as help, not {self.steps}."
            )
        if self.total_layer_diff_threshold < 0:
            raise RecipeError(
                "total_layer_diff_threshold of equalize must not be negative, as "
                f"{self.total_layer_diff_threshold} is."
            )
