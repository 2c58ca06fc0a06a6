"""What the user asks for: frozen values with names, the same in Python, YAML and JSON."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from bitwright.errors import MissingPackageError, RecipeError, TargetError, did_you_mean
from bitwright.numerics.types import INT4, INT8, INT16, UINT8, UINT16, QType, qtype

__all__ = [
    "MSE",
    "RECIPES",
    "TARGETS",
    "Distribution",
    "Entropy",
    "MinMSE",
    "MinMax",
    "NonOverflow",
    "Override",
    "Percentile",
    "Placement",
    "RangeMethod",
    "Recipe",
    "Selection",
    "SmoothQuant",
    "Target",
    "load_recipe",
]


class _Method(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A way to turn what was observed of a tensor into the range that is quantized."""

    symmetric: bool = False
    """Widen the range to [-m, m]; the zero point still follows the recipe's symmetry."""


class MinMax(_Method, frozen=True, kw_only=True, tag="minmax", tag_field="method"):
    """The whole observed range: nothing is clipped.

    >>> MinMax(moving_average=0.01).moving_average
    0.01
    """

    moving_average: float | None = None
    """Weight of each new batch in an exponential average of batch extremes."""
    per_channel: bool = False
    """One range for each channel (axis 1) of an activation."""

    def __post_init__(self) -> None:
        if self.moving_average is not None and not 0 < self.moving_average <= 1:
            raise RecipeError(
                f"moving_average must lie in (0, 1], not {self.moving_average}; 0.01 is usual."
            )


class Percentile(_Method, frozen=True, kw_only=True, tag="percentile", tag_field="method"):
    """Clip the rarest values: `percentile` of the mass stays inside, half of the rest each side.

    >>> Percentile(percentile=99.99).percentile
    99.99
    """

    percentile: float = 99.999

    def __post_init__(self) -> None:
        if not 0 < self.percentile <= 100:
            raise RecipeError(f"percentile must lie in (0, 100], not {self.percentile}.")


class Entropy(_Method, frozen=True, kw_only=True, tag="entropy", tag_field="method"):
    """The range whose quantized distribution is nearest the observed one (KL divergence)."""

    bins: int = 2048
    levels: int = 128

    def __post_init__(self) -> None:
        if self.levels < 2 or self.bins < 2 * self.levels:
            raise RecipeError(
                f"entropy needs bins >= 2 * levels >= 4, not bins={self.bins}, "
                f"levels={self.levels}; with fewer there is nothing to search."
            )


class Distribution(_Method, frozen=True, kw_only=True, tag="distribution", tag_field="method"):
    """Standard deviation of the values, for float8 scales."""


class MSE(_Method, frozen=True, kw_only=True, tag="mse", tag_field="method"):
    """The range with the least squared error after quantization."""


class NonOverflow(_Method, frozen=True, kw_only=True, tag="non-overflow", tag_field="method"):
    """The finest power-of-two scale that clips nothing."""


class MinMSE(_Method, frozen=True, kw_only=True, tag="min-mse", tag_field="method"):
    """The power-of-two scale with the least squared error."""


RangeMethod = MinMax | Percentile | Entropy | Distribution | MSE | NonOverflow | MinMSE

ScaleKind = Literal["float", "power-of-two", "int16"]


class Selection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which nodes are quantized. Names may be exact or regular expressions written `re:...`.

    >>> Selection(exclude=("re:head/.*",)).exclude
    ('re:head/.*',)
    """

    op_types: tuple[str, ...] | None = None
    """Only these op types; None: every type that has a rule."""
    nodes: tuple[str, ...] | None = None
    """Only these nodes; None: all."""
    exclude: tuple[str, ...] = ()
    """Never these nodes: they read and write float."""
    exclude_op_types: tuple[str, ...] = ()
    input_nodes: tuple[str, ...] = ()
    """Quantize only what lies downstream of these nodes, themselves included."""
    output_nodes: tuple[str, ...] = ()
    """Quantize only what lies upstream of these nodes, themselves included."""
    subgraphs: bool = False
    """Also quantize inside If, Loop and Scan bodies."""
    constant_weights_only: bool | None = None
    """Leave a MatMul of two activations float; None: in dynamic mode only."""


class Placement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where Q/DQ pairs go and how weights are stored."""

    dedicated_pairs: bool = False
    """One Q/DQ pair for each consumer instead of one for each tensor."""
    keep_activations: bool = False
    """Never absorb a Relu or Clip into the quantizer before it."""
    weight_pairs: bool = False
    """Keep float weights with Q and DQ instead of storing integers."""
    unquantized_outputs: tuple[str, ...] = ()
    """Op types whose outputs get no pair."""
    force_shared: bool = False
    """Quantize data-movement ops even when their input is not quantized."""
    isolated: bool = False
    """Quantize element-wise ops and softmaxes also between float neighbours."""
    float_bias_add: bool = True
    """Leave the sum of a MatMul and its constant bias to the runtime, which adds in float."""
    contrib_ops: bool = False
    """Write Q/DQ in the com.microsoft domain."""
    adjust_for_bias: bool = True
    """Enlarge a weight scale when the int32 bias would overflow with it."""
    channel_axes: dict[str, int] = {}
    """Op type -> axis for per-channel weights, where the usual one does not fit."""


class SmoothQuant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Move outliers from what matrix products read into their weights, before observing.

    >>> SmoothQuant(alpha=0.7).folding
    True
    """

    alpha: float = 0.5
    """How much of the outliers moves: 0 leaves activations as they are, 1 makes them even."""
    folding: bool = True
    """Divide inside the norm or product that computes the activation, where that is possible;
    else, and elsewhere, a Mul divides."""

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise RecipeError(
                f"alpha of smooth must lie in [0, 1], not {self.alpha}; 0.5 is usual."
            )


class Override(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one tensor gets instead of the recipe's defaults.

    >>> Override(qtype=UINT16).qtype.name
    'uint16'
    """

    qtype: QType | None = None
    symmetric: bool | None = None
    reduce_range: bool | None = None
    rmin: float | tuple[float, ...] | None = None
    rmax: float | tuple[float, ...] | None = None
    scale: float | tuple[float, ...] | None = None
    zero_point: int | tuple[int, ...] | None = None
    axis: int | None = None
    block_size: int | None = None
    ranges: RangeMethod | None = None
    convert: Override | None = None
    """A second type for some readers: the tensor is quantized again behind its own pair."""
    convert_for: tuple[str, ...] | None = None
    """Names of the nodes that read the second type; None: every one."""

    def __post_init__(self) -> None:
        if self.convert_for is not None and self.convert is None:
            raise RecipeError("an override with convert_for needs convert, too.")
        if self.convert is not None:
            _check_convert(self.convert)
        if (self.scale is None) != (self.zero_point is None):
            raise RecipeError("an override gives both scale and zero_point, or neither.")
        clash = [
            name
            for name in ("symmetric", "reduce_range", "rmin", "rmax", "ranges")
            if getattr(self, name) is not None
        ]
        if self.scale is not None and clash:
            raise RecipeError(
                f"an override with scale and zero_point leaves nothing for {', '.join(clash)} "
                "to decide; drop one or the other."
            )
        if (self.rmin is None) != (self.rmax is None):
            raise RecipeError("an override gives both rmin and rmax, or neither.")


def _check_convert(convert: Override) -> None:
    unfit = [
        name
        for name in ("axis", "block_size", "reduce_range", "convert")
        if getattr(convert, name) is not None
    ]
    if unfit:
        raise RecipeError(f"convert is for whole activations and takes no {', '.join(unfit)}.")
    if convert.qtype is None:
        raise RecipeError("convert needs a qtype: the type to convert to.")


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that is asked for; `load_recipe` gives the named ones.

    >>> recipe = Recipe(per_channel=True, ranges=Percentile())
    >>> Recipe.from_json(recipe.to_json()) == recipe
    True
    """

    version: Literal[1] = 1
    name: str = "custom"
    mode: Literal["static", "dynamic"] = "static"
    """Static: activation ranges from calibration data. Dynamic: measured at every run."""
    format: Literal["qdq", "qoperator"] = "qdq"
    """QDQ: float ops between Q/DQ pairs. QOperator: integer ops."""
    activation: QType = UINT8
    weight: QType = INT8
    ranges: RangeMethod = MinMax()
    weight_ranges: RangeMethod = MinMax()
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
    select: Selection = Selection()
    place: Placement = Placement()
    overrides: dict[str, Override] = {}
    """Tensor name -> what it gets instead."""
    output_ranges: dict[str, tuple[float, float]] = {}
    """Op type -> the range of its outputs, given and not observed."""
    smooth: SmoothQuant | None = None
    """Even out the channels of what matrix products read; takes a pass over the data more."""
    assumed_type: Literal["float32", "float16"] | None = None
    """The element type of tensors for which none can be inferred, behind unknown operators."""
    optimize: bool = True
    """Fold constants and batch norms before quantizing."""

    def __post_init__(self) -> None:
        _check(self)

    @property
    def weights_are_symmetric(self) -> bool:
        """Whether weights get a symmetric range, by choice or by type."""
        return self.weight.signed if self.weight_symmetric is None else self.weight_symmetric

    def replace(self, **changes: Any) -> Recipe:
        """Return a copy with these fields changed; an unknown field is an error.

        >>> Recipe().replace(per_channel=True).per_channel
        True
        """
        for key in changes:
            if key not in self.__struct_fields__:
                hint = did_you_mean(key, self.__struct_fields__)
                raise RecipeError(f"unknown recipe field {key!r}.{hint}")
        return msgspec.structs.replace(self, **changes)

    def to_json(self, *, indent: int = 2) -> str:
        """Return the recipe as JSON; indent 0 keeps it on one line."""
        return encode(self, indent=indent).decode()

    @classmethod
    def from_json(cls, text: str | bytes, *, source: str = "recipe") -> Recipe:
        """Read a recipe from JSON; unknown keys are errors with a suggestion."""
        try:
            data = msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise RecipeError(f"{source} is not JSON: {error}.") from error
        return convert(data, cls, source)

    @classmethod
    def from_mapping(cls, data: dict[str, Any], *, source: str = "recipe") -> Recipe:
        """Read a recipe from plain dicts and lists, `base` naming the recipe it starts from.

        >>> Recipe.from_mapping({"base": "int8", "per_channel": True}).per_channel
        True
        """
        data = dict(data)
        base = data.pop("base", None)
        if base is not None:
            start = msgspec.to_builtins(named_recipe(base), enc_hook=_to_name)
            data = {**start, "name": data.get("name", f"{base} (changed)"), **data}
        return convert(data, cls, source)


def _check(recipe: Recipe) -> None:
    """Refuse contradictions before any work is done."""
    if recipe.mode == "dynamic":
        _check_dynamic(recipe)
    power_of_two = (NonOverflow, MinMSE)
    if isinstance(recipe.ranges, power_of_two) and recipe.scales != "power-of-two":
        raise RecipeError(
            f"the range method {type(recipe.ranges).__name__} gives power-of-two scales; "
            "set scales='power-of-two' with it."
        )
    if recipe.activation.kind == "float" and recipe.weight.kind != "float":
        raise RecipeError(
            f"{recipe.activation} activations with {recipe.weight} weights run nowhere; "
            "use one float type for both."
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
    if recipe.reduce_range and recipe.weight.kind == "float":
        raise RecipeError(f"reduce_range has no meaning for {recipe.weight} weights.")
    for op_type, (low, high) in recipe.output_ranges.items():
        if not low < high:
            raise RecipeError(
                f"output_ranges of {op_type!r} must be (low, high), not ({low}, {high})."
            )
    for pattern in (
        *(recipe.select.nodes or ()),
        *recipe.select.exclude,
        *recipe.select.input_nodes,
        *recipe.select.output_nodes,
    ):
        if pattern.startswith("re:"):
            try:
                re.compile(pattern[3:])
            except re.error as error:
                raise RecipeError(f"{pattern!r} is not a regular expression: {error}.") from error


# What a dynamic recipe can ask for; all else is about activations, which it does not place.
_DYNAMIC_FIELDS = frozenset(
    "version name mode activation weight weight_ranges per_channel weight_symmetric reduce_range "
    "min_real_range select place overrides assumed_type optimize".split()
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
    plain = Recipe(mode="static")
    for name in recipe.__struct_fields__:
        if name not in _DYNAMIC_FIELDS and getattr(recipe, name) != getattr(plain, name):
            raise RecipeError(f"{name} has no effect in dynamic mode; leave it out.")
    for name in Placement.__struct_fields__:
        if name != "force_shared" and getattr(recipe.place, name) != getattr(plain.place, name):
            raise RecipeError(f"place.{name} has no effect in dynamic mode; leave it out.")


_T = TypeVar("_T")


def _to_name(value: Any) -> Any:
    if isinstance(value, QType):
        return value.name
    raise NotImplementedError(f"cannot store a {type(value).__name__}")


def _from_name(kind: type, value: Any) -> Any:
    if kind is QType:
        if not isinstance(value, str):
            raise RecipeError(f"a number type is a name such as 'int8', not {value!r}.")
        return qtype(value)
    raise NotImplementedError(f"cannot read a {kind.__name__}")


def encode(value: msgspec.Struct, *, indent: int = 2) -> bytes:
    """Return any recipe or plan value as JSON, number types by name."""
    text = msgspec.json.encode(value, enc_hook=_to_name)
    return msgspec.json.format(text, indent=indent) if indent else text


def convert(data: Any, kind: type[_T], source: str) -> _T:
    """Build a value from plain data, turning msgspec's complaints into ours."""
    try:
        return msgspec.convert(data, kind, dec_hook=_from_name, strict=True)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, RecipeError):
            raise RecipeError(f"{source}: {error.__cause__}") from error
        raise RecipeError(f"{source}: {_explain(str(error), kind)}") from error


# msgspec's names of types, as a person would say them.
_PLAIN = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "array": "a list",
    "object": "a mapping",
    "null": "nothing",
}


def _explain(message: str, kind: type) -> str:
    method = re.search(r"Invalid value `?'?(\w[\w-]*)'?`? - at `\$.*method`", message)
    if method is not None:
        known = {m.__struct_config__.tag for m in RangeMethod.__args__}
        return f"unknown range method {method.group(1)!r}.{did_you_mean(method.group(1), known)}"
    unknown = re.search(r"unknown field `(\w+)`(?: - at `\$\.?([\w.\[\]]*)`)?", message)
    wrong = re.search(r"Expected `(.*?)`, got `(.*?)`(?: - at `\$\.?(.*)`)?", message)
    if wrong is not None:
        expected, given, where = wrong.groups()
        wanted, got = _PLAIN.get(expected, expected), _PLAIN.get(given, given)
        return f"option {where or 'recipe'!r} must be {wanted}, not {got}."
    if unknown is None:
        return message.replace("`", "'") + "."
    key, where = unknown.group(1), unknown.group(2) or ""
    known = set()
    for struct in (kind, Selection, Placement, Override, SmoothQuant, *RangeMethod.__args__):
        if where and struct is kind:
            continue
        known.update(getattr(struct, "__struct_fields__", ()))
        if not where:
            break
    place = f" in {where!r}" if where else ""
    return f"unknown option {key!r}{place}.{did_you_mean(key, known)}"


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(name="int8"),
        Recipe(name="int8-per-channel", per_channel=True),
        Recipe(name="int8-symmetric", activation=INT8, activation_symmetric=True, per_channel=True),
        Recipe(name="a16w8", activation=UINT16, weight=INT8, per_channel=True),
        Recipe(name="a16w16", activation=INT16, weight=INT16, activation_symmetric=True),
        Recipe(name="a8w4", activation=UINT8, weight=INT4, per_channel=True),
        Recipe(name="a16w4", activation=UINT16, weight=INT4, per_channel=True),
        Recipe(name="int8-dynamic", mode="dynamic", per_channel=True),
    )
}


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where the model is going to run, and what is asked for when nothing else is said."""

    name: str
    description: str
    recipe: str


TARGETS = {
    target.name: target
    for target in (
        Target(
            name="cpu",
            description="ONNX Runtime on any CPU: uint8 activations, int8 weights.",
            recipe="int8-per-channel",
        ),
    )
}


def named_recipe(name: str) -> Recipe:
    """Return the built-in recipe of this name.

    >>> named_recipe("a16w8").activation.name
    'uint16'
    """
    if name not in RECIPES:
        raise RecipeError(f"unknown recipe {name!r}.{did_you_mean(name, RECIPES)}")
    return RECIPES[name]


def load_recipe(
    recipe: str | Path | dict[str, Any] | Recipe | None = None, target: str | None = None
) -> Recipe:
    """Return a recipe from a value, a built-in name, a dict, or a .json/.yaml file.

    >>> load_recipe("int8-per-channel").per_channel
    True
    >>> load_recipe("int9")
    Traceback (most recent call last):
    bitwright.errors.RecipeError: unknown recipe 'int9'. Did you mean 'int8'?
    """
    if target is not None and target not in TARGETS:
        raise TargetError(f"unknown target {target!r}.{did_you_mean(target, TARGETS)}")
    if recipe is None:
        return named_recipe(TARGETS[target or "cpu"].recipe)
    if isinstance(recipe, Recipe):
        return recipe
    if isinstance(recipe, dict):
        return Recipe.from_mapping(recipe)
    path = Path(recipe)
    if path.suffix.lower() not in {".json", ".yaml", ".yml"}:
        return named_recipe(str(recipe))
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise RecipeError(f"cannot read the recipe {str(path)!r}: {error.strerror}.") from error
    data = _parse_json(text, path) if path.suffix.lower() == ".json" else _parse_yaml(text, path)
    if not isinstance(data, dict):
        raise RecipeError(f"the recipe {str(path)!r} must be a mapping of options.")
    return Recipe.from_mapping(data, source=str(path))


def _parse_json(text: str, path: Path) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise RecipeError(f"the recipe {str(path)!r} is not JSON: {error}.") from error


def _parse_yaml(text: str, path: Path) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise MissingPackageError(
            f"reading {str(path)!r} needs PyYAML; install it, or write the recipe as JSON."
        ) from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise RecipeError(f"the recipe {str(path)!r} is not YAML: {reason}.") from error
