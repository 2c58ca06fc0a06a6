"""All passes together, on small models and on the real ones that RapidOCR ships."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, checker, helper, numpy_helper
from support.rewriting import to_last

from bitwright import graph
from bitwright.prepare import (
    drop_no_ops,
    fold_batch_norm,
    fold_constants,
    fold_scale_shift,
    fuse_hard_swish,
    prepare_exactly,
)
from bitwright.recipe import Rewrites

REAL = {
    "ch_PP-OCRv4_det_infer.onnx": [(1, 3, 320, 320), (1, 3, 160, 224)],
    "ch_PP-OCRv4_rec_infer.onnx": [(1, 3, 48, 320), (2, 3, 48, 160)],
    "ch_ppocr_mobile_v2.0_cls_infer.onnx": [(1, 3, 48, 192), (3, 3, 48, 192)],
}
# What each pass alone finds in a model whose constants are folded, and how many nodes are left
# when all are done.
FOUND = {
    "ch_PP-OCRv4_det_infer.onnx": {drop_no_ops: 0, fuse_hard_swish: 24, fold_scale_shift: 108},
    "ch_PP-OCRv4_rec_infer.onnx": {drop_no_ops: 7, fuse_hard_swish: 28, fold_scale_shift: 118},
    "ch_ppocr_mobile_v2.0_cls_infer.onnx": {
        drop_no_ops: 0, fuse_hard_swish: 18, fold_scale_shift: 27,
    },
}  # fmt: skip
LEFT = {
    "ch_PP-OCRv4_det_infer.onnx": 191,
    "ch_PP-OCRv4_rec_infer.onnx": 260,
    "ch_ppocr_mobile_v2.0_cls_infer.onnx": 149,
}


def real_model(name):
    spec = importlib.util.find_spec("rapidocr_onnxruntime")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("rapidocr_onnxruntime, whose models this test reads, is not installed")
    path = Path(spec.submodule_search_locations[0]) / "models" / name
    if not path.exists():
        pytest.skip(f"rapidocr_onnxruntime has no model {name}")
    return onnx.load(path)


def run(proto, x):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, {session.get_inputs()[0].name: x})


def is_sorted(graph: ir.Graph) -> bool:
    seen = {*graph.inputs, *graph.initializers.values()}
    for node in graph:
        if not all(value is None or value in seen for value in node.inputs):
            return False
        seen.update(node.outputs)
    return True


@pytest.mark.parametrize("name", REAL)
@pytest.mark.sampled(1)
def test_real_models_compute_the_same(name):
    proto = real_model(name)
    norms = sum(node.op_type == "BatchNormalization" for node in proto.graph.node)
    model = ir.from_proto(proto)
    sentences = prepare_exactly(model)
    assert any(f"folded {norms} batch norm" in sentence for sentence in sentences), sentences
    assert is_sorted(model.graph)
    prepared = ir.to_proto(model)
    checker.check_model(prepared)
    kinds = {node.op_type for node in prepared.graph.node}
    assert not kinds & {"BatchNormalization", "Constant", "Identity", "Dropout"}
    assert "Clip" not in kinds  # they were all parts of hard swishes
    assert len(prepared.graph.node) == LEFT[name]
    for mine, theirs in zip(prepared.graph.input, proto.graph.input, strict=True):
        assert mine.name == theirs.name
    assert [o.name for o in prepared.graph.output] == [o.name for o in proto.graph.output]
    for shape in REAL[name]:
        x = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
        for a, b in zip(run(proto, x), run(prepared, x), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * max(1.0, np.abs(a).max()))


@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize("name", REAL)
@pytest.mark.slow
def test_real_models_with_every_exact_rewrite_compute_the_same_in_nhwc(name, optimize):
    proto = real_model(name)
    model = ir.from_proto(proto)
    graph.normalize(model)
    graph.infer_shapes(model)
    switches = [name for name in Rewrites.__struct_fields__ if name != "fix_shapes"]
    wanted = Rewrites(**dict.fromkeys(switches, True))
    sentences = prepare_exactly(model, optimize=optimize, rewrite=wanted)
    assert any("fed as NHWC" in sentence for sentence in sentences)
    assert is_sorted(model.graph)
    prepared = ir.to_proto(model)
    checker.check_model(prepared, full_check=True)
    assert not {n.op_type for n in prepared.graph.node} & {"BatchNormalization", "Split"}
    x = np.random.default_rng(0).uniform(-1, 1, REAL[name][0]).astype(np.float32)
    for a, b in zip(run(proto, x), run(prepared, to_last(x)), strict=True):
        np.testing.assert_allclose(to_last(a), b, rtol=1e-5, atol=1e-5)  # probabilities


@pytest.mark.parametrize("name", REAL)
@pytest.mark.slow
def test_batch_norms_of_real_models_fold_without_other_passes(name):
    proto = real_model(name)
    model = ir.from_proto(proto)
    norms = sum(node.op_type == "BatchNormalization" for node in proto.graph.node)
    assert fold_batch_norm(model).changed == norms
    x = np.random.default_rng(1).uniform(-1, 1, REAL[name][0]).astype(np.float32)
    for a, b in zip(run(proto, x), run(ir.to_proto(model), x), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * max(1.0, np.abs(a).max()))


@pytest.mark.parametrize("change", [drop_no_ops, fuse_hard_swish, fold_scale_shift])
@pytest.mark.parametrize("name", REAL)
@pytest.mark.slow
def test_each_pass_alone_leaves_real_models_as_they_were(name, change):
    proto = real_model(name)
    model = ir.from_proto(proto)
    fold_constants(model)
    assert change(model).changed == FOUND[name][change]
    assert change(model).changed == 0
    assert is_sorted(model.graph)
    x = np.random.default_rng(2).uniform(-1, 1, REAL[name][0]).astype(np.float32)
    for a, b in zip(run(proto, x), run(ir.to_proto(model), x), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)  # probabilities: the scale is 1


def small_model():
    rng = np.random.default_rng(0)
    arrays = {
        "w": rng.normal(size=(4, 3, 1, 1)), "gamma": rng.normal(size=4),
        "beta": rng.normal(size=4), "mean": rng.normal(size=4), "var": rng.uniform(1, 2, 4),
        "b": rng.normal(size=(4, 5)), "c": rng.normal(size=5),
    }  # fmt: skip
    nodes = [
        helper.make_node("Identity", ["x"], ["x1"]),
        helper.make_node("Conv", ["x1", "w"], ["t"]),
        helper.make_node("BatchNormalization", ["t", "gamma", "beta", "mean", "var"], ["u"]),
        helper.make_node("GlobalAveragePool", ["u"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "b", "c"], ["y"], alpha=0.5, beta=2.0),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 5])],
        [numpy_helper.from_array(v.astype(np.float32), k) for k, v in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_it_says_what_it_did():
    model = ir.from_proto(small_model())
    assert prepare_exactly(model) == [
        "removed 1 constant, idle or repeated node",
        "folded 1 batch norm",
        "folded the scalars of 1 Gemm node",
    ]
    assert prepare_exactly(model) == []
    x = np.ones((2, 3, 4, 4), np.float32)
    np.testing.assert_allclose(
        run(small_model(), x)[0], run(ir.to_proto(model), x)[0], rtol=1e-5, atol=1e-6
    )


def test_passes_repeat_where_one_opens_a_place_for_another():
    # The batch norm hides behind a scale, and the scale behind a hard swish is one only then.
    rng = np.random.default_rng(0)
    arrays = {
        "w": rng.normal(size=(4, 3, 1, 1)), "v": rng.normal(size=(3, 4, 1, 1)), "k": np.array(2.0),
        "gamma": rng.normal(size=4), "beta": rng.normal(size=4), "mean": rng.normal(size=4),
        "var": rng.uniform(1, 2, 4), "three": np.array(3.0), "zero": np.array(0.0),
        "six": np.array(6.0), "one": np.array(1.0),
    }  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["t"]),
        helper.make_node("Mul", ["t", "k"], ["u"]),
        helper.make_node("BatchNormalization", ["u", "gamma", "beta", "mean", "var"], ["n"]),
        helper.make_node("Add", ["n", "three"], ["a"]),
        helper.make_node("Clip", ["a", "zero", "six"], ["c"]),
        helper.make_node("Mul", ["n", "c"], ["m"]),
        helper.make_node("Div", ["m", "six"], ["h"]),
        helper.make_node("Mul", ["h", "one"], ["i"]),
        helper.make_node("Mul", ["i", "k"], ["s"]),
        helper.make_node("Conv", ["s", "v"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3, 4, 4])],
        [numpy_helper.from_array(v.astype(np.float32), k) for k, v in arrays.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    model = ir.from_proto(proto)
    assert prepare_exactly(model) == [
        "dropped 1 no-op",
        "fused 1 hard-swish pattern",
        "folded 1 batch norm",
        "folded 2 constant scale or shift nodes",
    ]
    assert [node.op_type for node in model.graph] == ["Conv", "HardSigmoid", "Mul", "Conv"]
    x = rng.normal(size=(2, 3, 4, 4)).astype(np.float32)
    a, b = run(proto, x)[0], run(ir.to_proto(model), x)[0]
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.abs(a).max())


def test_without_optimization_only_what_right_numbers_need_is_done():
    model = ir.from_proto(small_model())
    assert prepare_exactly(model, optimize=False) == ["folded the scalars of 1 Gemm node"]
    assert "BatchNormalization" in {node.op_type for node in model.graph}


def test_importing_the_passes_does_not_load_onnxscript():
    code = "import sys, bitwright.prepare; sys.exit('onnxscript' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
