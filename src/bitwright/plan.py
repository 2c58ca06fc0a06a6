"""The plan: type and scale of every tensor, what happens to every node and why, as plain data."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from bitwright.errors import PlanError, RecipeError, did_you_mean
from bitwright.graph.decisions import Decisions
from bitwright.numerics.orthogonal import OrthogonalKind
from bitwright.numerics.types import QType
from bitwright.recipe import Recipe, RoundingMethod
from bitwright.support.arguments import check_arguments
from bitwright.support.files import read_parsed, write_file
from bitwright.support.settings import convert, encode, frozen
from bitwright.support.showing import Summarized
from bitwright.support.wording import counted

Role = Literal["activation", "weight", "bias"]
Action = Literal["quantize", "absorb", "float"]
Rounding = Literal["nearest", "squant"]
Nested = float | list[Any]
Fallback = Literal["float", "uint16", "int8"]

FALLBACK_NAMES: dict[Fallback, str] = {"float": "float", "uint16": "16 bits", "int8": "8 bits"}
"""What nodes of a plan can be changed to, where their error is too large."""


class TensorPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one tensor is stored: its type and scale, or whose scale it takes.

    An entry has exactly one of `scale` (its own), `same_as` (the parameters of another entry, as
    a MaxPool's output has its input's) or `bias_of` (a bias: input scale times weight scale).

    >>> from bitwright.numerics.types import UINT8
    >>> TensorPlan(tensor="x", role="activation", qtype=UINT8, scale=0.5, zero_point=3).scale
    0.5
    """

    tensor: str
    role: Role
    qtype: QType
    scale: Nested | None = None
    zero_point: int | list[Any] | None = None
    axis: int | None = None
    block_size: int = 0
    same_as: str | None = None
    source: str | None = None
    """The entry whose result is quantized here, where that is not the float tensor itself."""
    bias_of: tuple[str, str] | None = None
    tile: int = 1
    """How often the weight's scales repeat along a bias (the groups of a ConvTranspose)."""
    shift: int = 0
    """How many times the scale of a bias is doubled, so that it fits its type."""
    range: tuple[Nested, Nested] | None = None
    """What was observed or chosen, before it became a scale."""
    method: str | None = None
    """Where the scale comes from."""
    rounding: Rounding = "nearest"
    """How a weight becomes integers."""

    def __post_init__(self) -> None:
        for name, low, high in (("block_size", 0, 2**31), ("tile", 1, 2**16), ("shift", -64, 64)):
            if not low <= getattr(self, name) <= high:
                raise PlanError(
                    f"tensor {self.tensor!r}: {name!r} is {getattr(self, name)}, and may be "
                    f"{low} to {high}."
                )

    @property
    def depends_on(self) -> tuple[str, ...]:
        """The entries that this one has its parameters or its values from."""
        return tuple(key for key in (self.same_as, self.source, *(self.bias_of or ())) if key)


class NodePlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What happens to one node; `inputs` and `outputs` name entries of the plan's tensors.

    >>> NodePlan(op="Erf", action="float", reason="no rule for Erf").quantized
    False
    """

    op: str
    action: Action
    reason: str | None = None
    inputs: tuple[str | None, ...] = ()
    outputs: tuple[str | None, ...] = ()
    times: tuple[float, float] | None = None
    """Where it is float by its price: the microseconds that it takes so, and in integers, borders
    included, by the costs of a class of CPU."""
    per_token: bool = False
    """In a dynamic model: each row of the activation that a product reads has a scale of its own,
    or each row of the table of a Gather."""
    unfused: bool = False
    """A float node between pairs that reads a copy, so that the runtime leaves it float."""

    @property
    def quantized(self) -> bool:
        """Whether the node works on quantized values, itself or inside its producer."""
        return self.action != "float"

    @property
    def why(self) -> str | None:
        """The reason, with the figures that it rests on.

        >>> NodePlan(op="Conv", action="float", reason="slower", times=(22.0, 41.0)).why
        'slower: 41 µs instead of 22 µs, borders included'
        """
        if self.times is None:
            return self.reason
        in_float, in_integers = self.times
        return f"{self.reason}: {in_integers:g} µs instead of {in_float:g} µs, borders included"


class Smoothing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the channels of one tensor are divided by, and the weights of `nodes` multiplied.

    >>> Smoothing(nodes=("query",), factors=(1.0, 8.0)).factors
    (1.0, 8.0)
    """

    nodes: tuple[str, ...]
    factors: tuple[float, ...] = ()
    """One for each channel; empty: nothing is divided."""
    shifts: tuple[float, ...] = ()
    """What is subtracted from the channels before, and given back to the biases of the nodes;
    empty: nothing."""
    absorbed: tuple[float, ...] = ()
    """What is subtracted from the channels before a rectifier, and given back to the bias of the
    node behind it; empty: nothing."""


class Rotation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The orthogonal matrices that a model is rotated with: a seed gives them again.

    >>> Rotation(seed=0, streams=("hadamard",), attentions=30).seed
    0
    """

    seed: int
    streams: tuple[OrthogonalKind, ...] = ()
    """The kind of matrix for each residual stream."""
    attentions: int = 0
    """How many attentions have rotated values."""


class WeightPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one weight is stored in blocks while activations stay float; its scales come with it.

    >>> from bitwright.recipe import Nearest
    >>> WeightPlan(nodes=("head",), bits=8, block_size=32, rounding=Nearest()).symmetric
    False
    """

    nodes: tuple[str, ...]
    """The nodes that read it."""
    bits: int
    block_size: int
    symmetric: bool = False
    positive_scales: bool = False
    rounding: RoundingMethod
    awq: bool = True
    """Whether the recipe's `awq`, if it has one, is for this weight too."""


class CachePlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The scales of what an attention caches: one, or one for each channel of each head."""

    key: tuple[float, ...]
    value: tuple[float, ...]

    def __post_init__(self) -> None:
        if not all(0 < scale < math.inf for scale in (*self.key, *self.value)):
            raise PlanError("the scales of a cache must be positive and finite.")


@dataclass(frozen=True, slots=True)
class Parameters:
    """Resolved quantization parameters of one tensor.

    >>> import numpy as np
    >>> from bitwright.numerics.types import INT8
    >>> Parameters(INT8, np.float64(0.5), np.int64(0)).axis is None
    True
    """

    qtype: QType
    scale: Any
    zero_point: Any
    axis: int | None = None
    block_size: int = 0
    rounding: Rounding = "nearest"


_HELD = (
    *("smoothing", "bias_shifts", "weight_gains", "tensors", "weights", "caches", "nodes"),
    *("outputs", "notes"),
)


class QuantPlan(Summarized, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every decision about one model, as plain data that can be read, diffed, edited and applied.

    It is frozen with all that is in it: a change makes a new one, by `with_tensors` and the like.

    >>> from bitwright.recipe import Recipe
    >>> plan = QuantPlan(recipe=Recipe(), fingerprint="", tensors={}, nodes={})
    >>> QuantPlan.from_json(plan.to_json()) == plan
    True
    """

    version: Literal[1] = 1
    tool: str = ""
    fingerprint: str
    """Hash of the prepared float graph that the names refer to."""
    recipe: Recipe
    rotation: Rotation | None = None
    """How the model is rotated before anything else happens; None: it is not."""
    smoothing: Mapping[str, Smoothing] = {}
    """Tensor -> how its channels are shifted and scaled before anything is quantized."""
    bias_shifts: Mapping[str, list[float]] = {}
    """Bias -> what is added to each of its channels, in float, before it is rounded."""
    weight_gains: Mapping[str, list[float]] = {}
    """Weight -> what each of its channels is multiplied with, as its scales are already."""
    tensors: Mapping[str, TensorPlan]
    weights: Mapping[str, WeightPlan] = {}
    """Weight -> its blocks, in weight-only mode."""
    caches: Mapping[str, CachePlan] = {}
    """Attention -> the scales of its cache, where that is kept in integers."""
    nodes: Mapping[str, NodePlan]
    outputs: Mapping[str, str | None] = {}
    """Graph output -> the entry it is read through, if any."""
    rounded_by_runtime: tuple[str, ...] = ()
    """Nodes whose float weights ONNX Runtime stores in 8 bits, as the written model showed."""
    trained: bool = False
    """Whether scales were read from a model that was trained with quantizers."""
    random_data: bool = False
    """Whether ranges were observed on random data, which tells nothing of accuracy."""
    notes: list[str] = []

    def __post_init__(self) -> None:
        for name in _HELD:
            msgspec.structs.force_setattr(self, name, frozen(getattr(self, name)))

    @property
    def quantized(self) -> Counter[str]:
        """Op type -> how many nodes are quantized."""
        return Counter(node.op for node in self.nodes.values() if node.quantized)

    @property
    def left_float(self) -> Counter[tuple[str, str]]:
        """(op type, reason) -> how many nodes are not."""
        return Counter((n.op, n.reason or "") for n in self.nodes.values() if not n.quantized)

    def decisions(self) -> Decisions:
        """Return the counts of both; integer operators of a written model have other names."""
        quantized, left = Counter[str](), dict[str, dict[str, int]]()
        for node in self.nodes.values():
            # A Gemm by rows is written as a MatMul.
            op = "MatMul" if node.per_token and node.op == "Gemm" else node.op
            if node.quantized:
                quantized[op] += 1
            else:
                reasons, why = left.setdefault(op, {}), node.reason or "not said"
                reasons[why] = reasons.get(why, 0) + 1
        return Decisions(dict(quantized), left)

    def summary(self) -> str:
        """Return what was decided, in a few lines."""
        ops, kept = self.quantized, self.left_float
        done = ops.total()
        taken, left = self.recipe.done_and_left
        entries = counted(len(self.tensors) + len(self.weights), "tensor")
        lines = [
            f"recipe {self.recipe.name}, {done} of {len(self.nodes)} nodes {taken}"
            + ("" if self.recipe.mode == "cast" else f", {entries}"),
            *(f"{taken.capitalize()}: {op} x{count}" for op, count in ops.most_common()),
            *(
                f"{left.capitalize()}: {op} x{count} because {why}"
                for (op, why), count in kept.most_common()
            ),
            *(f"Note: {note}" for note in self.notes),
        ]
        return "\n".join(lines)

    def root(self, key: str) -> str:
        """Return the entry that an entry has its parameters from, through all `same_as`."""
        chain = [key]
        entry = self._entry(key, "the plan")
        while entry.same_as is not None:
            if entry.same_as in chain:
                raise PlanError(f"tensors share parameters in a circle: {' -> '.join(chain)}.")
            chain.append(entry.same_as)
            entry = self._entry(entry.same_as, f"tensor {chain[-2]!r}")
        return chain[-1]

    def parameters(self, key: str) -> Parameters:
        """Return the scale and zero point of an entry, following `same_as` and `bias_of`."""
        root = self.root(key)
        entry = self.tensors[root]
        if entry.bias_of is not None:
            return self._bias_parameters(entry)
        if entry.scale is None or entry.zero_point is None:
            raise PlanError(f"tensor {root!r} has neither a scale nor `same_as` nor `bias_of`.")
        try:
            scale = np.asarray(entry.scale, dtype=np.float64)
            zero_point = np.asarray(entry.zero_point, dtype=np.int64)
        except (ValueError, TypeError, OverflowError) as error:
            raise PlanError(
                f"tensor {root!r} has a scale or zero point that is no array of numbers."
            ) from error
        if zero_point.shape not in ((), scale.shape):
            raise PlanError(
                f"tensor {root!r} has {scale.size} scales but {zero_point.size} zero points."
            )
        if not np.all(np.isfinite(scale)) or np.any(scale <= 0):
            raise PlanError(f"tensor {root!r} has a scale that is not positive and finite.")
        low, high = entry.qtype.lowest, entry.qtype.highest
        if np.any(zero_point < low) or np.any(zero_point > high):
            raise PlanError(
                f"tensor {root!r} has a zero point outside {entry.qtype}'s {low:.0f}..{high:.0f}."
            )
        return Parameters(
            entry.qtype, scale, zero_point, entry.axis, entry.block_size, entry.rounding
        )

    def _bias_parameters(self, entry: TensorPlan) -> Parameters:
        assert entry.bias_of is not None
        source, weight = (self.parameters(key) for key in entry.bias_of)
        if np.ndim(source.scale):
            raise PlanError(
                f"bias {entry.tensor!r} needs one scale for the whole of {entry.bias_of[0]!r}, "
                f"which has {np.size(source.scale)}."
            )
        # Both factors as the runtime sees them: scales stored in float32.
        weight_scale = np.float32(weight.scale).astype(np.float64)
        if weight_scale.ndim:
            weight_scale = np.tile(weight_scale, entry.tile)
        scale = np.ldexp(np.float32(source.scale).astype(np.float64) * weight_scale, entry.shift)
        zeros = np.zeros_like(scale, dtype=np.int64)
        return Parameters(entry.qtype, scale, zeros, None if scale.ndim == 0 else entry.axis)

    def _entry(self, key: str, where: str) -> TensorPlan:
        if key not in self.tensors:
            raise PlanError(
                f"{where} refers to tensor {key!r}, which has no entry."
                f"{did_you_mean(key, self.tensors)}"
            )
        return self.tensors[key]

    def with_tensors(self, changes: Mapping[str, TensorPlan]) -> QuantPlan:
        """Return the plan with these entries in place of those of the same keys."""
        if not changes:
            return self
        return msgspec.structs.replace(self, tensors={**self.tensors, **changes})

    def with_notes(self, notes: Iterable[str]) -> QuantPlan:
        """Return the plan with these notes added, each of them once."""
        new = [note for note in dict.fromkeys(notes) if note not in self.notes]
        return msgspec.structs.replace(self, notes=[*self.notes, *new]) if new else self

    def to_json(self) -> str:
        """Return the plan as indented JSON."""
        return encode(self).decode()

    @classmethod
    @check_arguments
    def from_json(cls, text: str | bytes, *, source: str = "plan") -> QuantPlan:
        """Read a plan; anything unknown or malformed is a `PlanError`."""
        try:
            return convert(msgspec.json.decode(text), cls, source)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise PlanError(f"{source} is not JSON: {error}.") from error
        except RecipeError as error:
            raise PlanError(str(error)) from error

    @check_arguments
    def save(self, path: str | Path) -> None:
        """Write the plan as JSON: all of it, or nothing."""
        write_file(Path(path), self.to_json() + "\n")

    @classmethod
    @check_arguments
    def load(cls, path: str | Path) -> QuantPlan:
        """Read a plan from a file."""
        text = read_parsed(path, "plan", PlanError, bytes, "is not JSON")
        return cls.from_json(text, source=f"plan {str(path)!r}")
