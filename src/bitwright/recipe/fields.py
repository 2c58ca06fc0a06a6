"""The options of a recipe, one field each, with their defaults."""

from __future__ import annotations

from typing import Literal

import msgspec

from bitwright.numerics.types import INT8, UINT8, QType
from bitwright.recipe.emulate import Emulation
from bitwright.recipe.finetuning import FineTuning
from bitwright.recipe.formats import FORMATS, Format, FormatName
from bitwright.recipe.hardware import CrossLayerEqualization, Limits, Rewrites, Simulation
from bitwright.recipe.methods import MinMax, RangeMethod, ScaleKind
from bitwright.recipe.options import Placement, Selection, SmoothQuant
from bitwright.recipe.overrides import Override
from bitwright.recipe.weights import WeightOnly
from bitwright.support.settings import Settings


class RecipeFields(Settings, frozen=True, kw_only=True):
    """Every option of a recipe; `Recipe` is the same with its rules checked."""

    version: Literal[1] = 1
    """Of this format."""
    name: str = "custom"
    """Shown in summaries, and kept in the model's metadata."""
    mode: Literal["static", "dynamic", "weight-only", "cast"] = "static"
    """Static: activation ranges from calibration data. Dynamic: measured at every run.
    Weight-only: activations stay float. Cast: all is float16 or bfloat16, without quantizers."""
    format: FormatName = "qdq"
    """QDQ: float ops between Q/DQ pairs. QOperator: integer ops. Extended: pairs of the vendor's
    domain, for every number type. FixNeuron: one such op instead of a pair."""
    activation: QType = UINT8
    """The number type of activations."""
    weight: QType = INT8
    """The number type of weights."""
    ranges: RangeMethod = MinMax()
    """How the range of an activation is chosen."""
    weight_ranges: RangeMethod = MinMax()
    """How the range of a weight is chosen."""
    rounding: Literal["nearest", "squant", "gptq"] = "squant"
    """How weights become integers. Nearest: each by itself. SQuant: those of Conv so that errors of
    a kernel and of an output cancel out. GPTQ: those of Conv, Gemm and MatMul so that outputs move
    least on the calibration data, with scales of channels fitted to that; for less than 8 bits.
    Weights that learn (`fine_tune`) are rounded as they learned."""
    scales: ScaleKind = "float"
    """Powers of two for hardware that shifts; int16: M / 2^N, M from 1 to 32767, N from 0 to 16."""
    per_channel: bool = False
    """One scale for each output channel of a weight."""
    block_size: int = 0
    """Weights of MatMul and Gemm get one scale for each block of this many rows; 0: none."""
    dynamic_scale: Literal["token", "tensor"] = "token"
    """Dynamic mode: what has one scale, measured at every run, where a product reads it: each row,
    so that a sample's answer does not depend on its batch, or the whole tensor."""
    activation_symmetric: bool = False
    """Zero in the middle of the type: zero point 0 for signed types."""
    weight_symmetric: bool | None = None
    """None: symmetric for signed types, asymmetric for unsigned ones."""
    reduce_range: bool = False
    """Weights use one bit less, for old CPUs whose 8-bit products saturate."""
    min_real_range: float | None = None
    """Widen narrower ranges to at least this width."""
    quantize_bias: bool = True
    """Biases as `bias` says; else they stay float in the file."""
    bias: Literal["int32", "int16", "weight"] = "int32"
    """int32 or int16 at (input scale x weight scale), or like a weight, with a scale of its own."""
    select: Selection = Selection()
    """Which nodes."""
    place: Placement = Placement()
    """Where Q/DQ pairs go."""
    overrides: dict[str, Override] = msgspec.field(default_factory=dict)
    """Node, torch module, op type, tensor, or `re:...` -> what it gets instead."""
    output_ranges: dict[str, tuple[float, float]] = msgspec.field(default_factory=dict)
    """Op type -> the range of its outputs, given and not observed."""
    smooth: SmoothQuant | None = None
    """SmoothQuant: move outliers of activations into the weights of matrix products; takes one more
    pass over the data."""
    equalize: CrossLayerEqualization | None = None
    """Cross-layer equalization of consecutive weights before observing."""
    rewrite: Rewrites = Rewrites()
    """Graph rewrites for hardware."""
    simulate: Simulation | None = None
    """Simulate the arithmetic of the NPU: replace ops by what it computes in their place."""
    limits: Limits | None = None
    """Keep power-of-two scales within what the NPU's shifters can do."""
    cache: Literal["int8", "int4"] | None = None
    """The keys and values that GroupQueryAttention keeps, in integers with a scale for each channel
    of each head: a quarter of the memory and faster next tokens, but prompts are slower."""
    weights: WeightOnly = WeightOnly()
    """Weight-only mode: bits, blocks, rounding and the form written."""
    fine_tune: FineTuning | None = None
    """Learn weights after all scales are decided, segment by segment; takes torch and time."""
    bias_correction: Literal["off", "fast", "sequential"] = "off"
    """Shift biases by what rounding adds to the outputs of their layers on average. Fast: from
    the mean inputs of the float model. Sequential: layer by layer, behind the quantized ones."""
    gain_correction: bool = False
    """With sequential bias correction: also scale the output channels of layers, in the scales of
    per-channel weights."""
    opset: int | None = None
    """The opset that the result has at least; None: what its types and scales need."""
    float16: Literal["widen", "keep", "cast"] = "widen"
    """What becomes of float16 inside the model: computed in float32, or kept, with scales in
    float16 and only those ops quantized that the runtime takes so. Cast, in weight-only mode: all
    that is left of float32 becomes float16, scales too; inputs and outputs stay."""
    float_io: bool | Literal["all-but-caches"] | tuple[str, ...] = True
    """Cast mode: inputs and outputs of the model stay float32, or those of these names. All but
    caches, also with float16: cast: keys and values of attention become float16 outside, too."""
    keep_defaults: bool = False
    """Initializers that are also inputs of the model stay both, so that callers can go on
    replacing them: no weight is stored as integers then. Else they become constants."""
    optimize: bool = True
    """Fold constants and batch norms before quantizing."""
    emulate: Emulation = Emulation()
    """What only another tool's behaviour needs."""

    @property
    def enters_bodies(self) -> bool:
        """Whether what is inside If, Loop and Scan bodies is quantized."""
        asked = self.select.subgraphs
        return self.mode != "static" if asked is None else asked

    def keeps_float(self, name: str | None) -> bool:
        """Return whether an input or output of the model stays float32 in the mode cast."""
        if isinstance(self.float_io, tuple):
            return name in self.float_io
        return bool(self.float_io)  # caches become narrow behind all else

    @property
    def casts_weights_only(self) -> bool:
        """Whether weights are stored in the type of a cast, and all is computed in float32.

        ONNX Runtime's CPU provider computes nothing in bfloat16, but casts from it.
        """
        return self.mode == "cast" and self.weight.name == "bfloat16" and self.place.must_run

    @property
    def done_and_left(self) -> tuple[str, str]:
        """What becomes of nodes, in words: of those that the recipe takes, and of the others."""
        if self.mode != "cast":
            return "quantized", "left float"
        verb = "stored" if self.casts_weights_only else "converted"
        preposition = "in" if self.casts_weights_only else "to"
        return f"{verb} {preposition} {self.weight.name}", "left in float32"

    @property
    def output_format(self) -> Format:
        """What the format writes for a quantized tensor."""
        return FORMATS[self.format]
