"""The Reshape and Transpose nodes of a SpaceToDepth become one, where their shapes are its own."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import onnx
import pytest
from onnxruntime.quantization.execution_providers.qnn.fusion_spacetodepth import FusionSpaceToDepth
from onnxruntime.quantization.onnx_model import ONNXModel
from support.models import build, node, normal
from support.rewriting import assert_same, op_types, rewrite

from bitwright.prepare import fuse_space_to_depth

PERMUTATIONS = [[0, 1, 2, 4, 3, 5], [0, 1, 3, 2], [0, 2, 1, 3, 4]]


def model_of(*, size=2, permutations=PERMUTATIONS, outputs=("y",), shape=(1, 3, 4, 8)):
    batch, channels, height, width = shape
    rows, columns = height // size, width // size
    shapes = [
        [batch, channels, rows, size, columns, size],
        [batch, channels, rows * columns, size**2],
        [batch, channels, size**2, rows, columns],
        [batch, channels * size**2, rows, columns],
    ]
    constants = {f"s{index}": np.array(sizes) for index, sizes in enumerate(shapes)}
    names = ["x", "r0", "t0", "r1", "t1", "r2", "t2", "y"]
    nodes = []
    for index, (read, written) in enumerate(pairwise(names)):
        if index % 2 == 0:
            nodes.append(node("Reshape", [read, f"s{index // 2}"], [written]))
        else:
            nodes.append(node("Transpose", [read], [written], perm=permutations[index // 2]))
    return build(nodes, {"x": shape}, dict.fromkeys(outputs), constants)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_chain_becomes_one(size):
    proto = model_of(size=size)
    model, count, notes = rewrite(proto, fuse_space_to_depth)
    assert (count, notes, op_types(model)) == (1, [], {"SpaceToDepth": 1})
    assert next(iter(model.graph)).attributes["blocksize"].as_int() == size
    assert_same(proto, model, samples=[{"x": normal(1, 3, 4, 8)}])


def test_the_peer_takes_the_same_chain():
    peer = ONNXModel(onnx.shape_inference.infer_shapes(model_of()))
    FusionSpaceToDepth(peer).apply()
    assert [n.op_type for n in peer.model.graph.node] == ["SpaceToDepth"]


def test_another_order_stays():
    other = [PERMUTATIONS[0], PERMUTATIONS[1], [0, 1, 2, 3, 4]]
    proto = model_of(permutations=other)
    assert rewrite(proto, fuse_space_to_depth)[1] == 0


@pytest.mark.parametrize("between", ["r0", "t1", "r2"])
def test_a_tensor_in_between_that_is_read_elsewhere_stays(between):
    assert rewrite(model_of(outputs=("y", between)), fuse_space_to_depth)[1] == 0


def test_the_same_chain_with_other_shapes_stays():
    proto = model_of()
    given = next(c for c in proto.graph.initializer if c.name == "s2")
    given.CopyFrom(onnx.numpy_helper.from_array(np.array([1, 3, 4, 4, 2]), "s2"))
    assert rewrite(proto, fuse_space_to_depth)[1] == 0
