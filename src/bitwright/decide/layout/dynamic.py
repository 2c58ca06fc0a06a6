"""Which nodes a dynamic model computes in integers, and which constants it stores in 8 bits.

Activations get no entry: their range is measured at every run, so there is nothing to decide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from bitwright.decide.layout.entries import Entry, Layout, plan_as_float
from bitwright.decide.layout.selection import Selector
from bitwright.decide.ops import OPERATORS, Skip, op_types
from bitwright.errors import RecipeError, did_you_mean
from bitwright.graph import iter_values, static_shape
from bitwright.graph.constants import is_constant
from bitwright.numerics.types import INT8, UINT8, QType
from bitwright.plan import NodePlan
from bitwright.recipe import Override, Recipe

__all__ = ["DYNAMIC_OP_TYPES", "lay_out_dynamic"]

DYNAMIC_OP_TYPES = op_types(lambda op: op.dynamic_op)
"""The op types that a dynamic recipe quantizes when it names none."""

_MOVING = op_types(lambda op: op.moves and op.dynamic_op)


def lay_out_dynamic(model: ir.Model, recipe: Recipe) -> Layout:
    """Return which nodes are computed in integers under a dynamic recipe, and the reasons."""
    return _DynamicBuilder(model, recipe).build()


class _DynamicBuilder:
    def __init__(self, model: ir.Model, recipe: Recipe) -> None:
        self._recipe = recipe
        everything = recipe.select.subgraphs
        self._nodes = list(model.graph.all_nodes() if everything else model.graph)
        self._selector = Selector(self._nodes, recipe.select, DYNAMIC_OP_TYPES)
        self._layout = Layout()
        self._names = {value: name for name, value in iter_values(model)}
        self._measured: set[ir.Value] = set()
        """Activations that some node reads in integers."""
        self._stored: set[ir.Value] = set()
        """What comes out of a table in integers."""

    def build(self) -> Layout:
        self._check_overrides()
        plans: dict[str, NodePlan] = {}
        # Nodes that only move values come second: they follow what the others decided.
        for moving in (False, True):
            for node in self._nodes:
                if (node.op_type in _MOVING) == moving:
                    plans[node.name or ""] = self._visit(node)
        self._layout.nodes = {node.name or "": plans[node.name or ""] for node in self._nodes}
        self._refuse_idle_overrides()
        return self._layout

    def _visit(self, node: ir.Node) -> NodePlan:
        reason = self._selector.kept_float(node)
        if reason is None and node.op_type not in DYNAMIC_OP_TYPES:
            reason = f"there is no {node.op_type} whose input is quantized at run time"
        reason = reason or self._selector.not_chosen(node)
        if reason is not None:
            return plan_as_float(node, reason)
        found = self._inputs_of(node)
        if isinstance(found, Skip):
            return plan_as_float(node, found.reason)
        return NodePlan(
            op=node.op_type,
            action="quantize",
            inputs=tuple(found),
            outputs=(None,) * len(node.outputs),
        )

    def _inputs_of(self, node: ir.Node) -> Sequence[str | None] | Skip:
        domain, rule = OPERATORS[node.op_type].domain, _RULES[node.op_type]
        if (node.domain or "").removeprefix("ai.onnx") != domain:
            return Skip(f"there is no integer {node.op_type} of the domain {node.domain!r}")
        data = [value for value in node.inputs if value is not None]
        if data and all(is_constant(value) for value in data) and node.op_type not in _MOVING:
            return Skip("all its inputs are constant")
        return rule(self, node)

    # One constant -------------------------------------------------------------------------

    def weight(self, node: ir.Node, index: int, axis: int | None, block_size: int = 0) -> str:
        """Enter a weight: the recipe's type, with channels where it asks for them."""
        value = node.inputs[index]
        assert value is not None
        override = self._recipe.overrides.get(self._names[value])
        if axis is not None:
            asked = self._recipe.weight_symmetric
            symmetric = self._recipe.weight.signed if asked is None else asked
            symmetric = symmetric or not _takes_zero_points(node, value, block_size)
            override = _with(override, symmetric=symmetric)
        return self._enter(node, value, self._recipe.weight, axis, block_size, override)

    def table(self, node: ir.Node, index: int) -> str:
        """Enter a constant that is read as activations are: uint8, over its own range."""
        value = node.inputs[index]
        assert value is not None
        override = self._recipe.overrides.get(self._names[value])
        if self._recipe.reduce_range:
            # A reduced range keeps sums of products small, and tables are not multiplied.
            override = _with(override, reduce_range=False)
        return self._enter(node, value, UINT8, None, 0, override, operand=True)

    def _enter(
        self,
        node: ir.Node,
        value: ir.Value,
        qtype: QType,
        axis: int | None,
        block_size: int,
        override: Override | None,
        *,
        operand: bool = False,
    ) -> str:
        if override is not None and override.axis not in (None, axis):
            raise RecipeError(
                f"the override of {value.name!r} names axis {override.axis}, and the integer "
                f"{node.op_type} takes axis {axis}; leave the axis out."
            )
        qtype = qtype if override is None or override.qtype is None else override.qtype
        wanted = Entry(
            self._names[value],
            value,
            "weight",
            qtype,
            axis,
            block_size,
            override=override,
            operand=operand,
        )
        return self._layout.enter_constant(wanted, node.name or "")

    # One operator -------------------------------------------------------------------------

    def product(
        self, node: ir.Node, axes: tuple[int | None, int | None]
    ) -> list[str | None] | Skip:
        """Lay out a product of two matrices; `axes` are those of their channels."""
        keys: list[str | None] = [None] * len(node.inputs)
        for index in (0, 1):
            if not _is_float(node.inputs[index]):
                return _not_float(node.inputs[index])
        only_constant = self._recipe.select.constant_weights_only
        if only_constant is not False and not is_constant(node.inputs[1]):
            return Skip("its second input is not constant")
        for index, axis in enumerate(axes):
            value = node.inputs[index]
            assert value is not None
            if not is_constant(value):
                self._measured.add(value)
            elif index == 0:
                keys[0] = self.table(node, 0)
            else:
                keys[1] = self.weight(node, 1, axis if self._recipe.per_channel else None)
        return keys

    def measured_by_weight(self, node: ir.Node, axis: int) -> list[str | None] | Skip:
        """Lay out an op on an activation and a constant weight with channels along `axis`."""
        keys: list[str | None] = [None] * len(node.inputs)
        source = node.inputs[0]
        if not is_constant(node.inputs[1]):
            return Skip("its weight is computed at run time")
        if not _is_float(source):
            return _not_float(source)
        assert source is not None
        self._measured.add(source)
        keys[1] = self.weight(node, 1, axis if self._recipe.per_channel else None)
        return keys

    def move(self, node: ir.Node) -> list[str | None] | Skip:
        """Let a node move stored integers; other values are moved so only for integer readers."""
        keys: list[str | None] = [None] * len(node.inputs)
        source, result = node.inputs[0], node.outputs[0]
        if is_constant(source):
            force = node.op_type == "Gather" or self._recipe.place.force_shared
            if not force:
                return Skip("its input is constant")
            if not _is_float(source):
                return _not_float(source)
            keys[0] = self.table(node, 0)
        elif node.op_type == "Gather":
            return Skip("its table is not constant")
        elif source not in self._stored and not self._all_read_in_integers(source, result):
            return Skip("its input is not quantized, so quantizing it alone would gain nothing")
        self._stored.add(result)
        return keys

    def _all_read_in_integers(self, source: ir.Value | None, result: ir.Value) -> bool:
        return source in self._measured and result in self._measured and len(result.uses()) == 1

    # What was asked for -------------------------------------------------------------------

    def _check_overrides(self) -> None:
        known = set(self._names.values())
        for name, override in self._recipe.overrides.items():
            if name not in known:
                raise RecipeError(
                    f"overrides: no tensor is called {name!r}.{did_you_mean(name, known)}"
                )
            if override.block_size:
                raise RecipeError(f"overrides: {name!r}: dynamic models have no blocks of weights.")
            if override.qtype not in (None, INT8, UINT8):
                raise RecipeError(
                    f"overrides: {name!r}: dynamic models have weights in int8 or uint8, "
                    f"not {override.qtype}."
                )

    def _refuse_idle_overrides(self) -> None:
        used = {entry.name for entry in self._layout.entries.values()}
        for name in self._recipe.overrides:
            if name not in used:
                raise RecipeError(
                    f"overrides: {name!r} is no weight that is quantized; a dynamic model "
                    "measures its activations at every run."
                )


def _takes_zero_points(node: ir.Node, weight: ir.Value, block_size: int) -> bool:
    """Whether the integer operator takes a zero point for each channel of a weight.

    Those of an LSTM take one for each direction, and none for each row; a product of stacks of
    matrices would want one for each matrix, too.
    """
    if node.op_type == "LSTM":
        return not block_size
    return node.op_type != "Conv" and _rank(weight) == 2


def _is_float(value: ir.Value | None) -> bool:
    return value is not None and value.dtype == ir.DataType.FLOAT


def _not_float(value: ir.Value | None) -> Skip:
    if value is None or value.dtype is None:
        return Skip("the type of its input is not known")
    return Skip(f"it works on {value.dtype.name.lower()}")


def _with(override: Override | None, **fields: bool) -> Override:
    given = (
        {}
        if override is None
        else {name: getattr(override, name) for name in override.__struct_fields__}
    )
    for name, value in fields.items():
        if given.get(name) is None and given.get("scale") is None:
            given[name] = value
    return Override(**given)


# The rules --------------------------------------------------------------------------------

Rule = Callable[[_DynamicBuilder, ir.Node], Sequence[str | None] | Skip]


def _rank(value: ir.Value | None) -> int:
    shape = None if value is None else static_shape(value)
    return 0 if shape is None else len(shape)


def _matmul(builder: _DynamicBuilder, node: ir.Node) -> Sequence[str | None] | Skip:
    rank = _rank(node.inputs[1])
    # A vector has no columns: its one axis is summed over.
    return builder.product(node, (None, rank - 1 if rank > 1 else None))


def _gemm(builder: _DynamicBuilder, node: ir.Node) -> Sequence[str | None] | Skip:
    return builder.product(node, (None, 0 if node.attributes.get_int("transB", 0) else 1))


def _conv(builder: _DynamicBuilder, node: ir.Node) -> Sequence[str | None] | Skip:
    return builder.measured_by_weight(node, axis=0)


def _lstm(builder: _DynamicBuilder, node: ir.Node) -> Sequence[str | None] | Skip:
    keys: list[str | None] = [None] * len(node.inputs)
    if node.attributes.get_int("layout", 0):
        return Skip("its layout is batch first, and DynamicQuantizeLSTM has none")
    if not all(is_constant(value) and _rank(value) == 3 for value in node.inputs[1:3]):
        return Skip("its weights are computed at run time")
    if not _is_float(node.inputs[0]):
        return _not_float(node.inputs[0])
    for index in (1, 2):
        shape = static_shape(node.inputs[index])  # type: ignore[arg-type]
        assert shape is not None
        if builder._recipe.per_channel:
            # One scale for each direction and row: the whole last axis is one block.
            keys[index] = builder.weight(node, index, 2, shape[2])
        else:
            keys[index] = builder.weight(node, index, 0)
    return keys


def _attention(builder: _DynamicBuilder, node: ir.Node) -> Sequence[str | None] | Skip:
    for name in ("qkv_hidden_sizes", "rotary_embedding_dim"):
        if name in node.attributes:
            return Skip(f"QAttention has no {name}")
    if any(value is not None for value in node.inputs[5:]):
        return Skip("QAttention takes no attention bias and no length of the past")
    return builder.measured_by_weight(node, axis=1)


def _embedding(builder: _DynamicBuilder, node: ir.Node) -> Sequence[str | None] | Skip:
    keys: list[str | None] = [None] * len(node.inputs)
    if len(node.outputs) > 2 and (node.outputs[2].uses() or node.outputs[2].is_graph_output()):
        return Skip("QEmbedLayerNormalization does not give the sum of the embeddings")
    if len(node.inputs) > 8 and node.inputs[8] is not None:
        return Skip("QEmbedLayerNormalization takes no position ids")
    if "mask_index_type" in node.attributes:
        return Skip("QEmbedLayerNormalization has no mask_index_type")
    for index in range(2, 7):
        value = node.inputs[index]
        if value is None:
            continue
        if not is_constant(value):
            return Skip("one of its tables is computed at run time")
        if not _is_float(value):
            return _not_float(value)
    for index in range(2, 7):
        if node.inputs[index] is not None:
            keys[index] = builder.table(node, index)
    return keys


_RULES: dict[str, Rule] = {
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Conv": _conv,
    "LSTM": _lstm,
    "Attention": _attention,
    "EmbedLayerNormalization": _embedding,
    **dict.fromkeys(_MOVING, _DynamicBuilder.move),
}
