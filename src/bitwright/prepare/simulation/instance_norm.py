"""InstanceNormalization as the NPU computes it: in bfloat16, but for the sums.

x, gamma and beta are rounded. The mean m and the mean of squares q are summed up in full precision
(products of two bfloat16 numbers are exact in float32), and the variance is q - m^2. From
1 / sqrt(variance + epsilon) on, every step is rounded.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir

from bitwright.graph.constants import float_constant_of
from bitwright.graph.shapes import element_type
from bitwright.prepare.linear import Array
from bitwright.prepare.passes import Scope, rewrites
from bitwright.prepare.simulation.bfloat16 import Bfloat16Steps

__all__ = ["simulate_instance_norm"]


@rewrites("InstanceNormalization")
def simulate_instance_norm(norm: ir.Node, names: Scope) -> bool | str:
    """Write every InstanceNormalization as the NPU's steps."""
    reason = _replace(norm, names)
    return reason is None or f"{norm.op_type} {norm.name!r} was not simulated: {reason}"


def _replace(norm: ir.Node, names: Scope) -> str | None:
    """Write the steps in place of the operator, or return why not."""
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
    return None


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
