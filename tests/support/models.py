"""Small float models, data for them, and how to run and compare what was made of them."""

from __future__ import annotations

import contextlib
import math
from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

FLOAT, FLOAT16, INT64, BOOL = (
    TensorProto.FLOAT,
    TensorProto.FLOAT16,
    TensorProto.INT64,
    TensorProto.BOOL,
)
FLOAT32_MIN = float(np.finfo(np.float32).min)

node = helper.make_node


def info(name, shape=None, dtype=FLOAT):
    return helper.make_tensor_value_info(name, dtype, shape)


def tensors(constants):
    return [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]


def build(nodes, inputs, outputs, constants=None, *, opset=17, ir_version=8, domains=(), **extra):
    """Return a model; inputs and outputs are `info`s, or a dict of name to shape (float)."""
    inputs, outputs = (
        [info(name, shape) for name, shape in side.items()] if isinstance(side, dict) else side
        for side in (inputs, outputs)
    )
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors(constants or {}))
    imports = [helper.make_opsetid("", opset)]
    imports += [helper.make_opsetid(domain, 1) for domain in domains]
    return helper.make_model(graph, opset_imports=imports, ir_version=ir_version, **extra)


def normal(*shape, seed=0, size=1.0, dtype=np.float32):
    return (np.random.default_rng(seed).standard_normal(shape) * size).astype(dtype)


def weight(*shape, seed=0):
    """Weights that keep the size of what goes through them."""
    fan_in = math.prod(shape[1:]) if len(shape) > 2 else shape[0]
    return normal(*shape, seed=seed, size=1 / math.sqrt(max(fan_in, 1)))


# Models ---------------------------------------------------------------------------------------


def make_cnn(*, channels=8, size=12, batch=1, opset=17, **options):
    """Conv, Relu, MaxPool, a residual Add, an average and a Gemm: what image models are made of."""
    c = channels
    constants = {
        "w1": weight(c, 3, 3, 3, seed=1),
        "b1": normal(c, seed=2, size=0.1),
        "w2": weight(c, c, 3, 3, seed=3),
        "b2": normal(c, seed=4, size=0.1),
        "w3": weight(c, 10, seed=5),
        "b3": normal(10, seed=6, size=0.1),
    }
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c1"], name="conv1", pads=[1, 1, 1, 1]),
        node("Relu", ["c1"], ["r1"], name="relu1"),
        node("MaxPool", ["r1"], ["p1"], name="pool1", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["p1", "w2", "b2"], ["c2"], name="conv2", pads=[1, 1, 1, 1]),
        node("Add", ["c2", "p1"], ["a"], name="residual"),
        node("Relu", ["a"], ["r2"], name="relu2"),
        node("GlobalAveragePool", ["r2"], ["g"], name="average"),
        node("Flatten", ["g"], ["f"], name="flatten"),
        node("Gemm", ["f", "w3", "b3"], ["y"], name="fc"),
    ]
    return build(
        nodes, {"x": [batch, 3, size, size]}, {"y": [batch, 10]}, constants, opset=opset, **options
    )


def make_gate(random):
    """A convolution whose values a hard-sigmoid behind it mostly does not tell apart."""
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        node("HardSigmoid", ["c"], ["y"], name="gate", alpha=0.2, beta=0.5),
    ]
    shape = [1, 4, 8, 8]
    weights = random.normal(0, 8, (4, 4, 3, 3)).astype(np.float32)
    return build(nodes, {"x": shape}, {"y": shape}, {"w": weights})


def make_transformer(*, width=16, length=6, heads=2, opset=17, mask=None, **options):
    """One encoder block: attention with an optional additive mask, two norms, a small MLP.

    `mask` is an array that is added to the scores, or the name of an input that is.
    """
    w, n, d = width, length, width // heads
    constants = {
        **{f"w_{p}": weight(w, w, seed=i) for i, p in enumerate("qkvo")},
        **{f"b_{p}": normal(w, seed=10 + i, size=0.1) for i, p in enumerate("qkvo")},
        "w_up": weight(w, 2 * w, seed=20),
        "b_up": normal(2 * w, seed=21, size=0.1),
        "w_down": weight(2 * w, w, seed=22),
        "b_down": normal(w, seed=23, size=0.1),
        **{f"norm{i}_scale": 1 + normal(w, seed=30 + i, size=0.1) for i in (1, 2)},
        **{f"norm{i}_bias": normal(w, seed=40 + i, size=0.1) for i in (1, 2)},
        "split_heads": np.array([1, n, heads, d]),
        "join_heads": np.array([1, n, w]),
        "root": np.array(1 / math.sqrt(d), np.float32),
    }
    inputs = {"x": [1, n, w]}
    nodes = []
    for part, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes += [
            node("MatMul", ["x", f"w_{part}"], [f"{part}_m"], name=f"{part}_matmul"),
            node("Add", [f"{part}_m", f"b_{part}"], [f"{part}_a"], name=f"{part}_bias"),
            node("Reshape", [f"{part}_a", "split_heads"], [f"{part}_r"], name=f"{part}_split"),
            node("Transpose", [f"{part}_r"], [part], name=f"{part}_turn", perm=order),
        ]
    nodes += [
        node("MatMul", ["q", "k"], ["raw"], name="scores"),
        node("Mul", ["raw", "root"], ["scaled"], name="scale"),
    ]
    scores = "scaled"
    if mask is not None:
        if isinstance(mask, str):
            inputs[mask] = [1, 1, 1, n]
            added = mask
        else:
            constants["mask"] = np.asarray(mask, np.float32)
            added = "mask"
        nodes.append(node("Add", [scores, added], ["masked"], name="masking"))
        scores = "masked"
    nodes += [
        node("Softmax", [scores], ["p"], name="softmax", axis=-1),
        node("MatMul", ["p", "v"], ["context"], name="context_matmul"),
        node("Transpose", ["context"], ["context_t"], name="context_turn", perm=[0, 2, 1, 3]),
        node("Reshape", ["context_t", "join_heads"], ["joined"], name="join"),
        node("MatMul", ["joined", "w_o"], ["o_m"], name="o_matmul"),
        node("Add", ["o_m", "b_o"], ["o_a"], name="o_bias"),
        node("Add", ["o_a", "x"], ["sum1"], name="residual1"),
        node("LayerNormalization", ["sum1", "norm1_scale", "norm1_bias"], ["n1"], name="norm1"),
        node("MatMul", ["n1", "w_up"], ["up_m"], name="up_matmul"),
        node("Add", ["up_m", "b_up"], ["up_a"], name="up_bias"),
        node("Relu", ["up_a"], ["up"], name="up_relu"),
        node("MatMul", ["up", "w_down"], ["down_m"], name="down_matmul"),
        node("Add", ["down_m", "b_down"], ["down_a"], name="down_bias"),
        node("Add", ["down_a", "n1"], ["sum2"], name="residual2"),
        node("LayerNormalization", ["sum2", "norm2_scale", "norm2_bias"], ["y"], name="norm2"),
    ]
    return build(nodes, inputs, {"y": [1, n, w]}, constants, opset=opset, **options)


def make_mlp(*, width=16, opset=17, **options):
    """MatMul, Add, Relu, MatMul: the smallest model with weights."""
    constants = {
        "w1": weight(width, width, seed=1),
        "b1": normal(width, seed=2, size=0.1),
        "w2": weight(width, 4, seed=3),
    }
    nodes = [
        node("MatMul", ["x", "w1"], ["h"], name="first"),
        node("Add", ["h", "b1"], ["a"], name="bias"),
        node("Relu", ["a"], ["r"], name="act"),
        node("MatMul", ["r", "w2"], ["y"], name="second"),
    ]
    return build(nodes, {"x": ["n", width]}, {"y": ["n", 4]}, constants, opset=opset, **options)


def retype(model, dtype, onnx_type):
    """Turn all float32 of a model into another type."""
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            array = numpy_helper.to_array(tensor).astype(dtype)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = onnx_type
    return model


def make_branching_products(rows, **options):
    """Two products in the branches of an If: one reads a weight from outside, `w`, one its own."""
    then = helper.make_graph(
        [node("MatMul", ["x", "w"], ["t"], name="outside")], "then", [], [info("t", [2, 8])]
    )
    otherwise = helper.make_graph(
        [node("MatMul", ["x", "v"], ["e"], name="inside")],
        "else",
        [],
        [info("e", [2, 8])],
        tensors({"v": weight(rows, 8, seed=2)}),
    )
    return build(
        [node("If", ["c"], ["y"], name="if", then_branch=then, else_branch=otherwise)],
        [info("x", [2, rows]), info("c", [], BOOL)],
        [info("y", [2, 8])],
        {"w": weight(rows, 8, seed=1)},
        **options,
    )


# Data -----------------------------------------------------------------------------------------


def make_samples(model, count=8, *, seed=0, open_size=4):
    """Return normal samples for the float inputs of a model."""
    rng = np.random.default_rng(seed)
    initialized = {tensor.name for tensor in model.graph.initializer}
    samples = []
    for _ in range(count):
        sample = {}
        for value in model.graph.input:
            if value.name in initialized:
                continue
            dims = [d.dim_value or open_size for d in value.type.tensor_type.shape.dim]
            dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            sample[value.name] = rng.standard_normal(dims).astype(dtype)
        samples.append(sample)
    return samples


def random_samples(model, count, seed):
    """Return data of any type for a model: numbers, tokens below 20, and masks of ones."""
    rng = np.random.default_rng(seed)
    return [{v.name: _random_input(v, rng) for v in model.graph.input} for _ in range(count)]


def _random_input(value, rng):
    shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
    dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    if value.name == "mask":
        return np.ones(shape, dtype)
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    if dtype.kind == "b":
        return np.array(rng.random() > 0.5)
    return rng.integers(0, 20, shape).astype(dtype)


class Reader:
    """A data reader as ONNX Runtime knows them, which counts how often it was asked."""

    def __init__(self, samples):
        self._left = list(samples)
        self.asked = 0

    def get_next(self):
        self.asked += 1
        return self._left.pop(0) if self._left else None

    def rewind(self):
        raise AssertionError("nobody rewinds a reader")


# Running and comparing ------------------------------------------------------------------------


def as_proto(model):
    """Return a protobuf model from one, from a path, a Result or an onnx_ir.Model."""
    if isinstance(model, onnx.ModelProto):
        return model
    if isinstance(model, ir.Model):
        return ir.to_proto(model)
    if hasattr(model, "to_proto"):
        return model.to_proto()
    return onnx.load(model)


def run(model, feeds, outputs=None, *, config=None):
    """Run a model as users do: ONNX Runtime at its default optimization level."""
    options = onnxruntime.SessionOptions()
    for key, value in (config or {}).items():
        options.add_session_config_entry(key, value)
    return _run(model, feeds, outputs, options)


def run_plain(model, feeds):
    """Run a model without any optimization: what it says is what is computed."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return _run(model, feeds, None, options)


def _run(model, feeds, outputs, options):
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    data = as_proto(model).SerializeToString()
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    many = feeds if isinstance(feeds, list) else [feeds]
    results = [session.run(outputs, sample) for sample in many]
    return results if isinstance(feeds, list) else results[0]


def sqnr(expected, actual):
    """Signal to quantization noise in dB, over everything in two (lists of) arrays."""
    if isinstance(expected, list):
        pairs = list(zip(expected, actual, strict=True))
        flat = [sums for a, b in pairs for sums in _flat_sums(a, b)]
    else:
        flat = _flat_sums(expected, actual)
    signal, noise = (sum(column) for column in zip(*flat, strict=True))
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf


def _flat_sums(a, b):
    if isinstance(a, list):
        return [sums for one, two in zip(a, b, strict=True) for sums in _flat_sums(one, two)]
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    assert a.shape == b.shape
    return [(float((a * a).sum()), float(((a - b) ** 2).sum()))]


def quality(float_model, quantized, samples):
    """SQNR of the quantized model's outputs against the float one's, both in ONNX Runtime."""
    return sqnr(run(as_proto(float_model), samples), run(quantized, samples))


# Looking into models --------------------------------------------------------------------------


def ops(model):
    return Counter(item.op_type for item in as_proto(model).graph.node)


def nodes_by_name(model):
    return {item.name: item for item in as_proto(model).graph.node}


def constants_of(model):
    """Name -> array of every initializer, 4-bit and float8 included."""
    return {
        tensor.name: numpy_helper.to_array(tensor) for tensor in as_proto(model).graph.initializer
    }


def element_types(model):
    """Name -> element type of every initializer."""
    return {tensor.name: tensor.data_type for tensor in as_proto(model).graph.initializer}


def producer_of(model, name):
    """Return the node that writes a tensor, or None."""
    return next((item for item in as_proto(model).graph.node if name in item.output), None)


def parameters_of(model, quantizer):
    """Return (scale, zero point) of a QuantizeLinear or DequantizeLinear node."""
    constants = constants_of(model)
    return constants[quantizer.input[1]], constants[quantizer.input[2]]


def dequantizer_before(model, name, index):
    """Return the DequantizeLinear that feeds an input of the node of this name, or None."""
    found = producer_of(model, nodes_by_name(model)[name].input[index])
    return found if found is not None and found.op_type == "DequantizeLinear" else None


@contextlib.contextmanager
def unchanged(folder):
    """Prove that a block leaves a folder as it was: the same files with the same bytes."""
    before = _contents(folder)
    yield
    assert _contents(folder) == before


def _contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# Quantizing -----------------------------------------------------------------------------------


def quantize_static_in(folder, model, samples, **options):
    """Quantize through ONNX Runtime's names and return the model that was written."""
    from bitwright.compat.onnxruntime import quantize_static

    path = folder / "quantized.onnx"
    quantize_static(model, path, Reader(samples), **options)
    return onnx.load(path)


def with_batch_norm():
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"], name="norm"),
        node("Mul", ["two", "three"], ["six"], name="constant"),
        node("Mul", ["n", "six"], ["k"], name="scale"),
        node("Identity", ["k"], ["i"], name="idle"),
        node("Sigmoid", ["i"], ["y"], name="last"),
    ]
    constants = {
        "w": weight(4, 3, 3, 3),
        "s": 1 + normal(4, size=0.1),
        "b": normal(4, seed=1),
        "m": normal(4, seed=2),
        "v": 1 + np.abs(normal(4, seed=3)),
        "two": np.float32(2),
        "three": np.float32(3),
    }
    return build(nodes, {"x": ["n", 3, 8, 8]}, {"y": ["n", 4, 8, 8]}, constants)
