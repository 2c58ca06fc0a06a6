"""Which tensors of an operator may be float16 or bfloat16, by the operator's definition."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import onnx
import onnx_ir as ir

from bitwright.graph.runtime_ops import find_schema

_LATEST = 21


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


def find_half_parameters(node: ir.Node, kind: str) -> HalfParameters:
    """Return which tensors of a node may be float16, or bfloat16; of unknown operators none."""
    if node.domain not in ("", "ai.onnx"):
        return HalfParameters()
    graph = node.graph
    imports = graph.opset_imports if isinstance(graph, ir.Graph) else {}
    return _read_schema(node.op_type, node.version or imports.get("", _LATEST), kind)


@cache
def _read_schema(op_type: str, version: int, kind: str) -> HalfParameters:
    schema = find_schema(op_type, version)
    if schema is None:
        return HalfParameters()
    allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}

    def flags(parameters: Any) -> tuple[bool, ...]:
        types = (allowed.get(each.type_str, [each.type_str]) for each in parameters)
        return tuple(f"tensor({kind})" in each for each in types)

    def repeats(parameters: Any) -> bool:
        variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
        return bool(parameters) and parameters[-1].option == variadic

    inputs, outputs = list(schema.inputs), list(schema.outputs)
    return HalfParameters(flags(inputs), flags(outputs), repeats(inputs), repeats(outputs))


def _at(flags: tuple[bool, ...], index: int, *, repeats: bool) -> bool:
    if index < len(flags):
        return flags[index]
    return repeats and flags[-1]
