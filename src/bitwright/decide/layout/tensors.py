"""Entering tensors into a layout: the entry through which each node reads one, and its axis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from bitwright.decide.checks import has_channelwise_activations
from bitwright.decide.layout.entries import Entry, Layout
from bitwright.decide.layout.node_overrides import TypeMap
from bitwright.decide.ops import OpRule
from bitwright.decide.ops.conventions import conventions_of
from bitwright.errors import RecipeError
from bitwright.graph.constants import constant_of, is_constant
from bitwright.numerics import INT16, INT32, QType, axis_within
from bitwright.recipe import Override, Recipe, find_override

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
_CHANNELS = 1


@dataclass(slots=True)
class TensorMarks:
    """Enters tensors into a layout as the recipe stores them, each activation once."""

    names: Mapping[ir.Value, str]
    recipe: Recipe
    layout: Layout
    given: Mapping[str, Override]
    """What is asked for nodes by themselves."""
    types: TypeMap
    marked: dict[ir.Value, str] = field(default_factory=dict, init=False)
    """The activations that have an entry, and its name."""

    def mark_input(self, node: ir.Node, index: int, rule: OpRule) -> str:
        """Enter what a node reads, a constant or an activation; return the entry's name."""
        value = node.inputs[index]
        assert value is not None
        if not is_constant(value):
            self.mark_activation(value)
            # The second factor of a product may have a type of its own.
            factor = self.recipe.place.second_factor if index == 1 and rule.linear else None
            return self._key_of_type(value, node.name or "", factor)
        if index not in rule.weights:
            if self.recipe.emulate.constant_operands == "weight":
                return self._mark_constant(node, value, self._weight_type(node), None, 0)
            qtype = self.types.read.get(node.name or "", self.recipe.activation)
            return self._mark_constant(node, value, qtype, None, 0, operand=True)
        override, blocks = self.override_of(value), self._of_node(node).block_size
        axis, block = _weight_axis(node, index, rule, self.recipe, override, blocks)
        return self._mark_constant(node, value, self._weight_type(node), axis, block)

    def mark_activation(self, value: ir.Value) -> str:
        """Enter a computed tensor, with a second entry where it is converted."""
        if value not in self.marked:
            name = self.names[value]
            override = self.override_of(value)
            qtype = self.recipe.activation
            if not _fixes_type(override):
                qtype = self.types.stored.get(name, qtype)
            qtype = (override.qtype if override else None) or qtype
            self.marked[value] = name
            self.layout.entries[name] = Entry(name, value, "activation", qtype, override=override)
            if override is not None and override.axis is not None:
                self.layout.entries[name].axis = override.axis
            if override is not None and override.convert is not None:
                convert = override.convert
                assert convert.qtype is not None
                self.layout.entries[f"{name}@convert"] = Entry(
                    name, value, "activation", convert.qtype, override=convert, source=name
                )
        return self.marked[value]

    def key_for(self, value: ir.Value, reader: str | None) -> str:
        """Return the entry through which a node reads a marked tensor."""
        key = self.marked[value]
        override = self.override_of(value)
        if override is None or override.convert is None:
            return key
        chosen = override.convert_for
        return f"{key}@convert" if chosen is None or reader in chosen else key

    def _key_of_type(self, value: ir.Value, reader: str, factor: QType | None) -> str:
        """Return the entry through which a quantized node reads a tensor in the node's type.

        Where that is not the tensor's, all nodes of the type read one more pair behind its own.
        """
        key, override = self.marked[value], self.override_of(value)
        wanted = self.types.read.get(reader)
        if factor is not None and factor.bits < self.layout.entries[key].qtype.bits:
            wanted = factor
        if _fixes_type(override) or wanted in (None, self.layout.entries[key].qtype):
            return self.key_for(value, reader)
        assert wanted is not None
        if not self.recipe.output_format.standard_pairs:
            return key  # one type for a tensor: that of most bits
        if self.recipe.emulate.dedicated_pairs:
            raise RecipeError(
                f"{reader!r} reads {wanted}, and {self.names[value]!r} is of another type: that "
                "takes a second pair behind the first, but dedicated_pairs gives each reader one "
                "of its own; leave it out."
            )
        given = (override or Override()).replace(qtype=wanted, axis=None)
        entry = Entry(self.names[value], value, "activation", wanted, override=given, source=key)
        self.layout.entries.setdefault(f"{key}@{wanted}", entry)
        return f"{key}@{wanted}"

    def override_of(self, value: ir.Value) -> Override | None:
        """Return what the recipe says of a single tensor."""
        return find_override(self.recipe.overrides, self.names[value])

    def _of_node(self, node: ir.Node) -> Override:
        return self.given.get(node.name or "", Override())

    def _weight_type(self, node: ir.Node) -> QType:
        given = self.recipe.place.weight_types.get(node.op_type)
        return self._of_node(node).weight or given or self.recipe.weight

    def key_for_output(self, value: ir.Value) -> str:
        """Return the entry of a graph output: converted where every reader's is."""
        keys = {self.key_for(value, use.node.name) for use in value.uses()}
        keys = keys or {self.key_for(value, None)}
        return keys.pop() if len(keys) == 1 else self.marked[value]

    def _mark_constant(
        self,
        node: ir.Node,
        value: ir.Value,
        qtype: QType,
        axis: int | None,
        block: int,
        *,
        operand: bool = False,
    ) -> str:
        """Enter a constant; uses that agree on type and axis share one entry."""
        name = self.names[value]
        override = self.override_of(value)
        if override is not None and override.qtype is not None:
            qtype = override.qtype
        wanted = Entry(
            name, value, "weight", qtype, axis, block, override=override, operand=operand
        )
        return self.layout.enter_constant(wanted, node.name or "")

    def mark_bias(self, node: ir.Node, rule: OpRule, inputs: list[str | None]) -> str | None:
        """Enter the constant that a node adds, or return None where it stays float."""
        index = rule.bias
        if index is None or index >= len(node.inputs) or not self.recipe.quantize_bias:
            return None
        value = node.inputs[index]
        array = constant_of(value)
        if value is None or array is None or not is_float(value):
            return None
        override = self.override_of(value)
        if value.dtype == ir.DataType.FLOAT16 and override is None:
            return None  # the product of two scales is below what float16 resolves
        if override is not None or self.recipe.bias == "weight":
            axis = None if override is None else override.axis
            if axis is not None:
                axis = _valid_axis(axis, array.ndim, f"the override of {value.name!r}")
            return self._mark_constant(node, value, self._weight_type(node), axis, 0)
        source, weight = inputs[0], inputs[rule.weights[-1]]
        if source is None or weight is None or has_channelwise_activations(self.recipe):
            return None
        stored = self.layout.entries[weight].qtype
        if not stored.is_integer:  # there is no grid to add up on
            if conventions_of(self.recipe).float_biases_of_float_weights:
                return None
            return self._mark_constant(node, value, stored, None, 0)
        if self.layout.entries[source].qtype.bits + stored.bits > 32:
            # At (input scale x weight scale) 32 bits would hold nothing of it.
            return self._mark_constant(node, value, INT32, None, 0)
        qtype = INT16 if self.recipe.bias == "int16" else INT32
        return self.layout.enter_bias(self.names[value], value, node, rule, (source, weight), qtype)


def _fixes_type(override: Override | None) -> bool:
    """Whether the override of a tensor says in which type it is read, whoever reads it."""
    return override is not None and bool(override.qtype or override.scale or override.convert)


def is_float(value: ir.Value | None) -> bool:
    """Whether a tensor holds numbers that can be quantized."""
    return value is not None and value.dtype in _FLOATS


def _weight_axis(
    node: ir.Node,
    index: int,
    rule: OpRule,
    recipe: Recipe,
    override: Override | None,
    blocks: int | None,
) -> tuple[int | None, int]:
    """Return the axis of a constant's scales and the size of its blocks; (None, 0): one scale.

    `blocks` is what the node asks for.
    """
    value = node.inputs[index]
    array = constant_of(value)
    assert value is not None and array is not None
    own = None if rule.channel_axis is None else rule.channel_axis(node, index)
    if override is not None and (override.axis is not None or override.block_size):
        where = f"the override of {value.name!r}"
        axis = _valid_axis(override.axis or 0, array.ndim, where)
        if not override.block_size:
            _refuse_misread_axis(node, rule, axis, own, override.qtype or recipe.weight)
        return axis, override.block_size or 0
    if override is not None and override.per_tensor:
        return None, 0
    blocks = recipe.block_size if blocks is None else blocks
    if blocks and array.ndim == 2 and rule.linear == "matrix":
        if conventions_of(recipe).blocks_along_outputs:
            return (own or 0) if recipe.per_channel else 0, blocks
        return 1 if own is None else 1 - own, blocks
    if node.op_type in recipe.place.per_tensor_ops:
        return None, 0
    if not recipe.per_channel or array.ndim < 2:
        return None, 0
    custom = recipe.emulate.channel_axes.get(node.op_type)
    if custom is None:
        return own, 0
    axis = _valid_axis(custom, array.ndim, f"channel_axes of {node.op_type}")
    _refuse_misread_axis(node, rule, axis, own, recipe.weight)
    return axis, 0


def _refuse_misread_axis(
    node: ir.Node, rule: OpRule, axis: int, own: int | None, qtype: QType
) -> None:
    """Refuse channels that the runtime's integer kernel would take for those of another axis."""
    if not rule.fixed_axis or qtype.bits != 8 or axis == own:
        return
    takes = "one scale for the whole tensor" if own is None else f"channels along axis {own}"
    raise RecipeError(
        f"ONNX Runtime's 8-bit {node.op_type} takes {takes} and would compute wrong numbers for "
        f"the weight of {node.name!r} with scales along axis {axis}; leave the axis out."
    )


def _valid_axis(axis: int, rank: int, where: str) -> int:
    if not -rank <= axis < rank:
        raise RecipeError(f"{where} names axis {axis}, but the tensor has {rank} axes.")
    return axis % rank if rank else axis


def choose_shared_exponent_axes(layout: Layout, nodes: Iterable[ir.Node]) -> None:
    """Give entries in a shared-exponent format their axis: that along which a first reader sums.

    Values that share an exponent should be of one dot product: the channels of a convolution, the
    common dimension of a matrix product. A Softmax has its own axis; all else takes the channels.
    """
    for node in nodes:
        for index, key in enumerate(layout.nodes[node.name or ""].inputs):
            if key is None or not (entry := layout.entries[key]).qtype.shares_exponent:
                continue
            if entry.axis is None and (axis := _summed_axis(node, index)) is not None:
                entry.axis = _within(axis, entry)
    for entry in layout.entries.values():
        if entry.qtype.shares_exponent and entry.axis is None:
            entry.axis = _within(_CHANNELS, entry)


def _summed_axis(node: ir.Node, index: int) -> int | None:
    if node.op_type == "MatMul":
        return -1 if index == 0 else -2
    if node.op_type == "Gemm" and index < 2:
        transposed = bool(node.attributes.get_int(("transA", "transB")[index], 0))
        return int(transposed) if index == 1 else int(not transposed)
    if node.op_type in ("Softmax", "LogSoftmax"):
        return node.attributes.get_int("axis", -1)
    return None


def _within(axis: int, entry: Entry) -> int:
    shape = entry.value.shape
    return axis if shape is None else axis_within(axis, len(shape))
