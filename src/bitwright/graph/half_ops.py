"""Which tensors of an operator may be float16 or bfloat16, by the operator's definition."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, TypeGuard

import onnx_ir as ir
from onnxruntime.capi import _pybind_state

from bitwright.graph.constants import is_constant
from bitwright.graph.runtime_ops import find_schema
from bitwright.graph.subgraphs import subgraphs_of

_LATEST = 21
TYPE_ATTRIBUTES = {
    "Cast": "to",
    "ConstantOfShape": "value",
    **dict.fromkeys(
        "Bernoulli EyeLike Multinomial RandomNormal RandomNormalLike RandomUniform "
        "RandomUniformLike".split(),
        "dtype",
    ),
}
"""Operators whose result has the type that this attribute says."""
_WITH_BODIES = frozenset({"If", "Loop", "Scan"})


@dataclass(frozen=True, slots=True)
class HalfParameters:
    """Which inputs and outputs of an operator may be of a type; the last one may repeat."""

    inputs: tuple[bool, ...] = ()
    outputs: tuple[bool, ...] = ()
    inputs_repeat: bool = False
    outputs_repeat: bool = False

    def takes(self, index: int) -> bool:
        """Return whether an input may be of the type."""
        return _at(self.inputs, index, repeats=self.inputs_repeat)

    def gives(self, index: int) -> bool:
        """Return whether an output may be of the type."""
        return _at(self.outputs, index, repeats=self.outputs_repeat)


def is_float(value: ir.Value | None) -> TypeGuard[ir.Value]:
    """Return whether a value is a float32 tensor; sequences of them are none."""
    kind = None if value is None else value.type
    return isinstance(kind, ir.TensorType) and kind.dtype == ir.DataType.FLOAT


def find_counters(node: ir.Node) -> dict[int, ir.Node]:
    """Return the inputs of a Loop that its body counts with, in float, and what adds each step."""
    body = node.attributes.get_graph("body") if node.op_type == "Loop" else None
    if body is None:
        return {}
    found = {}
    for index, value in enumerate(body.inputs[2:], 2):
        step = body.outputs[index - 1].producer()
        if step is None or not is_float(value) or step.op_type not in ("Add", "Sub"):
            continue
        others = [one for one in step.inputs if one is not value]
        if len(others) == 1 and is_constant(others[0]):
            found[index] = step
    return found


def handed_out(node: ir.Node) -> list[tuple[int, ir.Graph, int]]:
    """Return what bodies of an If, Loop or Scan hand on: output of the node, body, its output."""
    skipped = 1 if node.op_type == "Loop" else 0  # the condition
    return [
        (place - skipped, body, place)
        for _, body in subgraphs_of(node)
        for place in range(skipped, len(body.outputs))
    ]


def takes_half_bodies(node: ir.Node) -> bool:
    """Whether the graphs inside a node may compute in half floats as the nodes around it do."""
    return not node.domain and node.op_type in _WITH_BODIES


def find_half_parameters(node: ir.Node, kind: str) -> HalfParameters:
    """Return which tensors of a node may be float16, or bfloat16; of unknown operators none.

    An If, Loop or Scan takes what its bodies do: all but the counters of a Loop.
    """
    if takes_half_bodies(node):
        counters = find_counters(node)
        taken = tuple(index not in counters for index in range(len(node.inputs)))
        given = tuple(index + 2 not in counters for index in range(len(node.outputs)))
        return HalfParameters(taken, given)
    if node.domain == "com.microsoft":
        return _read_parameters(runtime_schemas().get(node.op_type), kind)
    if node.domain not in ("", "ai.onnx"):
        return HalfParameters()
    graph = node.graph
    imports = graph.opset_imports if isinstance(graph, ir.Graph) else {}
    version = node.version or imports.get("", _LATEST)
    schema = find_schema(node.op_type, version)
    return _read_parameters(schema or runtime_schemas("").get(node.op_type), kind)


@cache
def runtime_schemas(domain: str = "com.microsoft") -> dict[str, Any]:
    """Return what ONNX Runtime says of its operators of a domain, as they are there first."""
    found = _pybind_state.get_all_operator_schema()
    versions = sorted((one for one in found if one.domain == domain), key=_version, reverse=True)
    return {one.name: one for one in versions}


def _version(schema: Any) -> int:
    return int(schema.since_version)


@cache
def _read_parameters(schema: Any, kind: str) -> HalfParameters:
    if schema is None:
        return HalfParameters()
    allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}

    def flags(parameters: Any) -> tuple[bool, ...]:
        names = (getattr(each, "type_str", None) or each.typeStr for each in parameters)
        return tuple(f"tensor({kind})" in allowed.get(name, [name]) for name in names)

    def repeats(parameters: Any) -> bool:
        return bool(parameters) and parameters[-1].option.name == "Variadic"

    inputs, outputs = list(schema.inputs), list(schema.outputs)
    return HalfParameters(flags(inputs), flags(outputs), repeats(inputs), repeats(outputs))


def _at(flags: tuple[bool, ...], index: int, *, repeats: bool) -> bool:
    if index < len(flags):
        return flags[index]
    return repeats and flags[-1]
