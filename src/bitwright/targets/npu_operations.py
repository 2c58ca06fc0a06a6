"""Fused operations of the NPU: a node, the pad before it, the activation behind it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import onnx_ir as ir

from bitwright.graph.constants import constant_of, constant_tensor, input_at
from bitwright.targets import NPU_CNN
from bitwright.targets.npu_limits import NpuOperation, Ref

# What the NPU applies an activation to before it writes the result.
FUSED_PRODUCERS = frozenset(
    "Add AveragePool Conv ConvTranspose Gemm GlobalAveragePool MatMul MaxPool".split()
)
# What it pads on the way in.
PADDED_POOLS = frozenset({"AveragePool", "GlobalAveragePool"})

_ACTIVATIONS = frozenset({"Clip", "LeakyRelu", "PRelu", "Relu"})
# What has a scalar Mul behind it that makes it compute what the NPU does.
_SIMULATED = frozenset({"AveragePool", "GlobalAveragePool", "HardSigmoid", "ReduceMean"})
_LIMITED = frozenset(op for rule in NPU_CNN.limits for op in rule.ops)


def why_not_fixed(value: ir.Value) -> str | None:
    """Return why the NPU's compiler does not take an input of this shape; None: it does.

    >>> why_not_fixed(ir.val("image", ir.DataType.FLOAT, ["batch", 3, 8, 8]))
    'has the open size batch'
    >>> why_not_fixed(ir.val("image", ir.DataType.FLOAT, [4, 3, 8, 8]))
    'has a batch of 4'
    """
    if value.shape is None:
        return "has no shape"
    for size in value.shape:
        if not isinstance(size, int):
            return "has an open dimension" if size.value is None else f"has the open size {size}"
    # Inputs of other ranks have no batch that could be told from their other sizes.
    batch = value.shape[0] if len(value.shape) == 4 else 1
    return None if batch == 1 else f"has a batch of {batch}"


class Edges(Protocol):
    """Where the scales of a graph are found, be it in a plan or in the graph itself."""

    def read(self, node: ir.Node, index: int) -> Ref | None:
        """Return the scale through which a node reads an input, or None where it reads float."""

    def write(self, value: ir.Value) -> Ref | None:
        """Return the scale of the quantizer behind a result, or None where it stays float."""

    def origin(self, node: ir.Node, index: int) -> ir.Value | None:
        """Return the tensor that an input holds, before it was quantized."""


def find_npu_operations(
    nodes: Iterable[ir.Node], edges: Edges
) -> list[tuple[ir.Node, NpuOperation]]:
    """Return every node that a limit is about, with the scales at its edges."""
    chosen = [node for node in nodes if node.op_type in _LIMITED and node.domain in ("", "ai.onnx")]
    swished = {
        edges.origin(node, 0)
        for node in chosen
        if node.op_type == "HardSigmoid" and is_npu_hard_sigmoid(node)
    } - {None}
    operations = []
    for node in chosen:
        if node.op_type == "HardSigmoid" and not is_npu_hard_sigmoid(node):
            continue
        weighs = node.op_type in ("Conv", "Gemm")
        everything = node.op_type in ("Add", "Concat", "Mul", "Sub")
        count = len(node.inputs) if everything else 1
        output, leaky = _result(node, edges)
        operation = NpuOperation(
            op=node.op_type,
            inputs=tuple(_source(node, index, edges) for index in range(count)),
            weight=edges.read(node, 1) if weighs else None,
            bias=edges.read(node, 2) if weighs and len(node.inputs) > 2 else None,
            output=output,
            leaky=leaky,
            swish=node.op_type == "Mul"
            and any(edges.origin(node, index) in swished for index in range(2)),
        )
        operations.append((node, operation))
    return operations


def is_npu_hard_sigmoid(node: ir.Node) -> bool:
    """Return whether this is the HardSigmoid that the NPU has: alpha 1/6, beta 0.5."""
    alpha, beta = (node.attributes.get(name) for name in ("alpha", "beta"))
    slope = 0.2 if alpha is None else alpha.as_float()
    offset = 0.5 if beta is None else beta.as_float()
    return abs(slope - 1 / 6) <= 1e-6 and abs(offset - 0.5) <= 1e-6


def is_simulation(node: ir.Node) -> bool:
    """Return whether a node was put in only to compute what the NPU does before it."""
    return node.metadata_props.get("bitwright.role") == "simulation"


def only_reader(value: ir.Value) -> ir.Node | None:
    """Return the one node that reads a value, if there is just one and no output shows it."""
    uses = list(value.uses())
    if len(uses) != 1 or value.is_graph_output():
        return None
    return uses[0].node


def clip_bounds(node: ir.Node) -> tuple[float | None, float | None] | None:
    """Return the constant bounds of a Clip; None for one that computes them."""
    found: list[float | None] = []
    for index, name in ((1, "min"), (2, "max")):
        value, given = input_at(node, index), node.attributes.get(name)
        if value is not None:
            bound = constant_of(value, defaults=True)
            if bound is None:
                return None
            found.append(float(bound.reshape(-1)[0]))
        else:
            found.append(None if given is None else given.as_float())
    return found[0], found[1]


def _source(node: ir.Node, index: int, edges: Edges) -> Ref | None:
    """Return the scale of an input, of what is padded where the pad is part of the node."""
    found = edges.read(node, index)
    value = node.inputs[index]
    if found is not None or value is None or node.op_type not in PADDED_POOLS:
        return found
    before = value.producer()
    if before is None or before.op_type != "Pad" or only_reader(value) is not node:
        return None
    return edges.read(before, 0)


def _result(node: ir.Node, edges: Edges) -> tuple[Ref | None, bool]:
    """Return the scale of a node's result, behind what is computed with it; and if that leaks."""
    value = node.outputs[0]
    leaky = False
    for fused in (_is_simulating_mul, _is_activation):
        reader = only_reader(value)
        if edges.write(value) is None and reader is not None and fused(value, reader):
            leaky = leaky or reader.op_type == "LeakyRelu"
            value = reader.outputs[0]
    return edges.write(value), leaky


def _is_activation(value: ir.Value, reader: ir.Node) -> bool:
    return reader.op_type in _ACTIVATIONS and reader.inputs[0] is value


def _is_simulating_mul(value: ir.Value, reader: ir.Node) -> bool:
    maker = value.producer()
    if reader.op_type != "Mul" or maker is None or maker.op_type not in _SIMULATED:
        return False
    others = [other for other in reader.inputs if other is not None and other is not value]
    tensor = constant_tensor(others[0], defaults=True) if others else None
    return tensor is not None and tensor.size == 1
