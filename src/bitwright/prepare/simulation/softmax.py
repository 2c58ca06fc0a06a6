"""Softmax as the NPU computes it: in bfloat16, with a polynomial for the exponential.

With r = floor(x log2(e)) and t = x - r ln(2) in [0, ln(2)), the exponential is 2^r p(t), where
p(t) = ((0.21875 t + 0.486328125) t + 1) t + 1. The largest input is not subtracted first.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from bitwright.graph.shapes import element_type
from bitwright.prepare.passes import Scope, rewrites
from bitwright.prepare.simulation.bfloat16 import Bfloat16Steps

__all__ = ["simulate_softmax"]

_POLYNOMIAL = (0.21875, 0.486328125, 1.0, 1.0)
_LARGEST = 87.0
"""Beyond, exponentials leave the normal numbers of bfloat16. An input of minus infinity, as masks
have, counts as minus this: its weight is 1e-38."""


@rewrites("Softmax")
def simulate_softmax(softmax: ir.Node, names: Scope) -> bool | str:
    """Write every Softmax as the NPU's steps."""
    if names.opset < 13:  # where it flattens all dimensions from its axis on
        return f"Softmax {softmax.name!r} was not simulated: opset {names.opset} is below 13"
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
