"""Which nodes can read a weight in blocks, and how they become the n-bit operators.

MatMulNBits and GatherBlockQuantized read one weight each, QMoE those of a mixture of experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from bitwright.decide.ops import takes_blocks
from bitwright.emit.quantized import convert_to_contrib
from bitwright.errors import PlanError
from bitwright.graph import NameScope, is_transposed_constant
from bitwright.graph.constants import EXPERT_WEIGHTS, float_constant_of, input_at
from bitwright.graph.editing import add_initializer, graph_of, insert_before, insert_behind_value
from bitwright.numerics import BlockFormat, NBitsForm


class Reader(NamedTuple):
    """A node that reads a constant, directly or through a Transpose."""

    node: ir.Node
    place: int
    """Which of its inputs that is."""
    through: ir.Node | None = None

    @property
    def transposed(self) -> bool:
        """Whether it reads [N, K]: a Gemm that transposes, the rows of a table, and the like."""
        gemm = self.node.op_type == "Gemm" and bool(self.node.attributes.get_int("transB", 0))
        return (self.rowwise or gemm) != (self.through is not None)

    @property
    def rowwise(self) -> bool:
        """Whether it takes [N, K] only."""
        return self.node.op_type in ("Gather", "MoE")


def readers_of(value: ir.Value) -> list[Reader]:
    """Return the nodes that read a constant; a Transpose of a weight is part of its reader."""
    found = []
    for use in value.uses():
        if is_transposed_constant(use.node):
            found += [Reader(u.node, u.idx, use.node) for u in use.node.outputs[0].uses()]
        else:
            found.append(Reader(use.node, use.idx))
    return found


def reason_against(reader: Reader, wanted: frozenset[str] | None) -> str | None:
    """Return why a node does not read its weight in blocks, or None."""
    node = reader.node
    if wanted is not None and (node.name or "") not in wanted:
        return f"{node.name!r} is not to read it so"
    if not takes_blocks(node):
        return f"{node.op_type} takes no blocks"
    if reader.place not in {"Gather": (0,), "MoE": EXPERT_WEIGHTS}.get(node.op_type, (1,)):
        return f"{node.op_type} reads it as another input than its weight"
    attributes = node.attributes
    if node.op_type == "Gather" and attributes.get_int("axis", 0) not in (0, False):
        return "Gather looks up columns"
    if node.op_type == "Gemm" and (
        attributes.get_int("transA", False)
        or attributes.get_float("alpha", 1.0) != 1.0
        or attributes.get_float("beta", 1.0) != 1.0
    ):
        return "Gemm transposes its input, or its alpha or beta is not 1"
    return None


def read_matrix(reader: Reader, matrix: ir.Value, *, transposed: bool, names: NameScope) -> None:
    """Let a node read a float matrix, stored as [N, K] if `transposed`, for its weight."""
    node = reader.node
    if node.op_type == "Gemm":
        node.attributes["transB"] = ir.AttrInt64("transB", int(transposed))
    elif node.op_type in ("MatMul", "Gather") and transposed != reader.rowwise:
        name = names.fresh(f"{node.name}_transpose")
        output = ir.Value(name=names.fresh(f"{matrix.name}_transposed"), type=matrix.type)
        matrix = insert_before(node, "Transpose", [matrix], output, name, {"perm": [1, 0]})
    node.replace_input_with(reader.place, matrix)


def to_nbits(
    node: ir.Node,
    form: NBitsForm,
    codes: ir.Value,
    scales: ir.Value,
    zeros: ir.Value | None,
    level: int,
    names: NameScope,
) -> None:
    """Turn a product into MatMulNBits; a bias that is no vector is added behind it."""
    bias = input_at(node, 2) if node.op_type == "Gemm" else None
    inputs: list[ir.Value | None] = [node.inputs[0], codes, scales]
    if zeros is not None:
        inputs.append(zeros)
    behind = None
    if bias is not None:
        vector = _as_vector(bias, form.columns, node, names)
        if vector is None:
            behind = bias
        else:
            inputs += [None] * (5 - len(inputs)) + [vector]
    numbers = {"K": form.rows, "N": form.columns, "bits": form.bits}
    numbers |= {"block_size": form.block_size}
    numbers |= {"accuracy_level": level} if level else {}
    convert_to_contrib(node, "MatMulNBits", inputs, numbers)
    if behind is not None:
        result = node.outputs[0]
        name, renamed = names.fresh(f"{node.name}_bias"), names.fresh(f"{result.name}_product")
        insert_behind_value(result, "Add", [behind], renamed=renamed, name=name)


def to_lookup(
    node: ir.Node, form: NBitsForm, data: ir.Value, scales: ir.Value, zeros: ir.Value | None
) -> None:
    """Turn a Gather into GatherBlockQuantized."""
    inputs = [data, node.inputs[1], scales] + ([] if zeros is None else [zeros])
    numbers = {"bits": form.bits, "block_size": form.block_size}
    numbers |= {"gather_axis": 0, "quantize_axis": 1}
    convert_to_contrib(node, "GatherBlockQuantized", inputs, numbers)


def _as_vector(bias: ir.Value, columns: int, node: ir.Node, names: NameScope) -> ir.Value | None:
    """Return a Gemm's third input as the bias [N] of MatMulNBits, or None where it is none."""
    array = float_constant_of(bias)
    if array is None or array.size not in (1, columns):
        return None
    if array.size == columns and array.shape and array.shape[-1] != columns:
        return None  # one value for each row of the result
    if array.shape == (columns,):
        return bias
    vector = np.broadcast_to(array.reshape(-1), (columns,)).copy()
    return add_initializer(graph_of(node.outputs[0]), names, f"{bias.name}_vector", vector)


class StoredExperts(NamedTuple):
    """One weight of all experts, as QMoE reads it."""

    codes: ir.Value
    scales: ir.Value
    zero_points: ir.Value | None
    format: BlockFormat


def to_experts(
    node: ir.Node, stored: Mapping[int, StoredExperts], names: NameScope, *, accuracy_level: int
) -> None:
    """Turn a MoE of com.microsoft into QMoE, given its weights by the inputs where it has them."""
    places = [place for place in EXPERT_WEIGHTS if input_at(node, place) is not None]
    floats = [place for place in places if place not in stored]
    if floats:
        values = [value.name for place in floats if (value := input_at(node, place)) is not None]
        raise PlanError(f"{node.name!r} reads all of its weights in blocks or none; add {values}.")
    formats = {(part.format.bits, part.format.block_size) for part in stored.values()}
    if len(formats) > 1:
        raise PlanError(f"the weights of {node.name!r} need the same bits and block size.")
    inputs: list[ir.Value | None] = [*node.inputs[:2]]
    for place in EXPERT_WEIGHTS:
        part = stored.get(place)
        inputs += [part.codes, part.scales] if part else [None, None]
        inputs.append(input_at(node, place + 1))  # its bias
    inputs += [part.zero_points if (part := stored.get(p)) else None for p in EXPERT_WEIGHTS]
    if not node.attributes.get_int("normalize_routing_weights", 0):
        inputs.append(_router_weights(node, names))
    while inputs[-1] is None:
        inputs.pop()
    bits, block_size = formats.pop()
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    attributes["expert_weight_bits"] = bits
    attributes |= {} if block_size == -1 else {"block_size": block_size}
    # An operator before ONNX Runtime 1.31 does not have it.
    attributes |= {"accuracy_level": 4} if accuracy_level == 4 else {}
    convert_to_contrib(node, "QMoE", inputs, attributes)


def _router_weights(node: ir.Node, names: NameScope) -> ir.Value:
    """Return what the outputs of experts are weighed with where a MoE does not normalize it.

    QMoE on CPUs always normalizes over the experts that are chosen, unless it is given weights.
    """
    router = node.inputs[1]
    assert router is not None
    name = names.fresh(f"{node.name}_router_weights")
    output = ir.Value(name=names.fresh(f"{router.name}_weights"), type=router.type)
    return insert_before(node, "Softmax", [router], output, name, {"axis": -1})
