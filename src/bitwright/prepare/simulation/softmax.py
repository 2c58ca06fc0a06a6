"""Softmax as the NPU computes it: in bfloat16, with a polynomial for the exponential.

With r = floor(x log2(e)) and t = x - r ln(2) in [0, ln(2)), the exponential is 2^r p(t), where
p(t) = ((0.21875 t + 0.486328125) t + 1) t + 1. The largest input is not subtracted first.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from bitwright.graph.names import NameScope
from bitwright.graph.shapes import element_type
from bitwright.graph.subgraphs import iter_graphs
from bitwright.prepare.simulation.bfloat16 import Bfloat16Steps

__all__ = ["simulate_softmax"]

_POLYNOMIAL = (0.21875, 0.486328125, 1.0, 1.0)
_LARGEST = 87.0
"""Beyond, exponentials leave the normal numbers of bfloat16. An input of minus infinity, as masks
have, counts as minus this: its weight is 1e-38."""


def simulate_softmax(model: ir.Model, notes: list[str]) -> int:
    """Write every Softmax as the NPU's steps; return how many.

    >>> graph = ir.Graph([], [], nodes=[], opset_imports={"": 21})
    >>> simulate_softmax(ir.Model(graph, ir_version=10), [])
    0
    """
    names = NameScope(model)
    opset = model.opset_imports.get("", 0)
    replaced = 0
    for _, graph in iter_graphs(model):
        for node in list(graph):
            if node.op_type != "Softmax" or node.domain:
                continue
            if opset < 13:
                # Before, it flattens all dimensions from its axis on.
                notes.append(f"Softmax {node.name!r} was not simulated: opset {opset} is below 13")
            elif node.inputs[0] is not None and element_type(node.inputs[0]) == ir.DataType.FLOAT:
                _replace(node, names)
                replaced += 1
    return replaced


def _replace(softmax: ir.Node, names: NameScope) -> None:
    x = softmax.inputs[0]
    assert x is not None
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
