"""Models with patterns of nodes that are one operator, and what both packages make of them."""

from __future__ import annotations

import numpy as np
import onnx

from support.models import build, node, normal
from support.peer_overrides import both

ROOT_OF_TWO = np.float32(2**0.5)


def make_gelu(form, *, watched=None, opset=17):
    """A Gelu as exporters write it: "half-x", "half-last", "x-last", "root", "product"."""
    constants = {
        "two": np.float32(2),
        "root": ROOT_OF_TWO,
        "inverse": 1 / ROOT_OF_TWO,
        "one": np.float32(1),
        "half": np.float32(0.5),
    }
    nodes = []
    if form == "product":
        nodes.append(node("Mul", ["inverse", "x"], ["scaled"], name="scale"))
    else:
        if form == "root":
            nodes.append(node("Sqrt", ["two"], ["root_of_two"], name="sqrt"))
        divisor = "root_of_two" if form == "root" else "root"
        nodes.append(node("Div", ["x", divisor], ["scaled"], name="div"))
    nodes.append(node("Erf", ["scaled"], ["erf"], name="erf"))
    nodes.append(node("Add", ["erf", "one"], ["plus"], name="plus"))
    if form == "half-x":
        nodes.append(node("Mul", ["x", "half"], ["halved"], name="halve"))
        nodes.append(node("Mul", ["halved", "plus"], ["y"], name="product"))
    elif form == "half-last":
        nodes.append(node("Mul", ["x", "plus"], ["product"], name="product"))
        nodes.append(node("Mul", ["product", "half"], ["y"], name="halve"))
    else:
        nodes.append(node("Mul", ["half", "plus"], ["halved"], name="halve"))
        nodes.append(node("Mul", ["x", "halved"], ["y"], name="product"))
    outputs = {"y": [2, 8], **({watched: [2, 8]} if watched else {})}
    used = {name for made in nodes for name in made.input}
    kept = {name: value for name, value in constants.items() if name in used}
    return build(nodes, {"x": [2, 8]}, outputs, kept, opset=opset)


def make_layer_norm(form="Pow", *, axis=-1, twice=False, epsilon=1e-5, opset=17):
    """A layer norm as exporters write it below opset 17."""
    square = ["d", "two"] if form == "Pow" else ["d", "d"]
    nodes = [
        node("ReduceMean", ["x"], ["mean"], name="mean", axes=[axis]),
        node("Sub", ["x", "mean"], ["d"], name="difference"),
        node(form, square, ["squared"], name="square"),
        node("ReduceMean", ["squared"], ["variance"], name="variance", axes=[axis]),
        node("Add", ["variance", "epsilon"], ["safe"], name="safe"),
        node("Sqrt", ["safe"], ["deviation"], name="deviation"),
        node("Div", ["e" if twice else "d", "deviation"], ["normal"], name="divide"),
        node("Mul", ["normal", "scale"], ["scaled"], name="scale"),
        node("Add", ["scaled", "bias"], ["y"], name="shift"),
    ]
    if twice:
        nodes.insert(2, node("Sub", ["x", "mean"], ["e"], name="difference_too"))
    constants = {
        "epsilon": np.float32(epsilon),
        "scale": normal(8),
        "bias": normal(8, seed=1),
        **({"two": np.float32(2)} if form == "Pow" else {}),
    }
    shape = {"x": [2, 8, 8]}
    return build(nodes, shape, {"y": [2, 8, 8]}, constants, opset=opset)


def make_l2_norm(*, axis=-1, floor=1e-12, keepdims=1, opset=17):
    """A division by the L2 norm, as exporters write it."""
    nodes = [
        node("ReduceL2", ["x"], ["norm"], name="norm", axes=[axis], keepdims=keepdims),
        node("Clip", ["norm", "floor"], ["safe"], name="clip"),
        node("Expand", ["safe", "shape"], ["wide"], name="expand"),
        node("Div", ["x", "wide"], ["y"], name="divide"),
    ]
    constants = {"floor": np.float32(floor), "shape": np.array([2, 8, 8])}
    return build(nodes, {"x": [2, 8, 8]}, {"y": [2, 8, 8]}, constants, opset=opset)


def make_space_to_depth(block=2, order=(0, 2, 1, 3, 4)):
    """A space-to-depth by four Reshape and three Transpose nodes."""
    rows, columns = 8 // block, 4 // block
    shapes = [
        [1, 3, rows, block, columns, block],
        [1, 3, rows * columns, block * block],
        [1, 3, block * block, rows, columns],
        [1, 3 * block * block, rows, columns],
    ]
    orders = [[0, 1, 2, 4, 3, 5], [0, 1, 3, 2], list(order)]
    nodes, last = [], "x"
    for index in range(len(shapes)):
        target = "y" if index == 3 else f"r{index}"
        nodes.append(node("Reshape", [last, f"shape{index}"], [target], name=f"reshape{index}"))
        if index < 3:
            last = f"t{index}"
            nodes.append(
                node("Transpose", [target], [last], name=f"transpose{index}", perm=orders[index])
            )
    constants = {f"shape{index}": np.array(shape) for index, shape in enumerate(shapes)}
    return build(nodes, {"x": [1, 3, 8, 4]}, {"y": shapes[3]}, constants)


def fused_by_both(module, name, model):
    """Return what ours and the peer's fusion of this name say and make of a model."""
    results = []
    for package, models in zip(both(module), both("onnx_model"), strict=True):
        copy = onnx.shape_inference.infer_shapes(model)
        wrapper = models.ONNXModel(copy)
        changed = getattr(package, name)(wrapper).apply()
        results.append((changed, wrapper.model))
    return results


def content(model):
    """Return nodes, constants, inputs and outputs of a model, without order where it is free."""
    graph = model.graph
    return (
        sorted(str(_without_defaults(n)) for n in graph.node),
        {t.name: onnx.numpy_helper.to_array(t).tolist() for t in graph.initializer},
        [str(v) for v in (*graph.input, *graph.output)],
        {opset.domain: opset.version for opset in model.opset_import if opset.domain != ""},
    )


def _without_defaults(made):
    """Return a node without attributes that say what holds anyway: the runtime adds some."""
    copy = onnx.NodeProto.FromString(made.SerializeToString())
    if onnx.defs.has(copy.op_type, copy.domain):
        known = onnx.defs.get_schema(copy.op_type, copy.domain).attributes
        for attribute in made.attribute:
            if attribute.name in known and attribute == known[attribute.name].default_value:
                copy.attribute.remove(attribute)
    return copy
