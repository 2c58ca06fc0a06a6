"""Sizes that are known fold, though the batch is open; what is not known stays as it was."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper
from support.models import build, constants_of, make_samples, node, nodes_by_name, weight
from support.rewriting import assert_same, op_types, rewrite

from bitwright.prepare import fold_constants

PICTURES = {"x": ["batch", 3, 9, 8]}


def same_pads(source, name, *, kernel):
    """Return nodes that pad as TensorFlow does: of each size, what a strided kernel still needs."""
    nodes, parts = [node("Shape", [source], [f"{name}_shape"])], []
    for axis in (2, 3):
        size, pad = f"{name}_size{axis}", f"{name}_pad{axis}"
        nodes += [
            node("Gather", [f"{name}_shape", f"axis{axis}"], [size]),
            node("Cast", [size], [f"{size}_float"], to=TensorProto.FLOAT),
            node("Div", [f"{size}_float", "stride"], [f"{size}_steps"]),
            node("Ceil", [f"{size}_steps"], [f"{size}_count"]),
            node("Sub", [f"{size}_count", "one"], [f"{size}_moves"]),
            node("Mul", [f"{size}_moves", "stride"], [f"{size}_moved"]),
            node("Add", [f"{size}_moved", f"kernel{kernel}"], [f"{size}_needed"]),
            node("Sub", [f"{size}_needed", f"{size}_float"], [f"{size}_lacking"]),
            node("Cast", [f"{size}_lacking"], [f"{size}_whole"], to=TensorProto.INT64),
            node("Unsqueeze", [f"{size}_whole", "first"], [pad]),
        ]
        parts.append(pad)
    nodes += [
        node("ConstantOfShape", ["some"], [f"{name}_zeros"], value=zero()),
        node("Concat", ["first", "first", *parts, f"{name}_zeros"], [f"{name}_pads"], axis=0),
        node("Pad", [source, f"{name}_pads"], [name]),
    ]
    return nodes


def zero():
    return helper.make_tensor("zero", TensorProto.INT64, [1], [0])


def constants(*kernels):
    numbers = {f"kernel{k}": np.float32(k) for k in kernels}
    return {
        **numbers,
        "axis2": np.int64(2),
        "axis3": np.int64(-1),
        "stride": np.float32(2),
        "one": np.float32(1),
        "first": np.array([0]),
        "some": np.array([4]),
    }


def test_pads_that_a_picture_of_known_size_needs_are_constant():
    """One pad after the other: the second is known when the first one is."""
    nodes = [
        *same_pads("x", "p", kernel=3),
        node("Conv", ["p", "w"], ["c"], strides=[2, 2]),
        *same_pads("c", "q", kernel=2),
        node("Conv", ["q", "v"], ["y"], strides=[2, 2]),
    ]
    arrays = {**constants(2, 3), "w": weight(4, 3, 3, 3), "v": weight(4, 4, 2, 2)}
    proto = build(nodes, PICTURES, {"y": None}, arrays)
    model, _, _ = rewrite(proto, fold_constants)
    assert op_types(model) == {"Pad": 2, "Conv": 2}
    assert_same(proto, model)


def test_a_size_behind_a_norm_that_is_reshaped_like_its_input_is_known():
    """So TorchScript writes group norms; ONNX's inference loses the shape there."""
    nodes = [
        *same_pads("x", "p", kernel=3),
        node("Conv", ["p", "w"], ["c"], strides=[2, 2]),
        node("Reshape", ["c", "groups"], ["g"]),
        node("InstanceNormalization", ["g", "ones", "zeros"], ["n"]),
        node("Shape", ["c"], ["s"]),
        node("Reshape", ["n", "s"], ["r"]),
        *same_pads("r", "q", kernel=2),
        node("Conv", ["q", "v"], ["y"], strides=[2, 2]),
    ]
    norm = {"groups": np.array([0, 2, -1]), "ones": np.ones(2, "f4"), "zeros": np.zeros(2, "f4")}
    arrays = {**constants(2, 3), **norm, "w": weight(4, 3, 3, 3), "v": weight(4, 4, 2, 2)}
    proto = build(nodes, PICTURES, {"y": None}, arrays)
    model, _, _ = rewrite(proto, fold_constants)
    assert op_types(model)["Shape"] == 1
    assert not op_types(model)["Gather"]
    assert_same(proto, model)


@pytest.mark.parametrize(
    ("bounds", "known"),
    [
        ({"starts": [2], "ends": [4]}, True),
        ({"starts": [-2], "ends": [9]}, True),
        ({"starts": [3], "ends": [0], "axes": [0], "steps": [-1]}, True),
        ({"starts": [4], "ends": [4]}, True),
        ({"starts": [0], "ends": [2]}, False),
        ({"starts": [], "ends": []}, False),
    ],
)
def test_slices_of_a_shape(bounds, known):
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Slice", ["s", *bounds], ["some"], name="slice"),
        node("Cast", ["some"], ["f"], to=TensorProto.FLOAT),
        node("ReduceSum", ["f"], ["total"], keepdims=0),
        node("Mul", ["x", "total"], ["y"]),
    ]
    arrays = {name: np.array(values, int) for name, values in bounds.items()}
    proto = build(nodes, PICTURES, {"y": None}, arrays)
    model, _, _ = rewrite(proto, fold_constants)
    assert ("Slice" not in op_types(model)) == known
    assert_same(proto, model)


@pytest.mark.parametrize(("index", "axis"), [(np.int64(0), {}), (np.array([0, 2]), {"axis": 0})])
def test_what_takes_an_open_size_is_left_as_it_was(index, axis):
    nodes = [
        node("Shape", ["x"], ["s"], name="shape"),
        node("Gather", ["s", "index"], ["sizes"], name="sizes", **axis),
        node("Gather", ["s", "known"], ["height"], name="height"),
        node("Mul", ["sizes", "height"], ["product"], name="product"),
        node("Cast", ["product"], ["f"], to=TensorProto.FLOAT, name="cast"),
        node("ReduceSum", ["f"], ["total"], keepdims=0, name="sum"),
        node("Mul", ["x", "total"], ["y"], name="mul"),
    ]
    arrays = {"index": np.asarray(index), "known": np.int64(2)}
    proto = build(nodes, PICTURES, {"y": None}, arrays)
    model, _, _ = rewrite(proto, fold_constants)
    before, after = nodes_by_name(proto), nodes_by_name(model)
    assert before.keys() - after.keys() == {"height"}
    assert after["sizes"] == before["sizes"]
    np.testing.assert_array_equal(constants_of(model)["index"], index)
    assert_same(proto, model)


def test_a_size_that_only_the_exporter_claims_is_not_folded():
    nodes = [
        node("Neg", ["x"], ["r"]),
        node("Shape", ["r"], ["s"]),
        node("Gather", ["s", "place"], ["size"]),
        node("Cast", ["size"], ["f"], to=TensorProto.FLOAT),
        node("Mul", ["x", "f"], ["y"]),
    ]
    proto = build(nodes, {"x": ["batch", "length"]}, {"y": None}, {"place": np.int64(0)})
    claim = helper.make_tensor_value_info("r", TensorProto.FLOAT, [2, "length"])  # of one sample
    proto.graph.value_info.append(claim)
    model, _, _ = rewrite(proto, fold_constants, infer=False)
    assert op_types(model)["Gather"] == 1
    samples = make_samples(proto, 2, open_size=5)
    assert_same(proto, model, samples=samples)


def test_an_index_behind_the_last_size_is_left_to_the_runtime():
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "place"], ["size"]),
        node("Cast", ["size"], ["f"], to=TensorProto.FLOAT),
        node("Mul", ["x", "f"], ["y"]),
    ]
    proto = build(nodes, PICTURES, {"y": None}, {"place": np.int64(4)})
    model, count, _ = rewrite(proto, fold_constants, infer=False)
    assert count == 0
    assert op_types(model)["Gather"] == 1
