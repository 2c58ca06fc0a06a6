"""The sections of a recipe: selected nodes, placement of Q/DQ pairs, SmoothQuant."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from bitwright.errors import RecipeError
from bitwright.numerics.types import QType
from bitwright.recipe.sizes import SizeRule
from bitwright.support.settings import Settings

__all__ = ["Placement", "Purpose", "Selection", "SmoothQuant"]

Purpose = Literal["size", "balanced", "speed"]


class Selection(Settings, frozen=True, kw_only=True):
    """Which nodes are quantized.

    A name is that of a node, of a torch module that a node is in, or of an op type, or a regular
    expression written `re:...` over names of nodes and modules.

    >>> Selection(exclude=("re:head/.*",)).exclude
    ('re:head/.*',)
    """

    op_types: tuple[str, ...] | None = None
    """Only these op types; None: every type that has a rule."""
    more_op_types: tuple[str, ...] = ()
    """Also these op types, besides those that are quantized by default."""
    nodes: tuple[str, ...] | None = None
    """Only these nodes; None: all."""
    exclude: tuple[str, ...] = ()
    """Never these nodes: they read and write float."""
    exclude_op_types: tuple[str, ...] = ()
    """Never these op types."""
    exclude_between: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = ()
    """(first nodes, last nodes) of parts that stay float: all on a way from one to the other."""
    input_nodes: tuple[str, ...] = ()
    """Quantize only what lies downstream of these nodes, themselves included; a tensor stands for
    the nodes that read it."""
    output_nodes: tuple[str, ...] = ()
    """Quantize only what lies upstream of these nodes, themselves included; a tensor stands for
    the node that writes it."""
    subgraphs: bool | None = None
    """Also quantize inside If, Loop and Scan bodies; None: in dynamic and weight-only mode, where
    nothing inside has to be observed."""
    constant_weights_only: bool | None = None
    """Leave a MatMul of two activations float; None: in dynamic mode, and where 8-bit pairs are for
    ONNX Runtime's integer kernels, which save no time there."""
    sizes: tuple[SizeRule, ...] = ()
    """Products that stay float by their sizes, as rules of a target: those that gain nothing from
    integers there. Where nothing else would be quantized, they are all the same."""
    unknown_names: Literal["refuse", "warn"] = "refuse"
    """What becomes of names of nodes and op types that nothing in the model has: an error, or a
    warning, after which they are ignored."""

    @property
    def named(self) -> tuple[str, ...]:
        """Every node, tensor or pattern that these fields name.

        >>> Selection(exclude=("head",), exclude_between=((("a",), ("b",)),)).named
        ('head', 'a', 'b')
        """
        parts = (name for ends in self.exclude_between for names in ends for name in names)
        listed = (*self.exclude, *self.input_nodes, *self.output_nodes)
        return (*(self.nodes or ()), *listed, *parts)


class Placement(Settings, frozen=True, kw_only=True):
    """Where Q/DQ pairs go and how weights are stored.

    >>> Placement(isolated=True).force_shared
    False
    """

    unquantized_outputs: tuple[str, ...] = ()
    """Op types whose outputs get no pair."""
    force_shared: bool = False
    """Quantize data-movement ops even when their input is not quantized."""
    isolated: bool = False
    """Quantize element-wise ops and softmaxes also between float neighbours, and norms, which
    ONNX Runtime computes in float."""
    float_bias_add: bool = True
    """No pair between a MatMul and the Add of its constant bias: the runtime computes both in one,
    and adds int32 or float."""
    must_run: bool = True
    """Refuse a result that ONNX Runtime does not open at its default optimization level; else it
    is written with a warning, for other runtimes."""
    residual_inputs: bool = False
    """Quantize the skip input of an Add behind a convolution also where Add is not selected: the
    hardware computes the convolution and the Add in one, and reads the skip from memory."""
    portable: bool = True
    """Give each op of the vendor's domain a function body, so that any runtime can run it."""
    fuse_activations: tuple[str, ...] = ()
    """Op types that the hardware computes with what feeds them: no pair stands between."""
    unsigned_activations: bool | None = None
    """Write int8 activations as uint8, their zero points moved by 128: the same numbers, for which
    x86 has kernels in all places; None: where the target says so, and without one on x86."""
    per_tensor_ops: tuple[str, ...] = ()
    """Op types whose weights have one scale, also where others get one for each channel."""
    weight_types: dict[str, QType] = msgspec.field(default_factory=dict)
    """Op type -> the number type of its weights, where that is not the recipe's."""
    second_factor: QType | None = None
    """The type that products of two activations read their second factor in, where activations have
    more bits: a second pair behind the first."""
    same_scale_ops: tuple[str, ...] = ()
    """Op types whose computed inputs have one scale, which covers all of them."""
    purpose: Purpose = "size"
    """"size": integers wherever the target takes them; "balanced": unless they cost time, by the
    costs of `cpu`; "speed": only where they save time. The last two write each node in its fastest
    exact form."""
    cpu: str | None = None
    """The class of CPU whose costs count, or a file of costs; None: that of this machine."""
    noise_price: float = 3.0
    """Where the purpose is balanced: the share of the float model's time that rounding a tensor
    counts as, over its noise over signal; 3: 1 % of noise as 3 % of the time."""

    def __post_init__(self) -> None:
        if not 0 <= self.noise_price < math.inf:
            raise RecipeError(
                f"noise_price of place must be a number from 0 on, not {self.noise_price}; 3 is "
                "the default, 0 leaves nodes float for their time alone."
            )


class SmoothQuant(Settings, frozen=True, kw_only=True):
    """Move outliers of the inputs of matrix products into their weights, before observing.

    >>> SmoothQuant(alpha=0.7).shift
    False
    """

    alpha: float | Literal["auto"] = 0.5
    """Migration strength: 0 leaves activations as they are, 1 gives all channels the same range;
    "auto": for each layer that with the least error, and none where it is better as it is."""
    shift: bool = False
    """Also shift the channels of what a norm or the Add of a bias gives, so that each lies around
    zero (Outlier Suppression+): the biases before and behind take it. With alpha "auto" only where
    that leaves less error."""

    def __post_init__(self) -> None:
        if self.alpha != "auto" and not 0 <= self.alpha <= 1:
            raise RecipeError(
                f"alpha of smooth must lie in [0, 1], not {self.alpha}; 0.5 is usual, and 'auto' "
                "chooses it for each layer."
            )
