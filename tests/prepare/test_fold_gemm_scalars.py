"""alpha and beta go into constants, and the product stays the same."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, checker, helper, numpy_helper, shape_inference

from bitwright.prepare import fold_gemm_scalars

RNG = np.random.default_rng(3)


def build(nodes, inputs, arrays, outputs=("y",)):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(k, TensorProto.FLOAT, v) for k, v in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(v.astype(np.float32), k) for k, v in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return shape_inference.infer_shapes(model)


def assert_same(proto, count):
    model = ir.from_proto(proto)
    assert fold_gemm_scalars(model).changed == count
    changed = ir.to_proto(model)
    checker.check_model(changed, full_check=True)
    feeds = {
        i.name: RNG.normal(size=[d.dim_value for d in i.type.tensor_type.shape.dim]).astype(
            np.float32
        )
        for i in proto.graph.input
    }
    results = [
        onnxruntime.InferenceSession(p.SerializeToString(), providers=["CPUExecutionProvider"]).run(
            None, feeds
        )
        for p in (proto, changed)
    ]
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    return changed


def attributes(node):
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


@pytest.mark.parametrize("alpha", [1.0, 0.5, -2.0, 0.0])
@pytest.mark.parametrize("beta", [1.0, 3.0, 0.0])
def test_constants_take_the_scalars(alpha, beta):
    arrays = {"b": RNG.normal(size=(5, 4)), "c": RNG.normal(size=4)}
    node = helper.make_node("Gemm", ["x", "b", "c"], ["y"], alpha=alpha, beta=beta)
    changed = assert_same(build([node], {"x": [3, 5]}, arrays), int((alpha, beta) != (1.0, 1.0)))
    left = attributes(changed.graph.node[0])
    assert left.get("alpha", 1.0) == 1.0
    assert left.get("beta", 1.0) == 1.0
    assert {i.name for i in changed.graph.initializer} == {"b", "c"}


def test_a_constant_a_takes_alpha_when_b_is_computed():
    node = helper.make_node("Gemm", ["a", "x"], ["y"], alpha=0.25, transA=1)
    changed = assert_same(build([node], {"x": [5, 4]}, {"a": RNG.normal(size=(5, 3))}), 1)
    assert attributes(changed.graph.node[0]) == {"transA": 1}


def test_beta_without_c_goes_away():
    node = helper.make_node("Gemm", ["x", "b"], ["y"], beta=5.0)
    changed = assert_same(build([node], {"x": [3, 5]}, {"b": RNG.normal(size=(5, 4))}), 1)
    assert not changed.graph.node[0].attribute


def test_scalars_stay_where_nothing_is_constant():
    node = helper.make_node("Gemm", ["x", "b", "c"], ["y"], alpha=0.5, beta=2.0)
    changed = assert_same(build([node], {"x": [3, 5], "b": [5, 4], "c": [4]}, {}), 0)
    assert attributes(changed.graph.node[0]) == {"alpha": 0.5, "beta": 2.0}


def test_beta_folds_even_where_alpha_cannot():
    node = helper.make_node("Gemm", ["x", "b", "c"], ["y"], alpha=0.5, beta=2.0)
    arrays = {"c": RNG.normal(size=4)}
    changed = assert_same(build([node], {"x": [3, 5], "b": [5, 4]}, arrays), 1)
    assert attributes(changed.graph.node[0]) == {"alpha": 0.5}


def test_shared_constants_are_copied():
    arrays = {"b": RNG.normal(size=(5, 4)), "c": RNG.normal(size=4)}
    nodes = [
        helper.make_node("Gemm", ["x", "b", "c"], ["y"], alpha=0.5, beta=2.0),
        helper.make_node("Gemm", ["x", "b", "c"], ["z"]),
        helper.make_node("Gemm", ["x", "b", "c"], ["w"], alpha=3.0),
    ]
    changed = assert_same(build(nodes, {"x": [3, 5]}, arrays, ("y", "z", "w")), 2)
    kept = {i.name: numpy_helper.to_array(i) for i in changed.graph.initializer}
    np.testing.assert_array_equal(kept["b"], arrays["b"].astype(np.float32))


def test_a_weight_that_is_also_a_graph_input_stays():
    node = helper.make_node("Gemm", ["x", "b"], ["y"], alpha=2.0)
    proto = build([node], {"x": [3, 5], "b": [5, 4]}, {"b": RNG.normal(size=(5, 4))})
    assert_same(proto, 0)
