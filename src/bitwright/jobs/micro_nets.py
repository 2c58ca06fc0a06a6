"""Small nets that make ONNX Runtime run each of its kernels, to measure what they cost."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnx_ir as ir

from bitwright.decide.ops.integer_kernels import is_faster_dense
from bitwright.decide.placement.convolutions import channel_ties
from bitwright.decide.placement.kernels import (
    dequantize_work,
    float_work,
    integer_work,
    quantize_work,
)
from bitwright.support.array_types import Array
from bitwright.targets.costs import Work

_HEAD = '<ir_version: 9, opset_import: ["" : {}]> net'
_SCALE = 0.05
_PART = "__"
"""Stands between the name of a node and that of a part of it."""

_SIZES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

Shape = tuple[int, ...]
Form = Literal["float", "integers", "borders"]
"""What is computed in integers: nothing, all nodes, or the node b alone."""

_FLOAT: tuple[Form, ...] = ("float",)
_INTEGERS: tuple[Form, ...] = ("integers",)
_BOTH: tuple[Form, ...] = ("float", "integers")


@dataclass(frozen=True, slots=True)
class MicroNet:
    """A net, and what the runtime has to do for its nodes."""

    name: str
    model: ir.Model
    works: Mapping[str, Work]
    """Node -> its kernel and work; a node's parts, such as `b__gate`, count as the node."""
    inputs: Mapping[str, Array] = field(repr=False)

    def owner_of(self, node: str) -> str | None:
        """Return the node that is measured with what the runtime ran under this name."""
        return next((name for name in (node, node.partition(_PART)[0]) if name in self.works), None)


@dataclass(frozen=True, slots=True)
class _Net:
    """A net as it is written down; nodes have the names of their results."""

    body: str
    tensors: Mapping[str, Shape]
    """Inputs, named x.., and weights."""
    forms: tuple[Form, ...] = _BOTH
    integers: str = ""
    """The body in integers, where their form is another one."""
    opset: int = 18


def micro_nets() -> Iterator[MicroNet]:
    """Yield the nets whose times give a cost table, each in float or in integers."""
    for nets in (_convolutions(), _images(), _matrices(), _elements()):
        for net in nets:
            for form in net.forms:
                yield _write(net, form)


def chain_of(length: int) -> MicroNet:
    """Return a net of so many nodes that take hardly any time."""
    names = ["x", *(f"n{index}" for index in range(1, length)), "y"]
    steps = zip(names, names[1:], ["Neg", "Abs"] * length, strict=False)
    body = " ".join(f"{result} = {op}({source})" for source, result, op in steps)
    return _write(_Net(body, {"x": (1, 8)}), "float")


def _write(net: _Net, form: Form) -> MicroNet:
    shaped = onnx.shape_inference.infer_shapes(_parse(net.body, net), strict_mode=True)
    works: dict[str, Work] = {}
    graph = ir.from_proto(shaped).graph
    ties = channel_ties(graph)
    for node in graph:
        in_integers = form == "integers" or (form == "borders" and node.name == "b")
        work = integer_work(node, ties) if in_integers else float_work(node)
        if work is not None and node.name is not None and node.op_type != "Constant":
            works[node.name] = work
        if form == "borders" and node.name == "b" and node.inputs[0] is not None:
            works[f"{node.inputs[0].name}_Q"] = quantize_work(node.inputs[0])
            works["b_DQ"] = dequantize_work(node.outputs[0])
    model = _parse((form == "integers" and net.integers) or net.body, net)
    if form != "float":
        model = _with_pairs(model, None if form == "integers" else "b")
    rng = np.random.default_rng(0)
    inputs: dict[str, Array] = {}
    for value in model.graph.input:
        is_float = value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
        array = rng.standard_normal(net.tensors[value.name], np.float32)
        inputs[value.name] = array if is_float else (64 * array + 128).astype(np.uint8)
    sizes = " ".join(f"{name}{list(shape)}" for name, shape in net.tensors.items())
    return MicroNet(f"{form}: {net.body} {sizes}", ir.from_proto(model), works, inputs)


def _parse(body: str, net: _Net) -> onnx.ModelProto:
    """Read a body in ONNX's text format; its weights are random."""
    tensors, head = net.tensors, _HEAD.format(net.opset)
    read = {name for name in tensors if re.search(rf"\b{name}\b", body)}
    given = ", ".join(f"float{list(tensors[x])} {x}" for x in sorted(read) if x[0] == "x")
    model = onnx.parser.parse_model(f"{head} ({given}) => (float y) {{ {body} }}")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    rng = np.random.default_rng(0)
    for name in sorted(name for name in read if name[0] != "x"):
        # Scaled so that values neither grow nor vanish from node to node.
        shape = tensors[name]
        array = rng.standard_normal(shape, np.float32) / math.sqrt(math.prod(shape[1:]))
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    for node in model.graph.node:
        node.name = node.output[0]
    return model


def _with_pairs(model: onnx.ModelProto, only: str | None) -> onnx.ModelProto:
    """Return a model with Q/DQ pairs around a node; of all nodes, it takes and gives bytes.

    All pairs have one scale, which no kernel's time depends on.
    """
    graph = onnx.GraphProto.FromString(model.graph.SerializeToString())
    weights = {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}
    stored: dict[str, Any] = {"s": np.float32(_SCALE), "z": np.uint8(128), "sz": np.int8(0)}
    wanted = [n for n in graph.node if n.op_type != "Constant" and only in (None, n.name)]
    inputs = {value.name for value in graph.input} if only is None else set()
    paired = inputs | {name for node in wanted for name in (*node.input[:1], node.name)}
    paired -= weights.keys()
    nodes: list[onnx.NodeProto] = []

    def write(op: str, source: str, result: str, zero: str = "z") -> None:
        nodes.append(onnx.helper.make_node(op, [source, "s", zero], [result], name=result))

    for name in sorted(inputs):
        write("DequantizeLinear", name, f"{name}_DQ")
    for node in graph.node:
        for index, name in enumerate(node.input):
            if node in wanted and name in weights:
                # A constant addend has the type of the other one.
                kind, zero = (np.uint8, "z") if node.op_type in ("Add", "Mul") else (np.int8, "sz")
                limits = np.clip(weights[name] / _SCALE, 0 if zero == "z" else -127, 127)
                stored[f"{name}_Q"] = limits.astype(kind)
                write("DequantizeLinear", f"{name}_Q", f"{node.name}_{name}", zero)
                node.input[index] = f"{node.name}_{name}"
            elif name in paired:
                node.input[index] = f"{name}_DQ"
        nodes.append(node)
        if node.name in paired:
            write("QuantizeLinear", node.name, f"{node.name}_Q")
            write("DequantizeLinear", f"{node.name}_Q", f"{node.name}_DQ")
    read = {name for node in nodes for name in node.input}
    last = graph.output[0].name
    if last in paired:
        nodes = [node for node in nodes if node.name != f"{last}_DQ"]
        graph.output[0].name = f"{last}_Q"
    for value in (*graph.input, *graph.output) if only is None else ():
        value.type.tensor_type.elem_type = onnx.TensorProto.UINT8
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    kept = {**weights, **stored}
    graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(kept[name]), name) for name in kept if name in read
    )
    return onnx.helper.make_model(
        graph, opset_imports=model.opset_import, ir_version=model.ir_version
    )


# The nets. An image has 1x1 convolutions on both sides, so that it lies as in a network.


def _image(step: str, channels: int, size: int, **options: Any) -> _Net:
    """Return conv 1x1, a step from a to b, conv 1x1; `results` are the channels of b."""
    results = options.pop("results", channels)
    shapes = options.pop("weights", {})
    ends = {"u": (channels, 16, 1, 1), "v": (16, results, 1, 1)}
    tensors = {"x": (1, 16, size, size), **ends, **shapes}
    around = "a = Conv(x, u) {} y = Conv(b, v)"
    other = options.pop("integers", "")
    integers = around.format(other) if other else ""
    return _Net(around.format(step), tensors, integers=integers, **options)


def _convolution(
    given: tuple[int, ...], forms: tuple[Form, ...] = _BOTH, *, alone: bool = False
) -> _Net:
    channels, results, window, group, size, stride = given
    edges = f"pads = [{', '.join([str(window // 2)] * 4)}], strides = [{stride}, {stride}]"
    kernel = (window, window)
    weights = {"w": (results, channels // group, *kernel), "k": (results, channels, *kernel)}
    if alone:  # between others its channels would be padded
        shapes = {"x": (1, channels, size, size), **weights}
        return _Net(f"y = Conv<{edges}, group = {group}>(x, w)", shapes, _INTEGERS)
    dense = f"b = Conv<{edges}>(a, k)" if is_faster_dense(group, channels, results) else ""
    step = f"b = Conv<{edges}, group = {group}>(a, w)"
    options = {"results": results, "weights": weights, "forms": forms, "integers": dense}
    return _image(step, channels, size, **options)


def _convolutions() -> Iterator[_Net]:
    for c, d, size in _SIZES["pointwise"]:
        yield _convolution((c, d, 1, 1, size, 1))
        yield _convolution((d, c, 1, 1, size, 1))
    for c, d in _SIZES["few_channels"]:
        yield _convolution((c, d, 1, 1, 1, 1), _FLOAT)
        yield _convolution((c, d, 1, 1, 1, 1), alone=True)
    for given in _SIZES["windows"]:
        yield _convolution(given)
    for c, window, size, stride in _SIZES["depthwise"]:
        yield _convolution((c, c, window, c, size, stride))
    for c, window, size in _SIZES["depthwise_alone"]:
        yield _convolution((c, c, window, c, size, 1), alone=True)
    for forms, key in ((_BOTH, ""), (_FLOAT, "_in_float"), (_INTEGERS, "_in_integers")):
        for c, group, size in _SIZES[f"grouped{key}"]:
            yield _convolution((c, c, 3, group, size, 1), forms)
    for c, d, window, size in _SIZES["columns"]:
        yield _convolution((c, d, window, 1, size, 1), _FLOAT)
        yield _convolution((c, d, window, 1, size, 1), alone=True)
    for c, length in _SIZES["lines"]:
        line: dict[str, Shape] = {"x": (1, c, length), "w": (c, c, 3)}
        yield _Net("y = Conv<pads = [1, 1]>(x, w)", line, _FLOAT)
    for d, window, size in _SIZES["first"]:
        pads = ", ".join([str(window // 2)] * 4)
        body = f"b = Conv<pads = [{pads}], strides = [2, 2]>(x, w) y = Conv(b, v)"
        shapes = {"x": (1, 3, size, size), "w": (d, 3, window, window), "v": (32, d, 1, 1)}
        yield _Net(body, shapes)
    for c, size in _SIZES["transposed"]:
        step = "b = ConvTranspose<strides = [2, 2]>(a, w)"
        shapes = {"w": (c, c // 2, 2, 2)}
        yield _image(step, c, size, results=c // 2, weights=shapes, forms=_FLOAT)


def _resize(source: str, result: str, mode: str) -> str:
    kind = f'mode = "{mode}", nearest_mode = "floor", coordinate_transformation_mode = "asymmetric"'
    scales = "r = Constant<value_floats = [1.0, 1.0, 2.0, 2.0]>()"
    return f"{scales} {result} = Resize<{kind}>({source}, , r)"


def _images() -> Iterator[_Net]:
    pool = "Pool<kernel_shape = [{0}, {0}], strides = [{1}, {1}]>"
    for c, size in (*_SIZES["images"], *_SIZES["odd_images"]):
        for window, step in ((2, 2), (3, 1)):
            kind = pool.format(window, step)
            yield _image(f"b = Max{kind}(a)", c, size)
            yield _image(f"b = Average{kind}(a)", c, size, forms=_FLOAT)
            if c % 16:
                yield _image(f"b = Average{kind}(a)", c, size, forms=_FLOAT, opset=19)
        yield _image("b = GlobalAveragePool(a)", c, size)
        if c % 16 == 0:
            padded = "AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>"
            yield _image(f"b = {padded}(a)", c, size, forms=_INTEGERS)
        for mode in ("nearest", "linear"):
            yield _image(_resize("a", "b", mode), c, size, forms=_FLOAT)
        yield _image(_resize("a", "b", "nearest"), c, size, forms=_INTEGERS)
        swish, weights = "b__gate = Add(a, t) b = Mul(a, b__gate)", {"t": (1,)}
        given: dict[str, Any] = {"forms": _INTEGERS, "weights": weights}
        yield _image("b = HardSwish(a)", c, size, integers=swish, **given)
        yield _image("b = HardSigmoid(a)", c, size, integers="b = Add(a, t)", **given)
        yield _image("b = Conv(a, w)", c, size, forms=("borders",), weights={"w": (c, c, 1, 1)})
    for c, size in _SIZES["large_images"]:
        yield _image(f"b = Max{pool.format(3, 2)}(a)", c, size)
        yield _image("b = GlobalAveragePool(a)", c, size)
        yield _image("d = Mul(a, a) b = Add(d, a)", c, size, forms=_FLOAT)
    for c, size in _SIZES["odd_images"][:2]:
        yield _Net(f"y = Max{pool.format(2, 2)}(x)", {"x": (1, c, size, size)})
    for shape in _SIZES["plain_images"]:
        tensors = {"x": shape, "x_scale": (*shape[:2], 1, 1)}
        yield _Net("y = Mul(x, x_scale)", tensors, _FLOAT)
        yield _Net("y = Transpose<perm = [0, 2, 3, 1]>(x)", tensors)
        yield _Net("y = Softmax<axis = 1>(x)", tensors)
        yield _Net("r = Constant<value_ints = [1]>() y = ReduceMean(x, r)", tensors, _FLOAT)
        for mode in ("nearest", "linear"):
            yield _Net(_resize("x", "y", mode), tensors, _FLOAT)


def _matrices() -> Iterator[_Net]:
    for rows in _SIZES["rows"]:
        for k, n in _SIZES["weights"]:
            yield _Net("y = MatMul(x, w)", {"x": (rows, k), "w": (k, n)})
    for heads, rows, k in _SIZES["heads"]:
        left, right = (1, heads, rows, k), (1, heads, k, rows)
        yield _Net("y = MatMul(x, x2)", {"x": left, "x2": right})
        yield _Net("y = MatMul(x, x2)", {"x": right, "x2": left})
    for length, hidden in _SIZES["recurrent"]:
        shapes = {
            "x": (length, 1, hidden),
            "w": (1, 4 * hidden, hidden),
            "r": (1, 4 * hidden, hidden),
        }
        yield _Net(f"y = LSTM<hidden_size = {hidden}>(x, w, r)", shapes, _FLOAT)
    for rows, k in _SIZES["borders"]:
        body = "a = Neg(x) b = MatMul(a, w) y = Neg(b)"
        yield _Net(body, {"x": (rows, k), "w": (k, k)}, ("borders",))


def _elements() -> Iterator[_Net]:
    """Yield nets of one operator whose layout does not matter."""
    norm = "y = LayerNormalization(x, g)"
    for rows, width in _SIZES["elements"]:
        tensors = {"x": (1, rows, width), "x2": (1, rows, width), "g": (width,)}
        for op in ("Add", "Mul"):
            yield _Net(f"y = {op}(x, x2)", tensors)
        for op in ("Relu", "HardSigmoid", "Erf", "Tanh", "Exp"):
            yield _Net(f"y = {op}(x)", tensors, _FLOAT)
        yield _Net("y = Sigmoid(x)", tensors)
        yield _Net("y = Gelu(x)", tensors, _FLOAT, opset=20)
        yield _Net("y = LeakyRelu(x)", tensors, _INTEGERS)
        yield _Net(norm, tensors, _FLOAT)
        yield _Net("y = Softmax<axis = -1>(x)", tensors)
        yield _Net("r = Constant<value_ints = [-1]>() y = ReduceMean(x, r)", tensors, _FLOAT)
        yield _Net("y = Concat<axis = -1>(x, x2)", tensors)
        yield _Net("y = Transpose<perm = [0, 2, 1]>(x)", tensors)
        flat = (
            f"r = Constant<value_ints = [{rows * width}]>() a = Neg(x) b = Reshape(a, r) y = Neg(b)"
        )
        yield _Net(flat, tensors, _FLOAT)
        ends = f"r = Constant<value_ints = [0]>() q = Constant<value_ints = [{width // 2}]>() "
        yield _Net(f"{ends} t = Constant<value_ints = [-1]>() y = Slice(x, r, q, t)", tensors)
        indices = f"r = Constant<value_ints = {list(range(0, rows, 2))}>() "
        yield _Net(f"{indices} y = Gather<axis = 1>(x, r)", tensors)
