"""Work grows with the number of nodes, and not faster."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import bitwright

SAMPLES = [{"x": np.linspace(-1, 1, 8, dtype=np.float32).reshape(1, 2, 2, 2) * i} for i in (1, 2)]


def _chain(layers: int) -> onnx.ModelProto:
    random = np.random.default_rng(0)
    nodes, weights, x = [], [], "x"
    for i in range(layers):
        weight = (random.normal(size=(2, 2, 1, 1)) / 8).astype(np.float32)
        weights += [numpy_helper.from_array(weight, f"w{i}")]
        weights += [numpy_helper.from_array(np.zeros(2, np.float32), f"b{i}")]
        y = "y" if i == layers - 1 else f"t{i}"
        nodes += [
            helper.make_node("Conv", [x, f"w{i}", f"b{i}"], [f"c{i}"], f"conv{i}"),
            helper.make_node("Relu", [f"c{i}"], [f"r{i}"], f"relu{i}"),
            helper.make_node("Add", [f"r{i}", x], [y], f"add{i}"),
        ]
        x = y
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2, 2, 2]) for name in ("x", "y")
    ]
    graph = helper.make_graph(nodes, "chain", values[:1], values[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _calls(work: Callable[[], object]) -> int:
    """Count the calls that a piece of work makes: the same in each run, unlike its time."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.slow
def test_calls_of_quantize_and_compare_grow_as_the_graph():
    def work(layers: int) -> None:
        model = _chain(layers)
        result = bitwright.quantize(model, data=SAMPLES, recipe="int8", progress=False)
        bitwright.compare(model, result.model, data=SAMPLES[:1], progress=False)

    work(2)  # imports, caches
    small, large = (_calls(lambda n=n: work(n)) for n in (6, 48))
    assert large < 7.9 * small  # each call that does not depend on the graph makes it less than 8
