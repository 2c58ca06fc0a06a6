"""Steps in bfloat16 with operators that every runtime has: float32, rounded after each step.

ONNX Runtime's CPU provider has no arithmetic of bfloat16, but its Cast rounds to nearest, ties to
even. A sum, product or quotient of two bfloat16 numbers, rounded once more from float32, is the
right one: 24 bits are at least twice 8 and two more (Figueroa 1995, "When is double rounding
innocuous?").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from bitwright.graph.names import NameScope
from bitwright.prepare.passes import Builder

__all__ = ["STEP", "Bfloat16Steps"]

STEP = "simulation-step"
"""The role of a node that computes in bfloat16, without any quantizer around it."""


class Bfloat16Steps:
    """Writes an operator as steps in front of it, each result rounded to bfloat16."""

    def __init__(self, node: ir.Node, names: NameScope) -> None:
        self._build = Builder(node, names, role=STEP)
        self._label = node.outputs[0].name

    def number(self, value: Any, name: str) -> ir.Value:
        """Return a constant in float32."""
        return self._build.constant(np.float32(value), f"{self._label}_{name}")

    def integers(self, values: list[int], name: str) -> ir.Value:
        """Return a constant in int64."""
        return self._build.constant(np.asarray(values, np.int64), f"{self._label}_{name}")

    def exact(
        self,
        op_type: str,
        *inputs: ir.Value,
        name: str,
        attributes: Mapping[str, Any] | None = None,
    ) -> ir.Value:
        """Return the result of one step in float32."""
        return self._build.add(op_type, inputs, f"{self._label}_{name}", attributes)

    def step(
        self,
        op_type: str,
        *inputs: ir.Value,
        name: str,
        attributes: Mapping[str, Any] | None = None,
    ) -> ir.Value:
        """Return the result of one step, rounded."""
        return self.rounded(
            self.exact(op_type, *inputs, name=f"{name}_exact", attributes=attributes), name
        )

    def rounded(self, value: ir.Value, name: str) -> ir.Value:
        """Return a value of float32 as the nearest bfloat16, in float32."""
        narrow = self._build.add(
            "Cast", [value], f"{self._label}_{name}_bf16", {"to": int(ir.DataType.BFLOAT16)}
        )
        narrow.type = ir.TensorType(ir.DataType.BFLOAT16)
        wide = self._build.add(
            "Cast", [narrow], f"{self._label}_{name}", {"to": int(ir.DataType.FLOAT)}
        )
        wide.type = ir.TensorType(ir.DataType.FLOAT)
        return wide

    def finish(self, last: ir.Value) -> None:
        """Let the last step take the place of the operator."""
        self._build.finish(last)
