"""`ONNXModel`, beside ONNX Runtime's own."""

from __future__ import annotations

import importlib

import numpy as np
import onnx
import pytest
from support.models import build, info, make_cnn, node, normal, run, weight

from bitwright.compat.onnxruntime.onnx_model import ONNXModel


def pair(model):
    """Return (ours, the peer's) wrapper of the same model."""
    peer = importlib.import_module("onnxruntime.quantization.onnx_model").ONNXModel
    return ONNXModel(model), peer(onnx.ModelProto.FromString(model.SerializeToString()))


def weights(name):
    return onnx.numpy_helper.from_array(normal(2, 3), name)


def test_names_are_replaced_and_unused_constants_go_as_in_the_peers():
    model = make_cnn()
    model.graph.node.append(node("Constant", [], ["idle"], name="constant", value=weights("v")))
    model.graph.initializer.append(weights("idle_too"))
    changed = []
    for wrapper in pair(model):
        wrapper.replace_input_of_nodes("c1", "new", {"conv2", "relu1"})
        wrapper.replace_output_of_nodes("c1", "new", {"conv1"})
        wrapper.replace_node_input(wrapper.nodes()[0], "x", "other")
        wrapper.replace_node_output(wrapper.nodes()[1], wrapper.nodes()[1].output[0], "out")
        wrapper.remove_unused_constant()
        changed.append(wrapper.model.SerializeToString(deterministic=True))
    assert changed[0] == changed[1]


def test_what_only_a_body_reads_is_kept():
    body = [node("Add", ["x", "inner"], ["sum"], name="add")]
    then = onnx.helper.make_graph(body, "then", [], [info("sum", [2, 3])])
    model = build(
        [node("If", ["flag"], ["y"], name="if", then_branch=then, else_branch=then)],
        [info("x", [2, 3]), info("flag", [], onnx.TensorProto.BOOL)],
        {"y": [2, 3]},
        {"inner": normal(2, 3), "idle": normal(1)},
    )
    wrapper = ONNXModel(model)
    wrapper.remove_unused_constant()
    assert wrapper.get_initializer_name_set() == {"inner"}


def make_gemms(body=False):
    """Gemm nodes: plain, transposed with constants of its own and shared, scaled, without bias."""
    nodes = [
        node("Gemm", ["x", "a", "bias"], ["g1"], name="plain"),
        node("Gemm", ["g1", "b"], ["g2"], name="own", transB=1),
        node("Gemm", ["g2", "c", "bias"], ["g3"], name="first", transB=1),
        node("Gemm", ["g3", "c"], ["g4"], transB=1),
        node("Gemm", ["g4", "a"], ["g5"], name="scaled", alpha=0.5),
        node("Gemm", ["g5", "z"], ["y"], name="run_time", transB=1),
    ]
    constants = {"a": weight(4, 4), "b": weight(4, 4, seed=1), "c": weight(4, 4, seed=2)}
    constants["bias"] = normal(4)
    model = build(nodes, {"x": [3, 4], "z": [4, 4]}, {"y": [3, 4]}, constants)
    if body:
        main = model.graph
        then = onnx.helper.make_graph(list(main.node), "then", [], list(main.output))
        del main.node[:]
        outer = node("If", ["flag"], ["y"], name="if", then_branch=then, else_branch=then)
        main.node.append(outer)
        main.input.append(info("flag", [], onnx.TensorProto.BOOL))
    return model


@pytest.mark.parametrize("body", [False, True])
def test_gemms_are_split_and_give_the_same_result(body):
    model = make_gemms(body)
    feeds = {"x": normal(3, 4), "z": normal(4, 4, seed=3)}
    feeds |= {"flag": np.array(True)} if body else {}
    before = run(model, feeds)
    wrapper = ONNXModel(model)
    wrapper.replace_gemm_with_matmul()
    onnx.checker.check_model(wrapper.model)
    graph = wrapper.nodes()[0].attribute[0].g if body else wrapper.graph()
    assert [n.op_type for n in graph.node].count("Gemm") == 1
    assert {"plain_MatMul", "plain_Add", "own_MatMul", "run_time_Transpose"} <= {
        n.name for n in graph.node
    }
    for ours, expected in zip(run(wrapper.model, feeds), before, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


def test_gemms_are_split_into_the_peers_nodes():
    nodes = list(make_gemms().graph.node)
    model = make_gemms()
    del model.graph.node[:]
    # Without the constant that two nodes share: the peer transposes it for each of them.
    nodes[2].input[1] = "b2"
    nodes[3].input[1] = "b3"
    model.graph.node.extend(nodes)
    for name in ("b2", "b3"):
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight(4, 4), name))
    written = []
    for wrapper in pair(model):
        wrapper.replace_gemm_with_matmul()
        tensors = {t.name: onnx.numpy_helper.to_array(t).tolist() for t in wrapper.initializer()}
        written.append(([str(n) for n in wrapper.nodes()], tensors))
    assert written[0] == written[1]
