"""Random graphs over the schemas of ONNX's operators, each node tried in ONNX Runtime.

Inputs of a node come from what is there, from constants, and, for operators with inputs of their
own kind (shapes, axes, weights), from a maker. A node that the runtime does not run, or that gives
no numbers, is thrown away, so every graph is valid.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

OPSETS = (13, 17, 18, 21)
MAX_ELEMENTS = 1 << 14

# What a small error in makes a large one of, or what gives other numbers each time.
CHAOTIC = frozenset(
    "Exp Pow Div Reciprocal Tan Log Mod Floor Ceil Round Sign ArgMax ArgMin TopK NonZero Unique "
    "Hardmax Equal Less Greater LessOrEqual GreaterOrEqual Not Where Acosh Atanh Acos Asin Sinh "
    "Cosh Sqrt IsNaN IsInf LpNormalization InstanceNormalization LayerNormalization "
    "GroupNormalization MeanVarianceNormalization ReduceLogSum ReduceProd BitShift Cast "
    "ThresholdedRelu Shrink Det CumSum ReduceMin".split()
)
SKIPPED = frozenset(
    "RandomNormal RandomUniform RandomNormalLike RandomUniformLike Multinomial Bernoulli "
    "Dropout Loop Scan If Optional OptionalGetElement OptionalHasElement SequenceMap "
    "QuantizeLinear DequantizeLinear DynamicQuantizeLinear QLinearConv QLinearMatMul "
    "MatMulInteger ConvInteger Constant StringNormalizer TfIdfVectorizer ImageDecoder "
    "RegexFullMatch StringConcat StringSplit".split()
)
Array = np.ndarray[Any, Any]


@dataclass
class Graph:
    """A graph that grows, with the values that its tensors have on one sample."""

    rng: random.Random
    opset: int
    tame: bool
    numbers: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    values: dict[str, Array] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)

    def constant(self, array: Array) -> str:
        """Add a constant, and return its name."""
        name = f"c{len(self.constants)}"
        self.constants[name] = array
        return name

    def weight(self, *shape: int) -> str:
        """Add a weight that keeps the size of what goes through it, and return its name."""
        fan_in = max(1, int(np.prod(shape[1:])))
        return self.constant(self.numbers.normal(size=shape, scale=fan_in**-0.5).astype(np.float32))

    def pick(self, rank: int | None = None) -> str | None:
        """Return the name of a float tensor of this rank, if there is one."""
        fit = [
            name
            for name, value in self.values.items()
            if value.dtype == np.float32 and (rank is None or value.ndim == rank)
        ]
        # Rather what was made last: deep graphs, not wide ones.
        return self.rng.choice(fit[-4:]) if fit else None


def make_size_arithmetic(seed: int) -> onnx.ModelProto:
    """Return a convolution, and what changes its size by numbers computed in float."""
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    weight = numbers.normal(size=(4, 3, 3, 3)).astype(np.float32)
    constants = {"w": weight, "zeros": np.zeros(4, np.int64)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv", pads=[1] * 4),
        helper.make_node("Shape", ["c"], ["shape"], name="shape"),
        helper.make_node("Cast", ["shape"], ["s0"], name="cast", to=onnx.TensorProto.FLOAT),
    ]
    size = "s0"
    for step in range(rng.randrange(1, 4)):
        op, value = rng.choice(
            (("Mul", 1.0), ("Add", 0.0), ("Min", 1e4), ("Max", 1.0), ("Div", 1.0), ("Abs", None))
        )
        inputs = [size]
        if value is not None:
            constants[f"v{step}"] = np.full(4, value, np.float32)
            inputs.append(f"v{step}")
        size = f"s{step + 1}"
        nodes.append(helper.make_node(op, inputs, [size], name=f"size{step}"))
    kind = rng.choice(("Slice", "Expand", "Reshape", "Resize"))
    if kind == "Resize":  # twice as high and wide
        constants["double"] = np.array([1, 1, 2, 2], np.float32)
        nodes.append(helper.make_node("Mul", ["s0", "double"], ["wanted"], name="wanted"))
        nodes.append(helper.make_node("Div", ["wanted", size], ["scales"], name="scales"))
        nodes.append(helper.make_node("Resize", ["c", "", "scales"], ["y"], name="resize"))
    else:
        cast = helper.make_node("Cast", [size], ["end"], name="back", to=onnx.TensorProto.INT64)
        inputs = ["c", "zeros", "end"] if kind == "Slice" else ["c", "end"]
        nodes += [cast, helper.make_node(kind, inputs, ["y"], name="end")]
    graph = helper.make_graph(
        nodes,
        "size_arithmetic",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 3, "h", "w"])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [None] * 4)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def make_unopened(seed: int) -> onnx.ModelProto:
    """Return a random model in half floats, or one of those that were seen to crash a runtime."""
    rng = random.Random(seed)
    if rng.random() < 0.5:
        return _in_half_floats(make_graph(seed))
    size = rng.choice((1, 4, 8, 16))
    weight, kind = np.ones((1, 1, size + rng.randrange(9)), np.float32), onnx.TensorProto.FLOAT
    shapes: list[list[int] | None] = [[1, 1, size], None]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node(rng.choice(("Slice", "Split")), ["c", *"sea"], ["y"], name="cut"),
    ]
    constants = {"s": 0, "e": rng.choice((2, -1)), "a": rng.choice((2, -1))}
    if rng.random() < 0.5:  # half products behind a Transpose
        perm = rng.sample(range(3), 3)
        shape = [rng.randrange(1, 5), rng.randrange(1, 5), size]
        weight = np.ones((shape[perm[2]], 4), np.float16)
        shapes, kind, constants = [shape, None], onnx.TensorProto.FLOAT16, {}
        nodes = [
            helper.make_node("Transpose", ["x"], ["t"], perm=perm, name="turn"),
            helper.make_node("MatMul", ["t", "w"], ["y"], name="product"),
        ]
    places = [numpy_helper.from_array(np.array([n], np.int64), s) for s, n in constants.items()]
    graph = helper.make_graph(
        nodes,
        "unopened",
        [helper.make_tensor_value_info("x", kind, shapes[0])],
        [helper.make_tensor_value_info("y", kind, shapes[1])],
        [numpy_helper.from_array(weight, "w"), *places],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _in_half_floats(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose floats are all half floats, whether its operators take them or not."""
    single, half = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16
    tensors = [*model.graph.initializer, *(a.t for n in model.graph.node for a in n.attribute)]
    for tensor in tensors:
        if tensor.data_type == single:
            array = numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        if value.type.tensor_type.elem_type == single:
            value.type.tensor_type.elem_type = half
    for node in model.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == single:
                attribute.i = half
    return model


def make_graph(seed: int) -> onnx.ModelProto:
    """Return a random model that ONNX Runtime runs."""
    rng = random.Random(seed)
    graph = Graph(rng, rng.choice(OPSETS), rng.random() < 0.6, np.random.default_rng(seed))
    shapes = rng.choice(
        ([(1, 4, 8, 8)], [(2, 6, 16)], [(3, 16)], [(1, 8)], [(1, 4, 8, 8), (1, 4, 8, 8)])
    )
    for index, shape in enumerate(shapes):
        name = f"x{index}"
        graph.inputs.append(name)
        graph.values[name] = graph.numbers.normal(size=shape).astype(np.float32)
    schemas = [
        schema
        for name in sorted(
            {s.name for s in onnx.defs.get_all_schemas() if s.domain == ""} - SKIPPED
        )
        if (schema := _schema(name, graph.opset)) is not None
        and not (graph.tame and name in CHAOTIC)
    ]
    # Products are what is quantized.
    usual = [*sorted(MAKERS), *(4 * ["Conv", "MatMul", "Gemm"])]
    for _ in range(rng.randrange(2, 12)):
        for _ in range(6):
            if rng.random() < 0.6:
                made = MAKERS[name := rng.choice(usual)](graph)
                node = None if made is None else helper.make_node(name, made[0], [""], **made[1])
            else:
                node = _generic(graph, rng.choice(schemas))
            if (
                node is not None
                and not (graph.tame and node.op_type in CHAOTIC)
                and _add(graph, node)
            ):
                break
    return _finish(graph)


def _schema(name: str, opset: int) -> Any:
    try:
        schema = onnx.defs.get_schema(name, opset, "")
    except onnx.defs.SchemaError:
        return None
    return None if schema.deprecated else schema


def _generic(graph: Graph, schema: Any) -> onnx.NodeProto | None:
    """Return a node with inputs of the kinds that its schema names."""
    rng, inputs = graph.rng, []
    option = onnx.defs.OpSchema.FormalParameterOption
    for formal in schema.inputs:
        if formal.option == option.Optional and rng.random() < 0.7:
            inputs.append("")
            continue
        count = rng.randrange(1, 4) if formal.option == option.Variadic else 1
        for _ in range(count):
            name = _input(graph, formal.types)
            if name is None:
                return None
            inputs.append(name)
    attributes: dict[str, Any] = {}
    for name, attribute in schema.attributes.items():
        if attribute.required or rng.random() < 0.3:
            value = _attribute(attribute, rng)
            if value is None:
                if attribute.required:
                    return None
                continue
            attributes[name] = value
    while inputs and not inputs[-1]:
        inputs.pop()
    outputs = [""] * max(1, schema.min_output)
    return helper.make_node(schema.name, inputs, outputs, **attributes)


def _input(graph: Graph, types: set[str]) -> str | None:
    rng = graph.rng
    if "tensor(float)" in types:
        picked = graph.pick()
        if picked is None or rng.random() < 0.3:
            like = rng.choice([*graph.values.values()])
            shape = rng.choice((like.shape, like.shape[-1:], (), (1,), like.shape[::-1]))
            return graph.constant(graph.numbers.normal(size=shape).astype(np.float32))
        return picked
    if "tensor(int64)" in types:
        count = rng.choice(((), (1,), (2,), (4,)))
        return graph.constant(np.asarray(graph.numbers.integers(0, 4, count), np.int64))
    if "tensor(bool)" in types:
        like = rng.choice([*graph.values.values()])
        return graph.constant(graph.numbers.random(like.shape) < 0.5)
    return None


def _attribute(attribute: Any, rng: random.Random) -> Any:
    kinds = onnx.defs.OpSchema.AttrType
    if attribute.type == kinds.INT:
        return rng.choice((0, 1, 1, 2, -1, 3))
    if attribute.type == kinds.INTS:
        return [rng.choice((0, 1, 1, 2, 3)) for _ in range(rng.choice((1, 2, 2, 4)))]
    if attribute.type == kinds.FLOAT:
        return rng.choice((0.1, 0.5, 1.0, 2.0, -1.0))
    if attribute.type == kinds.STRING and attribute.name == "equation":
        return rng.choice(("ij->ji", "ij,jk->ik", "bij->bji", "bhw,bhw->bhw"))
    return None


def _add(graph: Graph, node: onnx.NodeProto) -> bool:
    """Run a node on the values that its inputs have; keep it if it gives numbers."""
    names = [name for name in node.input if name]
    known = {name: graph.values.get(name, graph.constants.get(name)) for name in names}
    outputs = [f"t{len(graph.values)}_{index}" for index in range(len(node.output))]
    del node.output[:]
    node.output.extend(outputs)
    node.name = f"n{len(graph.nodes)}"
    infos = [_info(name, known[name], known[name].shape) for name in dict.fromkeys(names)]
    results = [helper.make_value_info(name, onnx.TypeProto()) for name in outputs]
    try:
        model = _model(graph.opset, [node], infos, results, {})
        found = _session(model).run(None, {name: known[name] for name in dict.fromkeys(names)})
    except Exception:  # noqa: BLE001 (whatever the runtime says: not this node)
        return False
    kept = all(
        isinstance(one, np.ndarray)
        and 0 < one.size <= MAX_ELEMENTS
        and one.dtype.kind in "fib"
        and (one.dtype.kind != "f" or (np.isfinite(one).all() and np.abs(one).max() < 1e4))
        for one in found
    )
    kept = kept and _shapes_agree(model, found)
    # The runtime's integer Softmax of one value is 0, and it makes one of a float node between
    # quantizers, too.
    kept = kept and not (node.op_type == "Softmax" and (found[0] == 1).all())
    if kept:
        graph.nodes.append(node)
        graph.values.update(zip(outputs, found, strict=True))
    return kept


def _shapes_agree(model: onnx.ModelProto, found: list[Array]) -> bool:
    """Whether results have the shapes of the standard: the runtime takes some nodes beyond it."""
    outputs = onnx.shape_inference.infer_shapes(model).graph.output
    for info, array in zip(outputs, found, strict=True):
        told = info.type.tensor_type
        sizes = [d.dim_value if d.HasField("dim_value") else None for d in told.shape.dim]
        if told.HasField("shape") and (
            len(sizes) != array.ndim
            or any(size not in (None, real) for size, real in zip(sizes, array.shape, strict=True))
        ):
            return False
    return True


def _finish(graph: Graph) -> onnx.ModelProto:
    read = {name for node in graph.nodes for name in node.input}
    made = [name for node in graph.nodes for name in node.output]
    ends = [name for name in made if name not in read] or made[-1:] or graph.inputs[:1]
    if not graph.nodes:
        graph.nodes.append(helper.make_node("Relu", graph.inputs[:1], ["y"], name="n0"))
        ends, graph.values["y"] = ["y"], np.maximum(graph.values[graph.inputs[0]], 0)
    inputs = [_info(name, graph.values[name], graph.values[name].shape) for name in graph.inputs]
    bare = [_info(name, graph.values[name], None) for name in ends]
    constants = {name: array for name, array in graph.constants.items() if name in read}
    model = _model(graph.opset, graph.nodes, inputs, bare, constants)
    # A size that only values decide (NonZero, Unique) may change with them, and is not promised.
    told = onnx.shape_inference.infer_shapes(model).graph.output
    outputs = [
        _info(info.name, array := graph.values[info.name], _promised_sizes(info, array))
        for info in told
    ]
    return _model(graph.opset, graph.nodes, inputs, outputs, constants)


def _info(name: str, array: Array, shape: Any) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), shape)


def _promised_sizes(info: onnx.ValueInfoProto, array: Array) -> list[int | None]:
    """Return the sizes of an array, with None for those that shapes alone do not tell."""
    dims = info.type.tensor_type.shape.dim
    known = [dim.HasField("dim_value") for dim in dims] if len(dims) == array.ndim else []
    return [
        size if told else None
        for size, told in zip(array.shape, known or [False] * array.ndim, strict=True)
    ]


def _model(
    opset: int, nodes: Any, inputs: Any, outputs: Any, constants: dict[str, Array]
) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "random", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def _session(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


Made = tuple[list[str], dict[str, Any]] | None


def _conv(graph: Graph) -> Made:
    x, rng = graph.pick(4), graph.rng
    if x is None:
        return None
    channels = graph.values[x].shape[1]
    group = rng.choice([1, 1, channels])
    outputs, kernel = group * rng.choice((1, 2)), rng.choice((1, 2, 3))
    inputs = [x, graph.weight(outputs, channels // group, kernel, kernel)]
    if rng.random() < 0.6:
        inputs.append(graph.weight(outputs))
    strides = [rng.choice((1, 1, 2))] * 2
    return inputs, {"group": group, "pads": [kernel // 2] * 4, "strides": strides}


def _conv_transpose(graph: Graph) -> Made:
    x = graph.pick(4)
    if x is None:
        return None
    return [x, graph.weight(graph.values[x].shape[1], graph.rng.choice((1, 3)), 2, 2)], {
        "strides": [2, 2]
    }


def _matmul(graph: Graph) -> Made:
    x = graph.pick()
    if x is None or graph.values[x].ndim == 0:
        return None
    if graph.rng.random() < 0.2:
        other = graph.pick()
        return None if other is None else ([x, other], {})
    return [x, graph.weight(graph.values[x].shape[-1], graph.rng.choice((1, 4, 16, 32)))], {}


def _gemm(graph: Graph) -> Made:
    x, rng = graph.pick(2), graph.rng
    if x is None:
        return None
    width, outputs, trans = graph.values[x].shape[1], rng.choice((1, 8, 32)), rng.choice((0, 1))
    weight = graph.weight(*((outputs, width) if trans else (width, outputs)))
    bias = [graph.weight(outputs)] if rng.random() < 0.6 else []
    return [x, weight, *bias], {"transB": trans, "alpha": rng.choice((1.0, 1.0, 0.5))}


def _batch_norm(graph: Graph) -> Made:
    x = graph.pick()
    if x is None or graph.values[x].ndim < 2:
        return None
    channels = graph.values[x].shape[1]
    variance = graph.constant((graph.numbers.random(channels) + 0.1).astype(np.float32))
    return [x, *(graph.weight(channels) for _ in range(3)), variance], {}


def _binary(graph: Graph) -> Made:
    x, other = graph.pick(), graph.pick()
    if x is None or other is None:
        return None
    if graph.rng.random() < 0.4:
        other = graph.weight(*graph.values[x].shape[-1:])
    return [x, other], {}


def _unary(graph: Graph) -> Made:
    x = graph.pick()
    return None if x is None else ([x], {})


def _pool(graph: Graph) -> Made:
    x = graph.pick(4)
    return (
        None
        if x is None
        else ([x], {"kernel_shape": [2, 2], "strides": [graph.rng.choice((1, 2))] * 2})
    )


def _concat(graph: Graph) -> Made:
    x = graph.pick()
    if x is None or graph.values[x].ndim == 0:
        return None
    return [x, graph.pick() or x], {"axis": graph.rng.randrange(graph.values[x].ndim)}


def _transpose(graph: Graph) -> Made:
    x = graph.pick()
    if x is None or graph.values[x].ndim == 0:
        return None
    axes = list(range(graph.values[x].ndim))
    graph.rng.shuffle(axes)
    return [x], {"perm": axes}


def _reshape(graph: Graph) -> Made:
    x = graph.pick()
    if x is None:
        return None
    first = graph.values[x].shape[:1] or (1,)
    return [x, graph.constant(np.array([*first, -1], np.int64))], {}


def _clip(graph: Graph) -> Made:
    x = graph.pick()
    ends = [graph.constant(np.float32(end)) for end in (graph.rng.choice((-1.0, 0.0)), 2.0)]
    return None if x is None else ([x, *ends], {})


def _slice(graph: Graph) -> Made:
    x = graph.pick()
    if x is None or graph.values[x].ndim == 0:
        return None
    numbers = (0, graph.rng.choice((1, 2, -1)), graph.values[x].ndim - 1)
    return [x, *(graph.constant(np.array([one], np.int64)) for one in numbers)], {}


def _gather(graph: Graph) -> Made:
    x = graph.pick()
    if x is None or graph.values[x].ndim == 0:
        return None
    return [x, graph.constant(np.array([0, 0], np.int64))], {"axis": 0}


def _pad(graph: Graph) -> Made:
    x = graph.pick()
    if x is None:
        return None
    pads = [graph.rng.choice((0, 0, 1)) for _ in range(2 * graph.values[x].ndim)]
    return [x, graph.constant(np.array(pads, np.int64))], {
        "mode": graph.rng.choice(("constant", "edge"))
    }


def _resize(graph: Graph) -> Made:
    x = graph.pick(4)
    if x is None:
        return None
    scales = graph.constant(np.array([1, 1, 2, 2], np.float32))
    return [x, "", scales], {"mode": graph.rng.choice(("nearest", "linear"))}


def _lstm(graph: Graph) -> Made:
    x = graph.pick(3)
    if x is None:
        return None
    width, hidden = graph.values[x].shape[2], 4
    return [x, graph.weight(1, 4 * hidden, width), graph.weight(1, 4 * hidden, hidden)], {
        "hidden_size": hidden
    }


def _layer_norm(graph: Graph) -> Made:
    x = graph.pick()
    if x is None or graph.values[x].ndim == 0:
        return None
    return [x, graph.weight(*graph.values[x].shape[-1:])], {"axis": -1}


MAKERS: dict[str, Callable[[Graph], Made]] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "BatchNormalization": _batch_norm,
    **dict.fromkeys(("Add", "Mul", "Sub", "Div", "Max"), _binary),
    **dict.fromkeys(
        (
            "Relu",
            "Sigmoid",
            "Tanh",
            "Softmax",
            "Identity",
            "Flatten",
            "Erf",
            "LeakyRelu",
            "HardSwish",
            "GlobalAveragePool",
            "ReduceMean",
            "HardSigmoid",
            "Elu",
            "Softplus",
            "Abs",
            "Squeeze",
        ),
        _unary,
    ),
    "MaxPool": _pool,
    "AveragePool": _pool,
    "Concat": _concat,
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Clip": _clip,
    "Slice": _slice,
    "Gather": _gather,
    "Pad": _pad,
    "Resize": _resize,
    "LSTM": _lstm,
    "LayerNormalization": _layer_norm,
}
