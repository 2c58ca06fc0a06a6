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
    needs_fixed_shapes: bool = False
    """The hardware takes fixed shapes only: a note names what `fix_shapes` leaves open."""
    fix_shapes: dict[str, int | tuple[int, ...]] = msgspec.field(default_factory=dict)
    """Sizes of open dimensions by their name, or whole shapes by the input's: {"batch": 1}."""


class Simulation(Settings, frozen=True, kw_only=True):
    """Ops replaced by what the NPU computes in their place.

    LeakyRelu, Sigmoid, HardSigmoid, average pools and means are; these are on switches:

    >>> Simulation(softmax=True).clip
    False
    """

    softmax: bool = False
    """A Softmax is computed in bfloat16 steps with the NPU's polynomial for the exponential."""
    instance_norm: bool = False
    """An InstanceNormalization is computed in bfloat16 steps."""
    clip: bool = False
    """The bounds of a Clip become integers of 8 bits."""


class Limits(Settings, frozen=True, kw_only=True):
    """Power-of-two scales stay within what the NPU's shifters allow.

    >>> Limits()
    Limits()
    """


class CrossLayerEqualization(Settings, frozen=True, kw_only=True):
    """Cross-layer equalization of consecutive weights; the function of the model stays the same.

    >>> CrossLayerEqualization(steps=-1).absorb_biases
    False
    """

    steps: int = 1
    """How many sweeps over all pairs of layers; -1: until the weights no longer change."""
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
