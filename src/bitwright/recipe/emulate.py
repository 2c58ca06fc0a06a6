"""What only another tool's behaviour needs: `compat` sets it, and its defaults are what we do."""

from __future__ import annotations

from typing import Literal

import msgspec

from bitwright.errors import RecipeError, did_you_mean
from bitwright.support.settings import Settings

__all__ = [
    "Emulation",
    "EqualizationDetails",
    "LearningDetails",
    "LimitDetails",
    "SimulationSwitches",
]

LEARNING_OPS = (
    "Conv",
    "ConvTranspose",
    "Gemm",
    "InstanceNormalization",
    "LayerNormalization",
    "MatMul",
)
"""Operators whose weights can learn."""


class _Sparse(Settings, frozen=True, kw_only=True, omit_defaults=True):
    """Settings that JSON shows only where they are other than usual."""

    def __post_init__(self) -> None:
        # msgspec leaves out what is the default itself, not what is equal to it.
        for name, default in zip(self.__struct_fields__, self.__struct_defaults__, strict=True):
            if getattr(self, name) == default:
                msgspec.structs.force_setattr(self, name, default)


class LimitDetails(_Sparse, frozen=True, kw_only=True):
    """The rules of `limits`, each on its switch, and how they are applied."""

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
        super().__post_init__()
        if self.max_rounds < 1:
            raise RecipeError(f"max_rounds of limits must be at least 1, not {self.max_rounds}.")


class SimulationSwitches(_Sparse, frozen=True, kw_only=True):
    """What `simulate` always replaces, each on its switch."""

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


class EqualizationDetails(_Sparse, frozen=True, kw_only=True):
    """How `equalize` weighs and when it stops."""

    total_layer_diff_threshold: float = 2e-7
    """With steps -1: stop when the mean changes of all weights add up to less."""
    append_bias: bool = True
    """The bias counts as one more weight of its channel."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.total_layer_diff_threshold < 0:
            raise RecipeError(
                "total_layer_diff_threshold of equalize must not be negative, as "
                f"{self.total_layer_diff_threshold} is."
            )


class LearningDetails(_Sparse, frozen=True, kw_only=True):
    """How `fine_tune` learns, in the numbers of other tools."""

    seed: int = 1705472343
    """The same seed gives the same model."""
    samples: int | None = None
    """Use at most this many samples; None: all."""
    op_types: tuple[str, ...] | None = None
    """Only weights of these operators learn; None: of Conv, ConvTranspose, Gemm, MatMul,
    InstanceNormalization and LayerNormalization."""
    drop_ratio: float = 1.0
    """How much of a segment's input comes from the quantized model, element by element; the rest
    comes from the float model. Where activation scales learn, also how much of each activation in
    the segment is quantized in a step (QDrop); all of it is when errors are measured."""
    output_pairs: bool = False
    """Compare outputs behind their quantizers."""
    update_bias: bool = True
    """Let biases learn, too: with AdaRound, they make up for what is off on average."""
    early_stop: bool = False
    """Stop when the loss of the last `patience` steps is no better than the best before."""
    patience: int | None = None
    """Steps that early_stop looks at together; None: a tenth of all."""
    selective: bool = True
    """Keep what a segment learned only where the error on held-out samples falls, and the best of
    what it held on the way. False: what it held in the end."""
    holdout_fraction: float = 0.125
    """This part of the samples is kept from learning, to choose by."""
    learning_rate_above: tuple[float, float] | None = None
    """(error, rate): this learning rate where a segment's mean squared error starts above that; in
    steps of the weights for AdaQuant without a learning rate."""
    regularization: float = 10.0
    """AdaRound: the strength of the term that drives every weight to one of its two integers,
    beside an error that is 1 where all are at their nearest."""
    beta: tuple[float, float] = (20.0, 2.0)
    """AdaRound: how steep that term is, at first and in the end."""
    warm_start: float = 0.2
    """AdaRound: this part of all steps goes without that term."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("samples", "patience"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise RecipeError(f"{name} of fine_tune must be at least 1.")
        for op_type in self.op_types or ():
            if op_type not in LEARNING_OPS:
                hint = did_you_mean(op_type, LEARNING_OPS)
                raise RecipeError(f"weights of {op_type!r} in fine_tune cannot learn.{hint}")
        if not 0 <= self.drop_ratio <= 1:
            raise RecipeError(f"drop_ratio must lie in 0..1, not {self.drop_ratio}.")
        if not 0 <= self.holdout_fraction < 1:
            raise RecipeError(f"holdout_fraction must lie in [0, 1), not {self.holdout_fraction}.")
        if not 0 <= self.warm_start < 1:
            raise RecipeError(f"warm_start must lie in [0, 1), not {self.warm_start}.")


class Emulation(_Sparse, frozen=True, kw_only=True):
    """What only another tool's behaviour needs; the defaults are what we do.

    >>> Emulation(weight_pairs=True).conventions
    'bitwright'
    """

    conventions: Literal["bitwright", "onnxruntime"] = "bitwright"
    """Whose rules hold where tools differ. Ours: a Relu or Clip goes where the quantizer does
    exactly its work. ONNX Runtime's: it goes behind any op, unless activations are symmetric; its
    input has the range of its output; a Pad, a Split and pools follow rules of their own."""
    assumed_type: Literal["float32", "float16"] | None = None
    """The element type of tensors for which none can be inferred, behind unknown operators."""

    # Ranges
    cut_saturated: bool = True
    """8-bit ranges with a zero point of their own end where every reader saturates: nothing below
    -3 in front of a hard-swish."""
    known_ranges: bool = True
    """Outputs of Sigmoid, HardSigmoid, Tanh and Softmax get a tenth more than what is observed,
    within the range that their maths gives them; no method clips them. Extremes of more than
    8 bits get as much again."""
    restricted_asymmetric: bool = False
    """uint8 activations only: zero point 0 for what is never negative, else 128."""
    unsigned_relu: bool = False
    """Outputs of Relu, and of Clip from 0, use the whole of their type even where activations,
    or the ranges of the method, are symmetric: zero lies at its lowest value."""
    adjust_for_bias: bool = True
    """Enlarge a weight scale when the int32 bias would overflow with it."""
    channel_axes: dict[str, int] = msgspec.field(default_factory=dict)
    """Op type -> axis for per-channel weights, where the usual one does not fit."""

    # Pairs
    constant_operands: Literal["activation", "weight"] = "activation"
    """The type of constants that are no weights, as of one added by an Add."""
    dedicated_pairs: bool = False
    """One Q/DQ pair for each consumer instead of one for each tensor."""
    dedicated_dequantizers: bool = False
    """One Q for each tensor, and a DQ behind it for each consumer; also behind stored integers."""
    keep_activations: bool = False
    """Never absorb a Relu or Clip into the quantizer before it."""
    weight_pairs: bool = False
    """Keep float weights with Q and DQ instead of storing integers."""
    unquantized_nodes: tuple[str, ...] = ()
    """Nodes whose outputs get no pair, by name or `re:...`."""
    fuse_pairs: tuple[tuple[str, str], ...] = ()
    """(op type, op type of its only reader) with no pair between, whatever the hardware does."""
    contrib_ops: bool = False
    """Write Q/DQ in the com.microsoft domain."""
    extended_ops: bool = True
    """Format extended: 8- and 16-bit pairs in the vendor's domain, too; else standard ones."""
    vendor_names: Literal["vitis-ai", "quark"] = "vitis-ai"
    """Format extended: the domain and names of the vendor's operators, the documented ones or
    those of today's Quark."""
    block_rounding: Literal["half-away", "half-up", "half-even"] | None = None
    """Format extended: where mantissas of shared-exponent formats go that lie between two; None:
    as the format is documented."""
    bfloat16_casts: bool = False
    """Format extended: bfloat16 pairs of the scale 1 are two Casts, which any runtime has."""

    # Changes of the float model
    clip_to_relu: bool = False
    """A Clip from 0 becomes a Relu: its upper end is left to the quantizer."""
    widen_interface: bool = False
    """Inputs and outputs of float16 become float32; inside, all float16 does anyway."""
    smooth_folding: bool = True
    """SmoothQuant folds the division into the norm or product that computes the activation, where
    that is possible; else a Mul divides everywhere."""
    equalize: EqualizationDetails = EqualizationDetails()
    """How `equalize` weighs and when it stops."""
    simulate: SimulationSwitches = SimulationSwitches()
    """What `simulate` always replaces, each on its switch."""
    limits: LimitDetails = LimitDetails()
    """The rules of `limits`, each on its switch."""
    fine_tune: LearningDetails = LearningDetails()
    """How `fine_tune` learns, in the numbers of other tools."""
