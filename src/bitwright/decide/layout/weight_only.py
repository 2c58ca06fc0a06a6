"""Layout of a weight-only model: which weights are stored in low-bit blocks, and how."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from operator import attrgetter

import msgspec
import onnx_ir as ir

from bitwright.decide.layout.selection import Selector
from bitwright.decide.ops import MATRIX_PRODUCTS, op_types, takes_blocks
from bitwright.errors import NothingQuantizedError
from bitwright.graph import (
    EXPERT_WEIGHTS,
    ProductWeight,
    input_at,
    iter_chosen,
    iter_values,
    reach,
    runtime_version,
    static_shape,
    subgraphs_of,
    weights_of,
)
from bitwright.plan import NodePlan, QuantPlan, WeightPlan
from bitwright.recipe import HQQ, Nearest, Recipe, RoundingMethod, WeightOverride
from bitwright.support.wording import counted

_CARRIERS = op_types(lambda op: op.reshapes) | {"Cast", "Add"}
_CACHES = "GroupQueryAttention"
# Operators of ONNX Runtime with weights of their own, and why these stay float.
_WITHOUT_FORM = {
    "Attention": "its product cannot be taken out of it, as a note says",
    "EmbedLayerNormalization": "its tables have no form in blocks",
    "FusedMatMul": "its product cannot be taken out of it, or its weight is no constant matrix",
    _CACHES: "it has no weights: the products before it have",
    "MultiHeadAttention": "it has no weights: the products before it have",
}
# Before 1.25 QMoE takes SwiGLU only and is wrong without zero points, before 1.27 it has no 2 bits.
_MIN_RUNTIME_OF_EXPERTS = (1, 27)
_FORM = attrgetter("bits", "block_size", "symmetric")
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def plan_weights(
    model: ir.Model, recipe: Recipe, *, fingerprint: str = "", tool: str = ""
) -> QuantPlan:
    """Return the plan of a weight-only recipe: its weights, and what is decided for each node."""
    return _Planner(model, recipe).plan(fingerprint, tool)


def weight_source(node: ir.Node, weight: ir.Value) -> ir.Value | None:
    """Return the tensor that a node multiplies a weight with, None where none can be seen.

    A Gather has none. That of a mixture's second weight is inside the node. A stack of weights
    has inputs of its own for each of them; those of a mixture's first one are all from one tensor.
    """
    if node.op_type == "MoE":
        return None if weight is input_at(node, EXPERT_WEIGHTS[1]) else node.inputs[0]
    return None if node.op_type == "Gather" or _rank(weight) != 2 else node.inputs[0]


class _Planner:
    def __init__(self, model: ir.Model, recipe: Recipe) -> None:
        self._model = model
        self._recipe = recipe
        self._options = recipe.weights
        nodes = list(model.graph.all_nodes() if recipe.enters_bodies else model.graph)
        self._nodes = {node.name or "": node for node in nodes}
        tables = frozenset({"Gather"} if self._options.embeddings is not False else ())
        defaults = MATRIX_PRODUCTS | tables | {"MoE"}
        self._shared_tables_only = self._options.embeddings is None and not recipe.select.op_types
        self._selector = Selector(nodes, recipe.select, defaults)
        self._overrides = _matched(self._options.overrides, self._selector)
        self._names = {value: name for name, value in iter_values(model)}
        self._observed = set(iter_chosen(model))
        self._head = _heads(model) if self._options.head_bits is not None else frozenset()

    def plan(self, fingerprint: str, tool: str) -> QuantPlan:
        weights: dict[str, WeightPlan] = {}
        reasons: dict[str, str | None] = dict.fromkeys(self._nodes)
        for name, node in sorted(self._nodes.items(), key=lambda item: item[1].op_type == "Gather"):
            reasons[name] = self._refusal(node) or self._add(node, weights)
        # Products that the recipe does not reach, to say so.
        inside = "it is inside the body of an If, Loop or Scan; select.subgraphs reaches it"
        products = (n for n in self._model.graph.all_nodes() if n.op_type in MATRIX_PRODUCTS)
        unreached = {n.name or "": n for n in products if (n.name or "") not in self._nodes}
        reasons |= dict.fromkeys(unreached, inside)
        nodes = {**self._nodes, **unreached}
        decisions = {
            name: NodePlan(
                op=nodes[name].op_type, action="float" if why else "quantize", reason=why
            )
            for name, why in reasons.items()
        }
        if not weights and not any(one.action == "quantize" for one in decisions.values()):
            kept = (node for node in decisions.values() if node.op in MATRIX_PRODUCTS)
            shown = "; ".join(sorted({f"{node.op}: {node.reason}" for node in kept})[:3])
            raise NothingQuantizedError(
                f"no weight of this model was quantized ({shown or 'it has no MatMul and no Gemm'})"
                "; widen the selection."
            )
        return QuantPlan(
            tool=tool,
            fingerprint=fingerprint,
            recipe=self._recipe,
            tensors={},
            weights=weights,
            nodes=decisions,
            notes=self._notes(weights),
        )

    def _notes(self, weights: Mapping[str, WeightPlan]) -> list[str]:
        """Return what became of roundings that weigh errors by inputs which are not observed."""
        unseen: Counter[str] = Counter()
        for plan in weights.values():
            node = self._nodes[plan.nodes[0]]
            wanted = self._rounding(node)
            lost = not isinstance(wanted, Nearest) and plan.rounding != wanted
            if node.op_type != "Gather" and lost:
                inside = node.graph is not self._model.graph
                where = "inside bodies of If, Loop or Scan" if inside else "of stacked matrices"
                unseen[where] += 1
        found = [
            f"{counted(count, 'weight')} {where}: rounded to the nearest, since what is read there "
            "is not observed"
            for where, count in unseen.items()
        ]
        constants = self._model.graph.initializers.values()
        sizes = {v: math.prod(static_shape(v) or ()) for v in constants}
        gathers = (node for node in self._nodes.values() if node.op_type == "Gather")
        tables = {weight.value for node in gathers for weight in weights_of(node)}
        left = sum(sizes.get(v, 0) for v in tables if self._names[v] not in weights)
        share = left / max(sum(sizes.values()), 1)
        if self._shared_tables_only and share > 0.5:
            found.append(
                f"tables of embeddings are {share:.0%} of the weights and stay float; "
                "weights.embeddings=true stores them in blocks, too"
            )
        return found

    def _add(self, node: ir.Node, weights: dict[str, WeightPlan]) -> str | None:
        """Put a node's weights into the plan, or return why another reader prevents that."""
        added: dict[str, WeightPlan] = {}
        for weight in weights_of(node):
            key = self._names[weight.value]
            entry = self._entry(node, weight, key, weights.get(key))
            if isinstance(entry, str):
                return entry
            added[key] = entry
        weights |= added
        return None

    def _entry(
        self, node: ir.Node, weight: ProductWeight, key: str, known: WeightPlan | None
    ) -> WeightPlan | str:
        """Return the plan of a weight for a node and those of `known`, or why there is none."""
        wanted = self._wanted(node, weight.value)
        if self._options.whole_blocks and wanted.block_size != -1:
            packs_outputs = self._options.output == "qdq"
            size = _whole_block(weight, wanted, packs_outputs=packs_outputs)
            if isinstance(size, str):
                return size
            wanted = msgspec.structs.replace(wanted, block_size=size)
        if known is None:
            if node.op_type == "Gather" and self._shared_tables_only:
                return "no quantized product shares its table; weights.embeddings stores it, too"
            return wanted
        first = known.nodes[0]
        others = (w for w in weights_of(self._nodes[first]) if w.value is weight.value)
        if next(others).transposed != weight.transposed:
            return f"{first!r} reads the weight {key!r} the other way round"
        # A table follows the product that shares it.
        follows = node.op_type == "Gather" and node.name not in self._overrides
        if not follows and _FORM(known) != _FORM(wanted):
            return f"it shares the weight {key!r} with {first!r}, which asks for another form"
        # Who needs data decides: the rounding of a shared weight must serve both.
        keep = known if follows or known.rounding.needs_data else wanted
        return msgspec.structs.replace(keep, nodes=(*known.nodes, *wanted.nodes))

    def _refusal(self, node: ir.Node) -> str | None:
        """Return why a node keeps its float weight, or None."""
        name = node.name or ""
        if (override := self._overrides.get(name)) is not None and override.keep_float:
            return "an override keeps it float"
        if (reason := self._selector.kept_float(node)) is not None:
            return reason
        if node.op_type in _WITHOUT_FORM and node.domain:
            if node.op_type == _CACHES and self._recipe.cache and len(node.inputs) > 3:
                return None  # its cache, for which it has no weights
            return _WITHOUT_FORM[node.op_type]
        if not takes_blocks(node):
            return "only weights of MatMul, Gemm, Gather and MoE have a form in blocks"
        if (reason := self._selector.not_chosen(node)) is not None:
            hint = "; weights.embeddings stores tables" if node.op_type == "Gather" else ""
            return f"{reason}{hint}"
        weights = [weight.value for weight in weights_of(node)]
        if not weights:
            first = node.inputs[0]
            if node.op_type == "MatMul" and first is not None and first.is_initializer():
                return "its weight is on the left, which no n-bit product takes"
            return "its weight is computed at run time"
        for value in weights:
            if value.dtype not in _FLOATS:
                return f"its weight holds {'unknown' if value.dtype is None else value.dtype.name}"
            if value.is_graph_output():
                return "its weight leaves the model"
        return self._refuse_shape(node, weights) or (
            _refuse_gemm(node) if node.op_type == "Gemm" else None
        )

    def _refuse_shape(self, node: ir.Node, weights: Sequence[ir.Value]) -> str | None:
        if any(0 in (weight.shape or ()) for weight in weights):
            return "its weight has no numbers"
        in_operators = self._options.output.startswith("matmul-nbits")
        if self._options.output == "bnb4" and node.op_type != "MatMul":
            return "MatMulBnb4 takes the weights of MatMul"
        if node.op_type == "MoE":
            if any(_rank(value) != 3 for value in weights):
                return "its weights are not [experts, outputs, inputs]"
            wanted = {weight: self._wanted(node, weight) for weight in weights}
            return _refuse_experts(node, wanted) if in_operators else None
        rank = _rank(weights[0])
        if rank > 2 and node.op_type == "MatMul":
            form = "MatMulNBits takes matrices; weights.output='qdq' stores it in blocks"
            return f"its weight has {rank} axes, and {form}" if in_operators else None
        if rank != 2:
            return f"its weight has {rank} axes, and n-bit products take matrices"
        if node.op_type == "Gather" and node.attributes.get_int("axis", 0) != 0:
            return "it gathers columns, and tables are read by rows"
        return None

    def _rounding(self, node: ir.Node) -> RoundingMethod:
        """Return the rounding that is asked for."""
        given = self._overrides.get(node.name or "", WeightOverride())
        return given.rounding or self._options.rounding

    def _wanted(self, node: ir.Node, weight: ir.Value) -> WeightPlan:
        options, name = self._options, node.name or ""
        given = self._overrides.get(name, WeightOverride())
        bits = options.bits
        if name in self._head and options.head_bits is not None:
            bits = options.head_bits
        elif node.op_type == "Gather" and options.embedding_bits is not None:
            bits = options.embedding_bits
        rounding = self._rounding(node)
        if weight_source(node, weight) is None or node.graph not in self._observed:
            rounding = without_data(rounding)
        return WeightPlan(
            nodes=(name,),
            bits=bits if given.bits is None else given.bits,
            block_size=options.block_size if given.block_size is None else given.block_size,
            symmetric=options.symmetric if given.symmetric is None else given.symmetric,
            positive_scales=options.positive_scales,
            rounding=rounding,
            awq=given.awq is not False and _rank(weight) == 2,
        )


def _whole_block(weight: ProductWeight, plan: WeightPlan, *, packs_outputs: bool) -> int | str:
    """Return the largest block up to the plan's that divides the inputs, or why there is none."""
    shape = weight.value.shape
    assert shape is not None
    inputs, outputs = (int(size) for size in shape[-2:])  # type: ignore[arg-type]
    if weight.transposed:
        inputs, outputs = outputs, inputs
    if packs_outputs and plan.bits < 8 and outputs % 2:
        return f"its {outputs} outputs of {plan.bits} bits would end within a byte"
    size = plan.block_size
    while inputs % size:
        size //= 2
        if size < _MIN_BLOCK:
            return f"no block of {_MIN_BLOCK} or more divides its {inputs} inputs"
    return size


_MIN_BLOCK = 16


def _rank(value: ir.Value) -> int:
    return 0 if value.shape is None else len(value.shape)


def without_data(rounding: RoundingMethod) -> RoundingMethod:
    """Return a rounding for a weight whose inputs cannot be seen, or that has none."""
    if isinstance(rounding, HQQ) or not rounding.needs_data:
        return rounding
    return Nearest(clip=rounding.clip)


def _refuse_gemm(node: ir.Node) -> str | None:
    if node.attributes.get_int("transA", 0):
        return "it transposes its input"
    for scalar in ("alpha", "beta"):
        if node.attributes.get_float(scalar, 1.0) != 1.0:
            return f"its {scalar} is not 1"
    return None


def _refuse_experts(node: ir.Node, wanted: Mapping[ir.Value, WeightPlan]) -> str | None:
    """Return why no kernel of QMoE on CPUs does what a node of MoE does, or None."""
    if runtime_version() < _MIN_RUNTIME_OF_EXPERTS:
        version = ".".join(map(str, _MIN_RUNTIME_OF_EXPERTS))
        return f"QMoE needs ONNX Runtime {version}, and an older one is installed"
    attributes = node.attributes
    if len(wanted) > 2:
        return "QMoE has no third weight (fc3) on CPUs"
    if attributes.get_string("activation_type", "relu") == "swiglu" and (
        attributes.get_int("swiglu_fusion", 0) != 1
    ):
        return "QMoE on CPUs takes the two parts of SwiGLU interleaved (swiglu_fusion=1) only"
    if attributes.get_int("use_sparse_mixer", 0):
        return "QMoE has no sparse mixer on CPUs"
    for value, plan in wanted.items():
        if isinstance(plan.rounding, HQQ) and plan.rounding.float_zero_points:
            return "QMoE takes zero points that are integers only"
        assert value.shape is not None
        inputs = int(value.shape[-1])  # type: ignore[arg-type]
        multiple = 4 if plan.block_size == -1 else plan.block_size
        if inputs % multiple:
            return f"QMoE takes multiples of {multiple} inputs, and one of its weights has {inputs}"
    return None


def _heads(model: ir.Model) -> frozenset[str]:
    """Return the products whose result leaves the model, also through ops that only reshape."""

    def before(value: ir.Value) -> list[ir.Value]:
        node = value.producer()
        if node is not None and node.op_type == "If" and not node.domain:  # as a merged decoder
            return [body.outputs[value.index() or 0] for _, body in subgraphs_of(node)]
        given = node.inputs[:1] if node is not None and node.op_type in _CARRIERS else ()
        return [each for each in given if each is not None]

    # Keys and values that leave for a cache are no answers: they have an axis of heads.
    ends = reach([value for value in model.graph.outputs if _rank(value) < 4], before)
    found = (node for value in ends if (node := value.producer()) is not None)
    return frozenset(node.name or "" for node in found if node.op_type in MATRIX_PRODUCTS)


def _matched(
    overrides: Mapping[str, WeightOverride], selector: Selector
) -> dict[str, WeightOverride]:
    """Return the override of each node; a pattern that no node's name matches is an error."""
    found: dict[str, WeightOverride] = {}
    for pattern, override in overrides.items():
        names = selector.find((pattern,), "weights.overrides")
        found.update(dict.fromkeys(names, override))
    return found
