"""Softmax and InstanceNormalization as the NPU computes them: float32, rounded after each step.

ONNX Runtime's CPU provider has no arithmetic of bfloat16, but its Cast rounds to nearest, ties to
even. A sum, product or quotient of two bfloat16 numbers, rounded once more from float32, is the
right one: 24 bits are at least twice 8 and two more (Figueroa 1995, "When is double rounding
innocuous?").
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from bitwright.graph import element_type, float_constant_of
from bitwright.prepare.passes import Builder, Scope, rewrites
from bitwright.support.array_types import Array

STEP = "simulation-step"
"""The role of a node that computes in bfloat16, without any quantizer around it."""


class Bfloat16Steps(Builder):
    """Writes an operator as steps in front of it, each result rounded to bfloat16."""

    def __init__(self, node: ir.Node, names: Scope) -> None:
        super().__init__(node, names, role=STEP)
        self._label = node.outputs[0].name

    def number(self, value: Any, name: str) -> ir.Value:
        """Return a constant in float32."""
        return self.constant(np.float32(value), f"{self._label}_{name}")

    def integers(self, values: list[int], name: str) -> ir.Value:
        """Return a constant in int64."""
        return self.constant(np.asarray(values, np.int64), f"{self._label}_{name}")

    def exact(self, op_type: str, *inputs: ir.Value, name: str, attributes: Any = None) -> ir.Value:
        """Return the result of one step in float32."""
        return self.add(op_type, inputs, f"{self._label}_{name}", attributes)

    def step(self, op_type: str, *inputs: ir.Value, name: str, attributes: Any = None) -> ir.Value:
        """Return the result of one step, rounded."""
        exact = self.exact(op_type, *inputs, name=f"{name}_exact", attributes=attributes)
        return self.rounded(exact, name)

    def rounded(self, value: ir.Value, name: str) -> ir.Value:
        """Return a value of float32 as the nearest bfloat16, in float32."""
        for end, kind in (("_bf16", ir.DataType.BFLOAT16), ("", ir.DataType.FLOAT)):
            value = self.add("Cast", [value], f"{self._label}_{name}{end}", {"to": int(kind)})
            value.type = ir.TensorType(kind)
        return value


@rewrites("InstanceNormalization", stays="{0.op_type} {0.name!r} was not simulated")
def simulate_instance_norm(norm: ir.Node, names: Scope) -> bool | str:
    """Write every InstanceNormalization as the NPU's steps: in bfloat16, but for the sums.

    x, gamma and beta are rounded. The mean m and the mean of squares q are summed up in full
    precision (products of two bfloat16 numbers are exact in float32), and the variance is q - m^2.
    From 1 / sqrt(variance + epsilon) on, every step is rounded.
    """
    x, opset = norm.inputs[0], names.opset
    gamma, beta = float_constant_of(norm.inputs[1]), float_constant_of(norm.inputs[2])
    if gamma is None or beta is None:
        return "its scale or bias is computed at run time"
    if opset < 13:
        return f"opset {opset} is below 13"
    if x is None or x.shape is None:
        return "the rank of its input is not known"
    if element_type(x) != ir.DataType.FLOAT:
        return f"it computes in {element_type(x)}"
    rank = len(x.shape)
    steps = Bfloat16Steps(norm, names)
    x = steps.rounded(x, "x")
    mean = _mean(steps, x, rank, opset, "mean")
    squares = _mean(steps, steps.exact("Mul", x, x, name="squared"), rank, opset, "squares")
    variance = steps.exact(
        "Sub", squares, steps.exact("Mul", mean, mean, name="mean_squared"), name="variance"
    )
    # Rounding can leave a small negative number.
    variance = steps.exact("Relu", variance, name="positive")
    epsilon = steps.number(norm.attributes.get_float("epsilon", 1e-5), "epsilon")
    root = steps.exact(
        "Sqrt", steps.exact("Add", variance, epsilon, name="guarded"), name="deviation"
    )
    inverse = steps.step("Reciprocal", root, name="inverse")
    centered = steps.step("Sub", x, mean, name="centered")
    unit = steps.step("Mul", centered, inverse, name="unit")
    scaled = steps.step("Mul", unit, _channels(steps, gamma, rank, "gamma"), name="scaled")
    steps.finish(steps.step("Add", scaled, _channels(steps, beta, rank, "beta"), name="shifted"))
    return True


def _mean(steps: Bfloat16Steps, x: ir.Value, rank: int, opset: int, name: str) -> ir.Value:
    axes = list(range(2, rank))
    if opset < 18:
        return steps.exact("ReduceMean", x, name=name, attributes={"axes": axes, "keepdims": 1})
    return steps.exact(
        "ReduceMean", x, steps.integers(axes, f"{name}_axes"), name=name, attributes={"keepdims": 1}
    )


def _channels(steps: Bfloat16Steps, array: Array, rank: int, name: str) -> ir.Value:
    narrow = array.astype(ml_dtypes.bfloat16).astype(np.float32)
    return steps.number(narrow.reshape(-1, *(1,) * (rank - 2)), name)


_POLYNOMIAL = (0.21875, 0.486328125, 1.0, 1.0)
_LARGEST = 87.0
"""Beyond, exponentials leave the normal numbers of bfloat16. An input of minus infinity, as masks
have, counts as minus this: its weight is 1e-38."""


@rewrites("Softmax", stays="{0.op_type} {0.name!r} was not simulated")
def simulate_softmax(softmax: ir.Node, names: Scope) -> bool | str:
    """Write every Softmax as the NPU's steps, with a polynomial for the exponential.

    With r = floor(x log2(e)) and t = x - r ln(2) in [0, ln(2)), the exponential is 2^r p(t), where
    p(t) = ((0.21875 t + 0.486328125) t + 1) t + 1. The largest input is not subtracted first.
    """
    if names.opset < 13:  # where it flattens all dimensions from its axis on
        return f"opset {names.opset} is below 13"
    x = softmax.inputs[0]
    if x is None or element_type(x) != ir.DataType.FLOAT:
        return False
    steps = Bfloat16Steps(softmax, names)
    low, high = steps.number(-_LARGEST, "low"), steps.number(_LARGEST, "high")
    x = steps.rounded(steps.exact("Clip", x, low, high, name="clipped"), "x")
    scaled = steps.step("Mul", x, steps.number(math.log2(math.e), "log2e"), name="scaled")
    whole = steps.exact("Floor", scaled, name="whole")  # of a bfloat16, so one itself
    taken = steps.step("Mul", whole, steps.number(math.log(2), "ln2"), name="taken")
    rest = steps.step("Sub", x, taken, name="rest")
    first, *others = _POLYNOMIAL
    result = steps.number(first, "coefficient_0")
    for index, coefficient in enumerate(others, 1):
        product = steps.step("Mul", result, rest, name=f"product_{index}")
        added = steps.number(coefficient, f"coefficient_{index}")
        result = steps.step("Add", product, added, name=f"sum_{index}")
    power = steps.exact("Pow", steps.number(2.0, "two"), whole, name="power")
    exponential = steps.step("Mul", power, result, name="exponential")
    axis = steps.integers([softmax.attributes.get_int("axis", -1)], "axis")
    total = steps.step("ReduceSum", exponential, axis, name="total", attributes={"keepdims": 1})
    steps.finish(steps.step("Div", exponential, total, name="quotient"))
    return True
