"""Small models of the kinds that conversions to float16 break on, and samples for them."""

import numpy as np
import onnx
from onnx import numpy_helper

_MS = '"": 17, "com.microsoft": 1'


def _weights(model, seed=0):
    """Fill in the initializers that the text declares without values."""
    rng = np.random.default_rng(seed)
    for graph in _graphs(model.graph):
        for node in graph.node:
            node.name = f"{graph.name}_{node.output[0]}"  # converters go by names
        for tensor in graph.initializer:
            if tensor.data_type == onnx.TensorProto.FLOAT and tensor.float_data[:] in ([7], [3e5]):
                scale = 3e5 if tensor.float_data[0] == 3e5 else tensor.dims[0] ** -0.5
                values = (rng.normal(size=tuple(tensor.dims)) * scale).astype(np.float32)
                tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    return model


def _graphs(graph):
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _graphs(attribute.g)


def _case(text, opsets='"": 17', size=1.0):
    return f"<ir_version: 8, opset_import: [{opsets}]>\n{text}", size


CASES = {
    "convolution, batch norm, Clip, Gemm": _case("""
g (float[1,3,8,8] x) => (float[1,10] y)
<float[8,3,3,3] w = {7}, float[8] s = {7}, float[8] b = {7}, float[8] m = {7},
 float[8] v = {1,1,1,1,1,1,1,1}, float low = {0}, float high = {6}, float[8,10] d = {7}> {
    c = Conv <pads = [1,1,1,1]> (x, w)
    n = BatchNormalization (c, s, b, m, v)
    k = Clip (n, low, high)
    p = GlobalAveragePool (k)
    f = Flatten (p)
    y = Gemm (f, d)
}""", '"": 11'),
    "Resize with scales, ConvTranspose": _case("""
g (float[1,4,6,6] x) => (float[1,4,23,23] y)
<float[0] roi = {}, float[4] scales = {1,1,2,2}, float[4,4,3,3] w = {7}> {
    r = Resize <mode = "linear"> (x, roi, scales)
    y = ConvTranspose <strides = [2,2], pads = [1,1,1,1]> (r, w)
}""", '"": 13'),
    "layer norm of 600, mask of -3.4e38": _case("""
g (float[2,4,8] x, float[2,1,4] mask) => (float[2,4,8] y)
<float two = {2}, float eps = {1e-5}, float one = {1}, float low = {-3.4028234663852886e38},
 float[8,8] w = {7}, float scale = {0.05}> {
    m = ReduceMean <axes = [-1]> (x)
    d = Sub (x, m)
    q = Pow (d, two)
    v = ReduceMean <axes = [-1]> (q)
    e = Add (v, eps)
    r = Sqrt (e)
    n = Div (d, r)
    h = MatMul (n, w)
    t = Transpose <perm = [0,2,1]> (h)
    p = MatMul (h, t)
    z = Mul (p, scale)
    i = Sub (one, mask)
    o = Mul (i, low)
    a = Add (z, o)
    s = Softmax <axis = -1> (a)
    y = MatMul (s, h)
}""", '"": 14', 600.0),
    "LayerNormalization, written-out Gelu": _case("""
g (float[2,4,8] x) => (float[2,4,8] y)
<float[8] gain = {7}, float[8] shift = {7}, float[8,8] w = {7}, float root = {1.4142135},
 float one = {1}, float half = {0.5}> {
    n = LayerNormalization (x, gain, shift)
    h = MatMul (n, w)
    d = Div (h, root)
    e = Erf (d)
    a = Add (e, one)
    m = Mul (h, a)
    y = Mul (m, half)
}"""),
    "If with weights from outside": _case("""
g (float[2,8] x) => (float[2,8] y) <float[8,8] w = {7}, float zero = {0}> {
    s = ReduceSum <keepdims = 0> (x)
    c = Greater (s, zero)
    r = If (c) <then_branch = a () => (float[2,8] p) { p = MatMul (x, w) },
                else_branch = b () => (float[2,8] q) { n = Neg (x) q = MatMul (n, w) }>
    y = Relu (r)
}""", '"": 16'),
    "Loop": _case("""
g (float[2,8] x) => (float[2,8] y) <int64 count = {3}, bool go = {1}, float[8,8] w = {7}> {
    y = Loop (count, go, x) <body = b (int64 i, bool c, float[2,8] h) => (bool d, float[2,8] n) {
        d = Identity (c)
        p = MatMul (h, w)
        n = Tanh (p)
    }>
}""", '"": 16'),
    "Scan": _case("""
g (float[1,8] h0, float[5,1,8] x) => (float[1,8] hn, float[5,1,8] y) <float[8,8] w = {7}> {
    hn, y = Scan <num_scan_inputs = 1,
                  body = b (float[1,8] h, float[1,8] t) => (float[1,8] n, float[1,8] o) {
        p = MatMul (h, w)
        a = Add (p, t)
        n = Tanh (a)
        o = Identity (n)
    }> (h0, x)
}""", '"": 11'),
    "TopK, GatherElements, ScatterND, Slice": _case("""
g (float[2,16] x) => (float[2,3] y)
<int64[1] k = {4}, int64[1,1] at = {0}, float[1,4] new = {1,2,3,4}, int64[1] first = {0},
 int64[1] last = {3}, int64[1] axis = {1}, float[16,16] w = {7}> {
    h = MatMul (x, w)
    v, i = TopK (h, k)
    e = GatherElements <axis = 1> (h, i)
    s = ScatterND (e, at, new)
    a = Add (s, v)
    y = Slice (a, first, last, axis)
}"""),
    "tied table, number shared with Range": _case("""
g (int64[1,4] ids) => (float[1,4,32] y)
<float[32,8] table = {7}, float one = {1}, float zero = {0}, float four = {4}> {
    h = Gather (table, ids)
    r = Range (zero, four, one)
    axes = Constant <value = int64[1] {1}> ()
    u = Unsqueeze (r, axes)
    a = Add (h, u)
    m = Mul (a, one)
    t = Transpose <perm = [1,0]> (table)
    y = MatMul (m, t)
}""", '"": 15'),
    "partly float16 already": _case("""
g (float[2,8] x) => (float[2,8] y) <float[8,8] w = {7}, float[8,8] u = {7}> {
    a = MatMul (x, w)
    b = Cast <to = 10> (a)
    c = Cast <to = 10> (u)
    d = MatMul (b, c)
    e = Relu (d)
    f = Cast <to = 1> (e)
    y = MatMul (f, w)
}"""),
    "LSTM, CumSum": _case("""
g (float[5,1,8] x) => (float[5,1,1,8] y)
<float[1,32,8] w = {7}, float[1,32,8] r = {7}, int64 axis = {0}> {
    h = LSTM <hidden_size = 8> (x, w, r)
    y = CumSum (h, axis)
}"""),
    "weights of 3e5 times 1e-9": _case("""
g (float[2,8] x) => (float[2,8] y)
<float[8,8] w = {3e5}, float small = {1e-9}, float[8,8] u = {7}> {
    a = MatMul (x, u)
    s = Mul (a, small)
    y = MatMul (s, w)
}"""),
    "operators of com.microsoft": _case("""
g (float[1,4,8] x) => (float[1,4,8] y) <float[8,8] w = {7}, float[8] gain = {7}, float[8] b = {7}> {
    n = com.microsoft.SkipSimplifiedLayerNormalization (x, x, gain)
    h = com.microsoft.FusedMatMul (n, w)
    y = com.microsoft.BiasGelu (h, b)
}""", _MS),
    "RMSNormalization, Attention": _case("""
g (float[1,4,16] x) => (float[1,4,16] y) <float[16] gain = {7}, float[16,16] w = {7}> {
    n = RMSNormalization (x, gain)
    q = MatMul (n, w)
    y = Attention <q_num_heads = 2, kv_num_heads = 2> (q, n, x)
}""", '"": 23'),
    "Constant weights, Pad, ConstantOfShape, HardSigmoid": _case("""
g (float[1,4] x) => (float[1,6] y) <float[4,4] w = {7}> {
    p = Constant <value = int64[4] {0,1,0,1}> ()
    z = Constant <value = float {0.5}> ()
    a = MatMul (x, w)
    b = Pad (a, p, z)
    s = Shape (b)
    o = ConstantOfShape <value = float[1] {2}> (s)
    m = Mul (b, o)
    y = HardSigmoid (m)
}""", '"": 11'),
}  # fmt: skip


def make_case(name):
    """Return a model, and two samples for it."""
    text, size = CASES[name]
    model = onnx.parser.parse_model(text)
    model.ir_version = 11 if "RMSNorm" in text else 8
    model = _weights(model)
    rng = np.random.default_rng(1)
    samples = [{v.name: _draw(v, rng, size) for v in model.graph.input} for _ in range(2)]
    return model, samples


def _draw(value, rng, size):
    shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
    if value.type.tensor_type.elem_type == onnx.TensorProto.INT64:
        return rng.integers(0, 32, shape)
    if value.name == "mask":
        return np.float32([[[1, 1, 1, 0]], [[1, 1, 0, 0]]])
    return (rng.normal(size=shape) * size).astype(np.float32)
