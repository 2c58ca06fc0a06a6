"""Everything that is asked for, in one frozen value."""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

from bitwright.errors import RecipeError
from bitwright.numerics.types import INT8, UINT8, QType
from bitwright.recipe.finetuning import AdaQuant, FineTuning
from bitwright.recipe.hardware import CrossLayerEqualization, Limits, Rewrites, Simulation
from bitwright.recipe.methods import MinMax, MinMSE, NonOverflow, RangeMethod, ScaleKind
from bitwright.recipe.options import Override, Placement, Selection, SmoothQuant
from bitwright.recipe.weights import WeightOnly
from bitwright.support.arguments import check_arguments
from bitwright.support.settings import Settings, convert, encode

__all__ = ["Recipe"]


class Recipe(Settings, frozen=True, kw_only=True):
    """Everything that is asked for; `load_recipe` gives the named ones.

    >>> from bitwright.recipe import Percentile
    >>> recipe = Recipe(per_channel=True, ranges=Percentile())
    >>> Recipe.from_json(recipe.to_json()) == recipe
    True
    """

    version: Literal[1] = 1
    name: str = "custom"
    mode: Literal["static", "dynamic", "weight-only"] = "static"
    """Static: activation ranges from calibration data. Dynamic: measured at every run.
    Weight-only: activations stay float."""
    format: Literal["qdq", "qoperator", "extended", "fix-neuron"] = "qdq"
    """QDQ: float ops between Q/DQ pairs. QOperator: integer ops. Extended: pairs of the vendor's
    domain, for every number type. FixNeuron: one such op instead of a pair."""
    activation: QType = UINT8
    weight: QType = INT8
    ranges: RangeMethod = MinMax()
    weight_ranges: RangeMethod = MinMax()
    rounding: Literal["nearest", "squant"] = "squant"
    """How weights of Conv become integers: each to the nearest, or so that the errors of a kernel
    and of an output cancel out."""
    scales: ScaleKind = "float"
    per_channel: bool = False
    block_size: int = 0
    """Weights of MatMul and Gemm get one scale for each block of this many rows; 0: none."""
    activation_symmetric: bool = False
    weight_symmetric: bool | None = None
    """None: symmetric for signed types, asymmetric for unsigned ones."""
    restricted_asymmetric: bool = False
    """uint8 activations only: zero point 0 for what is never negative, else 128."""
    reduce_range: bool = False
    min_real_range: float | None = None
    """Widen narrower ranges to at least this width."""
    quantize_bias: bool = True
    bias: Literal["int32", "int16", "weight"] = "int32"
    """int32 or int16 at (input scale x weight scale), or like a weight, with a scale of its own."""
    unsigned_relu: bool = False
    """Outputs of Relu, and of Clip from 0, use the whole of their type even where activations,
    or the ranges of the method, are symmetric: zero lies at its lowest value."""
    select: Selection = Selection()
    place: Placement = Placement()
    overrides: dict[str, Override] = msgspec.field(default_factory=dict)
    """Tensor name -> what it gets instead."""
    output_ranges: dict[str, tuple[float, float]] = msgspec.field(default_factory=dict)
    """Op type -> the range of its outputs, given and not observed."""
    smooth: SmoothQuant | None = None
    """Even out the channels of what matrix products read; takes a pass over the data more."""
    equalize: CrossLayerEqualization | None = None
    """Even out the channels of consecutive weights before observing."""
    rewrite: Rewrites = Rewrites()
    """Graph rewrites that the hardware asks for."""
    simulate: Simulation | None = None
    """Replace ops by what the NPU computes in their place."""
    limits: Limits | None = None
    """Keep power-of-two scales within what the NPU's shifters can do."""
    weights: WeightOnly = WeightOnly()
    """Weight-only mode: bits, blocks, rounding and the form written."""
    fine_tune: FineTuning | None = None
    """Learn weights after all scales are decided, segment by segment; takes torch and time."""
    bias_correction: Literal["off", "fast", "sequential"] = "off"
    """Shift biases by what rounding adds to the outputs of their layers on average. Fast: from
    the mean inputs of the float model. Sequential: layer by layer, behind the quantized ones."""
    assumed_type: Literal["float32", "float16"] | None = None
    """The element type of tensors for which none can be inferred, behind unknown operators."""
    float16: Literal["widen", "keep"] = "widen"
    """What becomes of float16 inside the model: computed in float32, or kept, with scales in
    float16 and only those ops quantized that the runtime takes so."""
    keep_defaults: bool = False
    """Initializers that are also inputs of the model stay both, so that callers can go on
    replacing them: no weight is stored as integers then. Else they become constants."""
    optimize: bool = True
    """Fold constants and batch norms before quantizing."""

    def __post_init__(self) -> None:
        _check(self)

    def to_json(self, *, indent: int = 2) -> str:
        """Return the recipe as JSON; indent 0 keeps it on one line."""
        return encode(self, indent=indent).decode()

    @classmethod
    @check_arguments
    def from_json(cls, text: str | bytes, *, source: str = "recipe") -> Recipe:
        """Read a recipe from JSON; unknown keys are errors with a suggestion."""
        try:
            data = msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise RecipeError(f"{source} is not JSON: {error}.") from error
        return convert(data, cls, source)

    @classmethod
    @check_arguments
    def from_mapping(cls, data: dict[str, Any], *, source: str = "recipe") -> Recipe:
        """Read a recipe from plain dicts and lists; `load_recipe` also takes a `base`.

        >>> Recipe.from_mapping({"per_channel": True}).per_channel
        True
        """
        data = dict(data)
        if data.get("bias_correction") is False:  # YAML reads a bare `off` as false
            data["bias_correction"] = "off"
        return convert(data, cls, source)


def _check(recipe: Recipe) -> None:
    """Refuse contradictions before any work is done."""
    if recipe.mode == "dynamic":
        _check_dynamic(recipe)
    if recipe.mode == "weight-only":
        _refuse_without_effect(recipe, _WEIGHT_ONLY_FIELDS)
    elif recipe.weights != WeightOnly():
        raise RecipeError("weights is for the mode weight-only; set mode='weight-only' with it.")
    if recipe.fine_tune is not None:
        _check_fine_tuning(recipe, recipe.fine_tune)
    methods = [recipe.ranges, recipe.weight_ranges]
    methods += [o.ranges for o in recipe.overrides.values() if o.ranges is not None]
    for method in methods:
        if isinstance(method, NonOverflow | MinMSE) and recipe.scales != "power-of-two":
            raise RecipeError(
                f"the range method {type(method).__name__} gives power-of-two scales; set "
                "scales='power-of-two' with it, or take MinMax or MSE."
            )
    if recipe.bias != "int32" and not recipe.quantize_bias:
        raise RecipeError(
            f"bias={recipe.bias!r} contradicts quantize_bias=False, which leaves biases float; "
            "drop one of them."
        )
    if recipe.restricted_asymmetric and recipe.scales != "float":
        raise RecipeError(
            f"restricted_asymmetric chooses float scales and contradicts scales={recipe.scales!r}."
        )
    _check_format(recipe)
    if recipe.float16 == "keep" and recipe.format not in ("qdq", "qoperator"):
        raise RecipeError(
            f"the format {recipe.format} computes scales in float32; leave out float16='keep'."
        )
    wide = [t for t in (recipe.activation, recipe.weight) if t.bits > 8]
    if recipe.float16 == "keep" and wide:
        raise RecipeError(
            f"float16 resolves 11 bits, too few to hold {wide[0]} values; leave out "
            "float16='keep', or take 8-bit types."
        )
    if recipe.activation == INT8 and recipe.weight == UINT8:
        raise RecipeError(
            "int8 activations with uint8 weights have no kernel in ONNX Runtime; "
            "use int8 weights, or uint8 activations."
        )
    if recipe.restricted_asymmetric and recipe.activation != UINT8:
        raise RecipeError("restricted_asymmetric is for uint8 activations only.")
    if recipe.restricted_asymmetric and recipe.activation_symmetric:
        raise RecipeError("restricted_asymmetric contradicts activation_symmetric; choose one.")
    if recipe.min_real_range is not None and recipe.min_real_range <= 0:
        raise RecipeError(f"min_real_range must be positive, not {recipe.min_real_range}.")
    if recipe.block_size < 0 or recipe.block_size == 1:
        raise RecipeError(
            f"block_size must be 0 (no blocks) or at least 2, not {recipe.block_size}."
        )
    if recipe.reduce_range and not recipe.weight.is_integer:
        raise RecipeError(f"reduce_range has no meaning for {recipe.weight} weights.")
    if recipe.limits is not None and recipe.scales != "power-of-two":
        raise RecipeError(
            "limits are about power-of-two scales; set scales='power-of-two' with them."
        )
    if recipe.limits is not None and (recipe.per_channel or recipe.block_size):
        raise RecipeError(
            "limits need one scale for each tensor; leave out per_channel and block_size."
        )
    if recipe.format == "qoperator":
        for name in ("fuse_activations", "fuse_pairs"):
            if getattr(recipe.place, name):
                raise RecipeError(
                    f"integer ops round behind each op, so {name} is not for the format qoperator."
                )
    for op_type, (low, high) in recipe.output_ranges.items():
        if not low < high:
            raise RecipeError(
                f"output_ranges of {op_type!r} must be (low, high), not ({low}, {high})."
            )
    for pattern in (*recipe.select.named, *recipe.place.unquantized_nodes):
        if pattern.startswith("re:"):
            try:
                re.compile(pattern[3:])
            except re.error as error:
                raise RecipeError(f"{pattern!r} is not a regular expression: {error}.") from error


def _check_fine_tuning(recipe: Recipe, method: FineTuning) -> None:
    if recipe.bias_correction == "fast":
        raise RecipeError(
            "bias_correction='fast' looks at weights alone and would take back what they learned; "
            "take 'sequential' with fine_tune."
        )
    if not recipe.weight.is_integer:
        raise RecipeError(
            f"only integer weights learn, and {recipe.weight} weights are none; leave out "
            "fine_tune, or take an integer type."
        )
    if isinstance(method, AdaQuant) and recipe.mode == "weight-only":
        raise RecipeError(
            "weights in blocks keep their scales, and adaquant has little to learn without them; "
            "take adaround in the mode weight-only."
        )
    if recipe.mode == "weight-only":
        plain = type(method)()
        for name in ("op_types", "nodes", "sequential", "workers", "output_pairs"):
            if getattr(method, name) != getattr(plain, name):
                raise RecipeError(
                    f"{name} of fine_tune has no effect in weight-only mode; leave it out."
                )
    if isinstance(method, AdaQuant) and method.learn_scales and recipe.scales != "float":
        raise RecipeError(
            f"learn_scales would leave scales={recipe.scales!r}; leave it out, or take "
            "scales='float'."
        )


def _check_format(recipe: Recipe) -> None:
    """Refuse types that the format has no form for, and options that it has no place for."""
    activation, weight, place = recipe.activation, recipe.weight, recipe.place
    if recipe.format not in ("extended", "fix-neuron"):
        for qtype in (activation, weight):
            if qtype.kind == "block":
                raise RecipeError(
                    f"{qtype} is for the formats extended and fix-neuron; set format='extended'."
                )
        if activation.kind == "float" and weight.kind != "float":
            raise RecipeError(
                f"{activation} activations with {weight} weights run nowhere in the format "
                f"{recipe.format}; use one float type for both, or set format='extended'."
            )
        return
    if (recipe.per_channel or recipe.block_size) and not weight.is_integer:
        given = "per_channel" if recipe.per_channel else "block_size"
        raise RecipeError(f"{given} has no meaning for {weight} weights; leave it out.")
    if recipe.limits is not None and not (activation.is_integer and weight.is_integer):
        raise RecipeError("limits are about integers; leave them out with other number types.")
    if place.contrib_ops and (place.extended_ops or recipe.format == "fix-neuron"):
        raise RecipeError(
            "contrib_ops and extended_ops name two domains for one op; switch one of them off."
        )
    if recipe.format == "fix-neuron" and (place.weight_pairs or recipe.block_size):
        name = "place.weight_pairs" if place.weight_pairs else "block_size"
        raise RecipeError(f"{name} has no place in the format fix-neuron; leave it out.")
    if place.dedicated_dequantizers and (
        recipe.format == "fix-neuron" or activation.kind == "block"
    ):
        raise RecipeError(
            "place.dedicated_dequantizers is about pairs, and here one op stands for each; "
            "leave it out."
        )


# What a dynamic recipe can ask for; all else is about activations, which it does not place.
_DYNAMIC_FIELDS = frozenset(
    "version name mode activation weight weight_ranges rounding per_channel weight_symmetric "
    "reduce_range min_real_range select place overrides equalize assumed_type keep_defaults "
    "optimize".split()
)


def _check_dynamic(recipe: Recipe) -> None:
    for what, given, known in (
        ("weights", recipe.weight, (INT8, UINT8)),
        ("activations", recipe.activation, (UINT8,)),
    ):
        if given not in known:
            raise RecipeError(
                f"dynamic models have {what} in {' or '.join(map(str, known))}, not {given}; "
                "the integer operators of ONNX Runtime take no other."
            )
    _refuse_without_effect(recipe, _DYNAMIC_FIELDS)
    plain = Placement()
    for name in Placement.__struct_fields__:
        if name != "force_shared" and getattr(recipe.place, name) != getattr(plain, name):
            raise RecipeError(f"place.{name} has no effect in dynamic mode; leave it out.")


# What a weight-only recipe can ask for: `weights` says all about them.
_WEIGHT_ONLY_FIELDS = frozenset(
    "version name mode select weights fine_tune assumed_type optimize".split()
)


def _refuse_without_effect(recipe: Recipe, known: frozenset[str]) -> None:
    plain = Recipe()
    for name in recipe.__struct_fields__:
        if name not in known and getattr(recipe, name) != getattr(plain, name):
            raise RecipeError(f"{name} has no effect in {recipe.mode} mode; leave it out.")
