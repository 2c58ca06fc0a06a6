"""The sections of a weight-only recipe: bits, blocks, rounding methods, AWQ, output form."""

from __future__ import annotations

from typing import Literal

import msgspec

from bitwright.errors import RecipeError
from bitwright.support.settings import Settings

__all__ = [
    "AWQ",
    "GPTQ",
    "HQQ",
    "ByLoss",
    "ByPlace",
    "MixedBits",
    "Nearest",
    "RoundingMethod",
    "WeightOnly",
    "WeightOverride",
]


class Nearest(Settings, frozen=True, kw_only=True, tag="nearest", tag_field="method"):
    """Each weight to its nearest value; needs no data unless it is `weighted`.

    >>> Nearest(clip=False).clip
    False
    """

    clip: bool = True
    """Shrink the range of a block where that lowers its error."""
    weighted: bool | None = None
    """Measure that error at the output of the layer, not on the weights alone: needs data. None:
    where data is given and the weights have fewer than 8 bits."""
    shrink: float = 1.0
    """Without `clip`: the part of each block's range that is kept."""

    def __post_init__(self) -> None:
        if not 0 < self.shrink <= 1:
            raise RecipeError(f"shrink of nearest must lie in (0, 1], not {self.shrink}.")
        if self.clip and self.shrink != 1:
            raise RecipeError("shrink of nearest is what clip searches; set clip=false with it.")
        if self.weighted and not self.clip:
            raise RecipeError("weighted of nearest is how clip is judged; leave clip=true with it.")

    @property
    def needs_data(self) -> bool:
        """Whether it must see what the layer reads."""
        return self.weighted is True


class GPTQ(Settings, frozen=True, kw_only=True, tag="gptq", tag_field="method"):
    """GPTQ: row after row, with the rounding error compensated by the rows not yet rounded.

    >>> GPTQ(damping=0.05).act_order
    True
    """

    damping: float = 0.01
    """This part of the mean of the Hessian's diagonal is added to it."""
    act_order: bool = True
    """Rows that matter most are rounded first; blocks stay where they are."""
    clip: bool = True
    """Shrink the range of a block where that lowers its error, weighted by the inputs."""
    per_column: bool = True
    """A scale for each output of a block; false: one for all of them, which is less accurate."""
    needs_data = True
    """Whether it must see what the layer reads."""

    def __post_init__(self) -> None:
        if not 0 < self.damping <= 1:
            raise RecipeError(f"damping of gptq must lie in (0, 1], not {self.damping}.")


class HQQ(Settings, frozen=True, kw_only=True, tag="hqq", tag_field="method"):
    """Half-quadratic quantization (HQQ) of each block; needs no data.

    >>> HQQ().float_zero_points
    False
    """

    float_zero_points: bool = False
    """Zero points as published, not rounded: for GPUs, as they are slow on CPUs."""
    needs_data = False
    """Whether it must see what the layer reads."""


RoundingMethod = Nearest | GPTQ | HQQ


class AWQ(Settings, frozen=True, kw_only=True):
    """AWQ: scale up the weights of salient inputs before rounding, and undo it at the inputs.

    >>> AWQ(grid=10).grid
    10
    """

    scale: bool = True
    """Scale inputs at all; without it only `clip` is left."""
    grid: int = 20
    """How many scaling exponents between 0 and 1 are tried."""
    clip: bool = True
    """Search the range of each block by the error of the product afterwards."""

    def __post_init__(self) -> None:
        if self.grid < 2:
            raise RecipeError(f"grid of awq must be at least 2, not {self.grid}.")
        if not (self.scale or self.clip):
            raise RecipeError("awq with neither scale nor clip does nothing; leave it out.")


class ByLoss(Settings, frozen=True, kw_only=True, tag="loss", tag_field="by"):
    """More bits for the weights that lose most, measured on a few samples, under a budget.

    >>> ByLoss(average_bits=5).wide_bits
    8
    """

    average_bits: float | None = None
    """Bits that a weight may take on average, scales and zero points not counted; None: half a bit
    more than `bits`, where there are wider ones and heads or overrides have not taken that."""
    wide_bits: int = 8
    """Bits of the weights that get more."""
    needs_data = True
    """Whether it must see what the layer reads."""


class ByPlace(Settings, frozen=True, kw_only=True, tag="place", tag_field="by"):
    """More bits where llama.cpp's k-quants spend them; needs no data.

    Values of attention and last products of feed-forward networks, in the first and last eighth of
    the layers and in every third between.

    >>> ByPlace().wide_bits
    8
    """

    wide_bits: int = 8
    """Bits of the weights that get more."""
    needs_data = False
    """Whether it must see what the layer reads."""


MixedBits = ByLoss | ByPlace


class WeightOverride(Settings, frozen=True, kw_only=True):
    """What the weight of one node gets instead.

    >>> WeightOverride(bits=8).keep_float
    False
    """

    bits: int | None = None
    """None, here and below: as the recipe says."""
    block_size: int | None = None
    """As `weights` has it."""
    symmetric: bool | None = None
    """As `weights` has it."""
    rounding: RoundingMethod | None = None
    """As `weights` has it."""
    awq: bool | None = None
    """False: neither scale its inputs nor search its ranges where `awq` is on."""
    keep_float: bool = False
    """Leave it float."""


class WeightOnly(Settings, frozen=True, kw_only=True):
    """How weights are quantized where activations stay float.

    >>> WeightOnly(bits=4, block_size=128, rounding=GPTQ()).symmetric
    False
    """

    bits: int = 4
    """Bits of a weight, 2 to 8."""
    block_size: int = 32
    """So many inputs of an output share a scale; -1: all of them."""
    symmetric: bool = False
    """No zero points: smaller, and less accurate."""
    positive_scales: bool = False
    """Scales of symmetric blocks are positive; else the side of the largest magnitude gets the
    extra code, which ONNX Runtime takes and TensorRT does not."""
    whole_blocks: bool = False
    """Blocks divide the inputs of their weight: they are halved until they do, down to 16. Weights
    that no block divides, or whose packed rows would end within a byte, stay float."""
    rounding: RoundingMethod = Nearest()
    """How weights become integers."""
    rotate: bool | Literal["auto"] = False
    """Rotate the residual stream of a language model and the values of its attention first, which
    spreads outliers; auto: where samples show that the rounded model loses less by it."""
    rotate_caches: bool = True
    """Rotate values that are cached, too; false: for a model that shares its cache with another."""
    awq: AWQ | None = None
    """Scale up the weights of salient inputs first."""
    refine: int = 0
    """How often the scales and values of all blocks are fitted again to what the layer reads."""
    sequential: bool = True
    """Each layer is rounded for the inputs that the quantized layers before it give."""
    error_propagation: float = 0.0
    """The part of the error which those layers leave in its inputs that a layer makes up for; 0.5
    is best on texts of another kind than the calibration data. Takes a second, float run."""
    output: Literal[
        "matmul-nbits", "matmul-nbits-and-rows", "qdq", "qdq-transposed", "nvfp4", "bnb4", "float"
    ] = "matmul-nbits"
    """The runtime's n-bit product, the same with int8 rows beside it for prompts, blocked
    DequantizeLinear, the same of matrices that are stored as (outputs, inputs) with a Transpose
    behind it, NVIDIA's float4 in blocks of 16 with float8 scales, bitsandbytes' NF4, or float
    weights with the rounded values, for study."""
    accuracy_level: int | Literal["auto"] | None = "auto"
    """What the n-bit product computes in: 0 float32, 4 int8 (faster, inputs rounded to 8 bits);
    None: 4 where nothing else is fast, else 0; auto: 4 also where samples show that it costs next
    to nothing. The plan of the result has what was chosen."""
    embeddings: bool | None = None
    """Quantize constant tables that are gathered from, too. None: those that a quantized product
    reads as well, which would else be in the model twice."""
    embedding_bits: int | None = None
    """Bits of tables that no product shares, if others."""
    head_bits: int | None = None
    """Bits of the product that makes the logits, if others."""
    mixed: MixedBits | None = None
    """Which weights get more bits than the others; overrides and the head keep theirs."""
    overrides: dict[str, WeightOverride] = msgspec.field(default_factory=dict)
    """Node, torch module, op type, or `re:...` -> what it gets instead."""

    def __post_init__(self) -> None:
        wide = None if self.mixed is None else self.mixed.wide_bits
        special = (self.head_bits, self.embedding_bits, wide)
        for bits in (self.bits, *special, *(o.bits for o in self.overrides.values())):
            if bits is not None and not 2 <= bits <= 8:
                raise RecipeError(f"weights take 2 to 8 bits, not {bits}.")
        for size in (self.block_size, *(o.block_size for o in self.overrides.values())):
            in_pairs = self.output == "qdq" and size is not None and size >= 2
            if size not in (None, -1) and (size < 16 or size & (size - 1)) and not in_pairs:
                raise RecipeError(
                    f"block_size of weights must be a power of two from 16 on, or -1 for whole "
                    f"columns, not {size}; output='qdq' takes any from 2 on."
                )
        self._check_nvfp4()
        if self.output == "bnb4":
            plain = self.replace(output="matmul-nbits", block_size=32, accuracy_level="auto")
            if plain != WeightOnly(rounding=Nearest(clip=False)):
                raise RecipeError(
                    "the output bnb4 rounds 4 bits to levels of its own; take the recipe bnb4, and "
                    "change nothing but block_size."
                )
        rounders = (self.rounding, *(o.rounding for o in self.overrides.values()))
        if any(isinstance(rounder, GPTQ) and not rounder.per_column for rounder in rounders):
            fits = "refine" if self.refine else "awq.clip" if self.awq and self.awq.clip else None
            if fits is not None:
                raise RecipeError(
                    f"{fits} fits a scale to each output, and per_column=false of gptq wants one "
                    "for all; leave one of them out."
                )
        if self.refine < 0:
            raise RecipeError(f"refine of weights must not be negative, as {self.refine} is.")
        asked = not isinstance(self.mixed, ByLoss) or self.mixed.average_bits is not None
        if self.mixed is not None and asked and self.mixed.wide_bits <= self.bits:
            raise RecipeError(
                f"mixed gives some weights {self.mixed.wide_bits} bits, which is not more than the "
                f"{self.bits} of all others."
            )
        if not 0 <= self.error_propagation <= 1:
            raise RecipeError(
                f"error_propagation must lie between 0 and 1, not {self.error_propagation}."
            )
        if self.error_propagation and not self.sequential:
            raise RecipeError(
                "error_propagation makes up for errors of earlier layers, which sequential=false "
                "does not look at; leave one of them out."
            )
        if isinstance(self.accuracy_level, int) and not 0 <= self.accuracy_level <= 4:
            raise RecipeError(f"accuracy_level must lie in 0..4, not {self.accuracy_level}.")

    def _check_nvfp4(self) -> None:
        """Refuse what float4 in blocks of 16 has not."""
        if self.output != "nvfp4":
            return
        wanted = WeightOnly(
            bits=4,
            block_size=16,
            symmetric=True,
            positive_scales=True,
            whole_blocks=True,
            rounding=Nearest(clip=False),
        )
        for name in ("bits", "block_size", "symmetric", "positive_scales", "whole_blocks"):
            if getattr(self, name) != getattr(wanted, name):
                raise RecipeError(
                    f"the output nvfp4 has {name} {getattr(wanted, name)}, not "
                    f"{getattr(self, name)}; start from the target nvidia-tensorrt:nvfp4."
                )
        others = (self.awq, self.refine, self.head_bits, self.embedding_bits, self.mixed)
        if self.rounding != wanted.rounding or any(others) or self.overrides or self.rotate:
            raise RecipeError(
                "the output nvfp4 rounds to the nearest values as they are; leave out rounding, "
                "awq, refine, rotate, mixed, overrides and bits of heads or tables."
            )

    def without_data(self) -> WeightOnly:
        """Return what stores the same bits and needs no data; a mixture goes by place.

        >>> WeightOnly(rounding=GPTQ(), mixed=ByLoss(), refine=1).without_data().needs_data
        False
        """
        overrides = {
            name: one.replace(rounding=None) if one.rounding and one.rounding.needs_data else one
            for name, one in self.overrides.items()
        }
        mixed = self.mixed
        head_bits = self.head_bits
        if mixed is not None and mixed.needs_data:
            mixed, head_bits = ByPlace(wide_bits=mixed.wide_bits), head_bits or mixed.wide_bits
        return self.replace(
            head_bits=head_bits,
            rounding=Nearest() if self.rounding.needs_data else self.rounding,
            awq=None,
            refine=0,
            error_propagation=0.0,
            mixed=mixed,
            overrides=overrides,
        )

    @property
    def needs_data(self) -> bool:
        """Whether inputs of the layers must be seen."""
        rounders = (self.rounding, *(o.rounding for o in self.overrides.values()))
        return (
            self.awq is not None
            or self.refine > 0
            or self.error_propagation > 0
            or (self.mixed is not None and self.mixed.needs_data)
            or any(rounder.needs_data for rounder in rounders if rounder is not None)
        )
