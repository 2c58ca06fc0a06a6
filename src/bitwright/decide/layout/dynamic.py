"""Which nodes a dynamic model computes in integers, and which constants it stores in 8 bits.

Activations get no entry: their range is measured at every run. What is decided for them is whether
each row has a range of its own, or the tensor one for all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import msgspec
import onnx_ir as ir

from bitwright.decide.checks import check_tensor_names
from bitwright.decide.layout.entries import Entry, Layout, plan_as_float, plan_node
from bitwright.decide.layout.node_names import find_names
from bitwright.decide.layout.node_overrides import find_node_overrides
from bitwright.decide.layout.selection import Selector
from bitwright.decide.ops import MATRIX_PRODUCTS, OPERATORS, Skip, op_types
from bitwright.decide.ops.size_arithmetic import SIZE_ARITHMETIC, find_size_arithmetic
from bitwright.errors import RecipeError
from bitwright.graph import ProductWeight, is_constant, iter_values, static_shape, weight_of
from bitwright.numerics.types import INT8, UINT8
from bitwright.plan import NodePlan
from bitwright.recipe import Override, Recipe, find_override

DYNAMIC_OP_TYPES = op_types(lambda op: op.dynamic_op)
"""The op types that a dynamic recipe quantizes when it names none."""

MIN_TABLE = 1 << 14
"""The numbers of a table from which on rows of integers are worth their error: the two rows of a
sentence encoder's token types, in 8 bits, double the error of the whole model."""
_ONE_SCALE = "one scale for the whole activation"

_MOVING = op_types(lambda op: op.moves and op.dynamic_op)


def lay_out_dynamic(
    model: ir.Model, recipe: Recipe, *, keep_float: Mapping[str, str] | None = None
) -> Layout:
    """Return which nodes are computed in integers under a dynamic recipe, and the reasons.

    `keep_float` has the names of more nodes that stay float, and why.
    """
    return _DynamicBuilder(model, recipe, keep_float or {}).build()


class _DynamicBuilder:
    def __init__(self, model: ir.Model, recipe: Recipe, keep_float: Mapping[str, str]) -> None:
        sizes = dict.fromkeys(find_size_arithmetic(model), SIZE_ARITHMETIC)
        self._recipe, self._keep_float = recipe, {**sizes, **keep_float}
        self._nodes = list(model.graph.all_nodes() if recipe.enters_bodies else model.graph)
        self._selector = Selector(self._nodes, recipe.select, DYNAMIC_OP_TYPES)
        self._given = find_node_overrides(recipe, self._selector)
        self._layout = Layout()
        self._names = {value: name for name, value in iter_values(model)}
        self._measured: set[ir.Value | None] = set()
        """Activations that some node reads in integers."""
        self._stored: set[ir.Value] = set()
        """What comes out of a table in integers."""

    def build(self) -> Layout:
        self._check_overrides()
        # Nodes that only move values come second: they follow what the others decided.
        order = sorted(self._nodes, key=lambda node: node.op_type in _MOVING)
        plans = {node.name or "": self._visit(node) for node in order}
        self._layout.nodes = {node.name or "": plans[node.name or ""] for node in self._nodes}
        self._refuse_idle_overrides()
        return self._layout

    def _visit(self, node: ir.Node) -> NodePlan:
        reason = self._keep_float.get(node.name or "") or self._selector.kept_float(node)
        if self._of_node(node).keep_float:
            reason = "an override keeps it float"
        if reason is None and node.op_type not in DYNAMIC_OP_TYPES:
            reason = f"there is no {node.op_type} whose input is quantized at run time"
        reason = reason or self._selector.not_chosen(node)
        if reason is not None:
            return plan_as_float(node, reason)
        found = self._inputs_of(node)
        if isinstance(found, Skip):
            return plan_as_float(node, found.reason)
        planned = plan_node(node, map(found.get, range(len(node.inputs))))
        if (
            node.op_type == "Gather"
            and 0 in found
            and self._layout.entries[found[0]].axis is not None
        ):
            return msgspec.structs.replace(planned, per_token=True)
        if node.op_type not in MATRIX_PRODUCTS:
            return planned
        reason = None
        if self._recipe.dynamic_scale == "token":
            reason = self._why_one_scale(node, constant_first=0 in found)
            if reason is None:
                return msgspec.structs.replace(planned, per_token=True)
        self._measured.update(v for i, v in enumerate(node.inputs[:2]) if i not in found)
        return msgspec.structs.replace(planned, reason=reason)

    def _why_one_scale(self, node: ir.Node, *, constant_first: bool) -> str | None:
        """Return why the activation of a product cannot have one scale for each row, if so."""
        if constant_first:
            return f"{_ONE_SCALE}: its first input is constant"
        if self._matrix(node) is None:
            return f"{_ONE_SCALE}: its second input is no constant matrix"
        if node.attributes.get_int("transA", 0):
            return f"{_ONE_SCALE}: its first input is transposed"
        if any(node.attributes.get_float(name, 1.0) != 1.0 for name in ("alpha", "beta")):
            return f"{_ONE_SCALE}: its alpha or beta multiplies what is computed"
        return None

    def _inputs_of(self, node: ir.Node) -> dict[int, str] | Skip:
        domain, rule = OPERATORS[node.op_type].domain, _RULES[node.op_type]
        if (node.domain or "").removeprefix("ai.onnx") != domain:
            return Skip(f"there is no integer {node.op_type} of the domain {node.domain!r}")
        data = [value for value in node.inputs if value is not None]
        if data and all(is_constant(value) for value in data) and node.op_type not in _MOVING:
            return Skip("all its inputs are constant")
        if any(is_constant(value) and 0 in (value.shape or ()) for value in data):
            return Skip("its weight has no numbers")
        return rule(self, node)

    def _of_node(self, node: ir.Node) -> Override:
        return self._given.get(node.name or "", Override())

    # One constant -------------------------------------------------------------------------

    def weight(
        self,
        node: ir.Node,
        index: int,
        axis: int | None,
        block_size: int = 0,
        value: ir.Value | None = None,
    ) -> str:
        """Enter a weight: the recipe's type, with channels where it asks for them.

        `value` is what is stored, where that is not the node's input itself.
        """
        value = value or node.inputs[index]
        assert value is not None
        override = find_override(self._recipe.overrides, self._names[value])
        qtype = self._of_node(node).weight or self._recipe.weight
        shared = node.op_type == "Conv"
        if axis is not None:
            asked = self._recipe.weight_symmetric
            symmetric = qtype.signed if asked is None else asked
            symmetric = symmetric or not (shared or _takes_zero_points(node, value, block_size))
            override = _with(override, symmetric=symmetric)
        wanted = Entry(self._names[value], value, "weight", qtype, axis, block_size)
        wanted.shared_zero_point = shared
        return self._enter(node, wanted, override)

    def table(self, node: ir.Node, index: int) -> str:
        """Enter a constant that is read as activations are: uint8, over its own range."""
        value = node.inputs[index]
        assert value is not None
        override = find_override(self._recipe.overrides, self._names[value])
        if self._recipe.reduce_range:
            # A reduced range keeps sums of products small, and tables are not multiplied.
            override = _with(override, reduce_range=False)
        wanted = Entry(self._names[value], value, "weight", UINT8, operand=True)
        return self._enter(node, wanted, override)

    def _matrix(self, node: ir.Node) -> ProductWeight | None:
        """Return the matrix that a product or a Gather of rows reads, through a Transpose or not.

        None also where all have one scale.
        """
        found = weight_of(node) if self._recipe.dynamic_scale == "token" else None
        by_rows = found is not None and not node.attributes.get_int("axis", 0)
        return found if found is not None and by_rows and _rank(found.value) == 2 else None

    def _look_up(self, node: ir.Node, matrix: ProductWeight) -> dict[int, str] | Skip:
        """Lay out a table whose rows are read one by one, each with a scale of its own."""
        if (refusal := _refuse_type(matrix.value)) is not None:
            return refusal
        if math.prod(static_shape(matrix.value) or ()) < MIN_TABLE:
            return Skip("its table is so small that 8 bits would save nothing")
        axis = 0 if matrix.transposed else 1
        wanted = Entry(self._names[matrix.value], matrix.value, "weight", INT8, axis)
        return {0: self._enter(node, wanted, Override(symmetric=True, reduce_range=False))}

    def _enter(self, node: ir.Node, wanted: Entry, override: Override | None) -> str:
        if override is not None and override.axis not in (None, wanted.axis):
            raise RecipeError(
                f"the override of {wanted.value.name!r} names axis {override.axis}, and the "
                f"integer {node.op_type} takes axis {wanted.axis}; leave the axis out."
            )
        if override is not None:
            wanted.override, wanted.qtype = override, override.qtype or wanted.qtype
        return self._layout.enter_constant(wanted, node.name or "")

    # One operator -------------------------------------------------------------------------

    def product(self, node: ir.Node, axis: int | None) -> dict[int, str] | Skip:
        """Lay out a product of two matrices; `axis` is that of the second one's channels."""
        keys: dict[int, str] = {}
        for value in node.inputs[:2]:
            if (refusal := _refuse_type(value)) is not None:
                return refusal
        matrix = self._matrix(node)
        seen_through = (
            matrix is not None
            and matrix.through is not None
            and self._why_one_scale(node, constant_first=is_constant(node.inputs[0])) is None
        )
        only_constant = self._recipe.select.constant_weights_only
        if only_constant is not False and not (seen_through or is_constant(node.inputs[1])):
            return Skip("its second input is not constant")
        if is_constant(node.inputs[0]):
            keys[0] = self.table(node, 0)
        if matrix is not None and seen_through:
            axis = 0 if matrix.transposed else 1
            axis = axis if self._recipe.per_channel else None
            keys[1] = self.weight(node, 1, axis, value=matrix.value)
        elif is_constant(node.inputs[1]):
            keys[1] = self.weight(node, 1, axis if self._recipe.per_channel else None)
        return keys

    def measured_by_weight(self, node: ir.Node, axis: int) -> dict[int, str] | Skip:
        """Lay out an op on an activation and a constant weight with channels along `axis`."""
        if not is_constant(node.inputs[1]):
            return Skip("its weight is computed at run time")
        if (refusal := _refuse_type(node.inputs[0])) is not None:
            return refusal
        self._measured.add(node.inputs[0])
        return {1: self.weight(node, 1, axis if self._recipe.per_channel else None)}

    def move(self, node: ir.Node) -> dict[int, str] | Skip:
        """Let a node move stored integers; other values are moved so only for integer readers."""
        keys: dict[int, str] = {}
        source, result = node.inputs[0], node.outputs[0]
        matrix = self._matrix(node)
        if matrix is not None and not find_override(
            self._recipe.overrides, self._names[matrix.value]
        ):
            return self._look_up(node, matrix)
        measured = {source, result} <= self._measured and len(result.uses()) == 1
        if is_constant(source):
            if node.op_type != "Gather" and not self._recipe.place.force_shared:
                return Skip("its input is constant")
            if (refusal := _refuse_type(source)) is not None:
                return refusal
            keys[0] = self.table(node, 0)
        elif node.op_type == "Gather":
            return Skip("its table is not constant")
        elif source not in self._stored and not measured:
            return Skip("its input is not quantized, so quantizing it alone would gain nothing")
        self._stored.add(result)
        return keys

    # What was asked for -------------------------------------------------------------------

    def _check_overrides(self) -> None:
        check_tensor_names(self._recipe, set(self._names.values()))
        for name, override in self._recipe.overrides.items():
            if override.activation:
                raise RecipeError(
                    f"overrides: {name!r}: activation has no effect in dynamic mode, which "
                    "measures activations at every run; leave it out."
                )
            if override.block_size:
                raise RecipeError(f"overrides: {name!r}: dynamic models have no blocks of weights.")
            unfit = [qtype for qtype in override.types if qtype not in (INT8, UINT8)]
            if unfit:
                raise RecipeError(
                    f"overrides: {name!r}: dynamic models have weights in int8 or uint8, "
                    f"not {unfit[0]}."
                )

    def _refuse_idle_overrides(self) -> None:
        used = {entry.name for entry in self._layout.entries.values()}
        for name, override in self._recipe.overrides.items():
            if override.for_tensors and not find_names(name, used):
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


def _refuse_type(value: ir.Value | None) -> Skip | None:
    """Refuse inputs of other types than float32."""
    if value is None or value.dtype is None:
        return Skip("the type of its input is not known")
    is_float = value.dtype == ir.DataType.FLOAT
    return None if is_float else Skip(f"it works on {value.dtype.name.lower()}")


def _with(override: Override | None, **fields: bool) -> Override:
    """Return an override with fields that it leaves open; one with a scale needs none."""
    given = override or Override()
    missing = {name: value for name, value in fields.items() if getattr(given, name) is None}
    return given if given.scale is not None else msgspec.structs.replace(given, **missing)


# The rules --------------------------------------------------------------------------------

Rule = Callable[[_DynamicBuilder, ir.Node], dict[int, str] | Skip]


def _rank(value: ir.Value | None) -> int:
    shape = None if value is None else static_shape(value)
    return 0 if shape is None else len(shape)


def _matmul(builder: _DynamicBuilder, node: ir.Node) -> dict[int, str] | Skip:
    rank = _rank(node.inputs[1])
    # A vector has no columns: its one axis is summed over.
    return builder.product(node, rank - 1 if rank > 1 else None)


def _lstm(builder: _DynamicBuilder, node: ir.Node) -> dict[int, str] | Skip:
    keys: dict[int, str] = {}
    if node.attributes.get_int("layout", 0):
        return Skip("its layout is batch first, and DynamicQuantizeLSTM has none")
    if not all(is_constant(value) and _rank(value) == 3 for value in node.inputs[1:3]):
        return Skip("its weights are computed at run time")
    if (refusal := _refuse_type(node.inputs[0])) is not None:
        return refusal
    for index in (1, 2):
        shape = static_shape(node.inputs[index])  # type: ignore[arg-type]
        assert shape is not None
        if builder._recipe.per_channel:
            # One scale for each direction and row: the whole last axis is one block.
            keys[index] = builder.weight(node, index, 2, shape[2])
        else:
            keys[index] = builder.weight(node, index, 0)
    return keys


def _attention(builder: _DynamicBuilder, node: ir.Node) -> dict[int, str] | Skip:
    for name in ("qkv_hidden_sizes", "rotary_embedding_dim"):
        if name in node.attributes:
            return Skip(f"QAttention has no {name}")
    if any(value is not None for value in node.inputs[5:]):
        return Skip("QAttention takes no attention bias and no length of the past")
    return builder.measured_by_weight(node, axis=1)


def _embedding(builder: _DynamicBuilder, node: ir.Node) -> dict[int, str] | Skip:
    if len(node.outputs) > 2 and (node.outputs[2].uses() or node.outputs[2].is_graph_output()):
        return Skip("QEmbedLayerNormalization does not give the sum of the embeddings")
    if len(node.inputs) > 8 and node.inputs[8] is not None:
        return Skip("QEmbedLayerNormalization takes no position ids")
    if "mask_index_type" in node.attributes:
        return Skip("QEmbedLayerNormalization has no mask_index_type")
    tables = {index: node.inputs[index] for index in range(2, 7) if node.inputs[index] is not None}
    for value in tables.values():
        if not is_constant(value):
            return Skip("one of its tables is computed at run time")
        if (refusal := _refuse_type(value)) is not None:
            return refusal
    return {index: builder.table(node, index) for index in tables}


_RULES: dict[str, Rule] = {
    "MatMul": _matmul,
    "Gemm": lambda builder, node: builder.product(
        node, int(not node.attributes.get_int("transB", 0))
    ),
    "Conv": lambda builder, node: builder.measured_by_weight(node, axis=0),
    "LSTM": _lstm,
    "Attention": _attention,
    "EmbedLayerNormalization": _embedding,
    **dict.fromkeys(_MOVING, _DynamicBuilder.move),
}
