import math

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from bitwright.decide.placement.convolutions import channel_ties
from bitwright.decide.placement.hosts import float_host, integer_host
from bitwright.decide.placement.kernels import (
    KERNELS,
    dequantize_work,
    float_work,
    hosted_work,
    integer_work,
    quantize_work,
)
from bitwright.decide.placement.shapes import shape_of
from bitwright.targets.costs import Work


def model_of(text, **weights):
    """Return a model from ONNX's text format, its weights random, with shapes."""
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> {text}')
    rng = np.random.default_rng(0)
    for name, shape in weights.items():
        array = np.asarray(rng.standard_normal(shape) / math.sqrt(math.prod(shape) or 1), "f4")
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto))


def last_of(text, **weights):
    return model_of(text, **weights).graph[-1]


def conv(inputs, outputs, window, group=1, size=14):
    kernel = (window, window)
    return last_of(
        f"g (float[1,{inputs},{size},{size}] x) => (float[1,{outputs},?,?] y) "
        f"{{ y = Conv<group={group}, pads=[{', '.join([str(window // 2)] * 4)}]>(x, w) }}",
        w=(outputs, inputs // group, *kernel),
    )


def optimized_ops(model, tmp_path):
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 3
    proto = ir.to_proto(model).SerializeToString()
    ort.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
    return [
        (node.domain, node.op_type)
        for node in onnx.load(options.optimized_model_filepath).graph.node
    ]


CONVOLUTIONS = [
    # inputs, outputs, window, group; in float, in integers
    (3, 32, 3, 1, "conv_few_channels", "qconv_few_channels"),
    (15, 18, 1, 1, "conv_few_channels", "qconv_columns"),
    (16, 16, 3, 1, "conv_blocked", "qconv"),
    (20, 20, 3, 1, "conv_blocked", "qconv"),
    (20, 18, 1, 1, "conv_pointwise", "qconv_columns"),
    (20, 12, 1, 1, "conv_pointwise", "qconv_columns"),
    (64, 64, 1, 1, "conv_pointwise", "qconv_pointwise"),
    (18, 32, 1, 1, "conv_columns", "qconv_columns"),
    (24, 24, 3, 24, "conv_depthwise", "qconv_depthwise_plain"),
    (32, 32, 3, 32, "conv_depthwise", "qconv_depthwise"),
    (18, 18, 3, 18, "conv_columns_grouped", "qconv_depthwise_plain"),
    (32, 32, 3, 2, "conv_grouped", "qconv"),
    (96, 96, 3, 3, "conv_grouped", "qconv"),
    (256, 256, 3, 4, "conv_grouped", "qconv_columns_grouped"),
    (32, 32, 3, 4, "conv_columns_grouped", "qconv"),
    (48, 96, 3, 3, "conv_grouped", "qconv"),
    (32, 48, 3, 2, "conv_columns_grouped", "qconv"),
    (32, 64, 3, 32, "conv_columns_grouped", "qconv"),
]


@pytest.mark.parametrize(
    ("inputs", "outputs", "window", "group", "float_", "integer"), CONVOLUTIONS
)
def test_a_convolution_has_the_kernel_of_its_shape(inputs, outputs, window, group, float_, integer):
    node = conv(inputs, outputs, window, group)
    assert float_work(node).kernel == float_
    assert integer_work(node).kernel == integer


@pytest.mark.parametrize(("inputs", "outputs", "window", "group"), [c[:4] for c in CONVOLUTIONS])
def test_the_runtime_stores_in_blocks_what_is_said_to_be_in_blocks(
    tmp_path, inputs, outputs, window, group
):
    node = conv(inputs, outputs, window, group)
    ops = optimized_ops(ir.Model(node.graph, ir_version=8), tmp_path)
    if not any(
        domain == "com.microsoft.nchwc" for domain, _ in ops + blocks_of_this_machine(tmp_path)
    ):
        pytest.skip("no blocks of channels on this machine")
    in_blocks = not float_work(node).kernel.startswith("conv_columns")
    assert in_blocks == (("com.microsoft.nchwc", "Conv") in ops)


def blocks_of_this_machine(tmp_path):
    return optimized_ops(ir.Model(conv(16, 16, 1).graph, ir_version=8), tmp_path)


def test_multiply_adds_count_whole_blocks():
    assert float_work(conv(20, 18, 1)).macs == 14 * 14 * 32 * 20
    assert integer_work(conv(20, 20, 3)).macs == 14 * 14 * 32 * 20 * 9
    assert integer_work(conv(32, 32, 3, 4)).macs == 14 * 14 * 32 * 32 * 9  # dense
    assert float_work(conv(18, 18, 3, 18)).macs == 14 * 14 * 18 * 9


def test_open_sizes_are_one_sample_of_128():
    assert shape_of(ir.val("x", shape=["n", "t", 64])) == (1, 128, 64)
    assert shape_of(ir.val("x", shape=[2, 64])) == (2, 64)
    assert shape_of(ir.val("x")) is None
    assert shape_of(None) is None


def test_without_shapes_nothing_is_said():
    relu = ir.node("Sigmoid", [ir.val("x")], outputs=[ir.val("y")])
    assert float_work(relu) is None
    assert integer_work(relu) is None
    for op, count in (("MatMul", 2), ("Gemm", 2), ("LSTM", 3), ("AveragePool", 1), ("Conv", 2)):
        inputs = [ir.val(name) for name in "xwr"[:count]]
        one = ir.node(op, inputs, {"kernel_shape": [2, 2]}, outputs=[ir.val("y")])
        assert float_work(one) is None and integer_work(one) is None


TWICE = "s2 = Constant<value_floats=[1.0,1.0,2.0,2.0]>()"
BODY = "g (float[1,16,8,8] x) => (float[?,?,?,?] y) {{ {} }}"


@pytest.mark.parametrize(
    ("body", "host"),
    [
        ("c = Conv(x, w) d = Relu(c) y = Conv(d, w)", "Conv"),
        ("c = Conv(x, w) d = HardSwish(c) y = Conv(d, w)", "Conv"),
        ("c = Conv(x, w) d = LeakyRelu(c) y = Conv(d, w)", "Conv"),
        ("c = Conv(x, w) d = Elu(c) y = Conv(d, w)", None),
        ("c = Conv(x, w) d = Relu(c) y = Add(c, d)", None),  # c has two readers
        ("c = Conv(x, w) e = Conv(x, v) d = Add(c, e) y = Conv(d, w)", "Conv"),
        ("c = Conv(x, w) d = Add(c, x) y = Conv(d, w)", None),  # x is not in blocks
        ("c = Conv(x, w) e = Conv(x, v) a = Add(c, e) d = Relu(a) y = Conv(d, w)", "Add"),
        ("c = Conv(x, w) s = Sigmoid(c) d = Mul(c, s) y = Conv(d, w)", "Sigmoid"),
    ],
)
def test_float_hosts_are_what_the_runtime_fuses(tmp_path, body, host):
    model = model_of(BODY.format(body), w=(16, 16, 1, 1), v=(16, 16, 1, 1))
    node = next(node for node in model.graph if node.outputs[0].name == "d")
    found = float_host(node)
    assert (None if found is None else found.op_type) == host
    assert float_work(node).kernel != "fused"  # where its host is not float
    # Beside a float host, an activation that is more than bounds is a pass over its elements.
    hosted, passes = hosted_work(node), node.op_type in ("HardSwish", "LeakyRelu")
    assert hosted.calls == 0 and (hosted.kernel == "fused") == (not passes or host is None)
    ops = [op for _, op in optimized_ops(model, tmp_path)]
    if "ReorderInput" in ops:  # a machine with blocks of channels
        assert (node.op_type not in ops) == (host is not None)


@pytest.mark.parametrize(
    ("body", "host"),
    [
        ("c = Conv(x, w) y = Relu(c)", "Conv"),
        ("c = Add(x, x) y = Relu(c)", "Add"),
        ("c = MaxPool<kernel_shape=[2,2]>(x) y = Relu(c)", None),  # keeps its scale
        ("c = Erf(x) y = Relu(c)", None),
        ("c = Conv(x, w) y = HardSwish(c)", None),
    ],
)
def test_a_quantizer_takes_over_what_clips(body, host):
    node = last_of(BODY.format(body), w=(16, 16, 1, 1))
    found = integer_host(node)
    assert (None if found is None else found.op_type) == host
    if node.op_type == "Relu":
        assert integer_work(node) == (None if host is None else Work("fused"))


@pytest.mark.parametrize(
    ("body", "float_", "integer"),
    [
        ("y = MaxPool<kernel_shape=[2,2]>(x)", "pool_blocked", "qpool_max_plain"),
        (
            "c = Conv(x, w) d = Relu(c) y = MaxPool<kernel_shape=[2,2]>(d)",
            "pool_blocked",
            "qpool_max",
        ),
        (
            "c = Conv(x, w) g = Sigmoid(c) m = Mul(c, g) "
            "d = MaxPool<kernel_shape=[2,2]>(m) y = MaxPool<kernel_shape=[2,2]>(d)",
            "pool_blocked",
            "qpool_max",
        ),
        ("y = AveragePool<kernel_shape=[2,2]>(x)", "pool_blocked", "qconv_depthwise"),
        ("y = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1]>(x)", "pool_blocked", "qpool_average"),
        ("y = GlobalAveragePool(x)", "global_pool_blocked", "qpool_global"),
        ("y = Softmax<axis=-1>(x)", "softmax", "qsoftmax"),
        ("y = Softmax<axis=1>(x)", "softmax_axis", "qsoftmax_axis"),
        ("y = Transpose<perm=[0,2,3,1]>(x)", "transpose", "byte_transpose"),
        ("y = Concat<axis=1>(x, x)", "copy", "qconcat"),
        ("axes = Constant<value_ints=[1]>() y = ReduceMean<keepdims=1>(x, axes)", "reduce", None),
        ("axes = Constant<value_ints=[3]>() y = ReduceMean(x, axes)", "reduce_last", None),
        ("y = Softmax<axis=3>(x)", "softmax", "qsoftmax"),
        ("y = DepthToSpace<blocksize=2>(x)", "copy", "byte_copy"),
        (
            f'{TWICE} y = Resize<mode="nearest">(x, , s2)',
            "resize_nearest",
            "byte_resize_nearest",
        ),
        (f'{TWICE} y = Resize<mode="linear">(x, , s2)', "resize_linear", None),
        ("y = Identity(x)", "view", "view"),
        ("y = Tanh(x)", "activation_dear", None),
        ("y = Erf(x)", "gelu", None),
        ("y = HardSwish(x)", "activation_dear", "qhard_swish"),
        ("y = Mul(x, s)", "add", "qmul"),
        ("c = GlobalAveragePool(x) y = Mul(x, c)", "multiply_channels", "qmul"),
    ],
)
def test_other_operators_have_the_kernel_of_their_class(body, float_, integer):
    model = model_of(BODY.format(body), s=(1,), w=(16, 16, 1, 1))
    node = model.graph[-1]
    assert float_work(node).kernel == float_
    found = integer_work(node)
    assert (None if found is None else found.kernel) == integer
    assert {float_, integer} <= {*KERNELS, None}


@pytest.mark.parametrize(("source", "passes"), [("c", 3), ("x", 1)])
def test_blocks_are_taken_apart_to_scale_their_channels(tmp_path, source, passes):
    """The result of a Conv is in blocks, the model's input is not."""
    body = f"c = Conv(x, w) g = GlobalAveragePool(c) d = Mul({source}, g) y = Conv(d, w)"
    model = model_of(BODY.format(body), w=(16, 16, 1, 1))
    work = float_work(next(node for node in model.graph if node.op_type == "Mul"))
    ops = [op for _, op in optimized_ops(model, tmp_path)]
    assert work.kernel == "multiply_channels"
    assert work.read - 16 == passes * work.written == passes * 1024
    if "ReorderInput" in ops:  # else a machine without blocks
        assert ops.count("ReorderInput") == 2  # of x and d
        assert ops.count("ReorderOutput") == 2 + (passes == 3)  # of g and y; of c


@pytest.mark.parametrize(("keeps", "shape"), [(0, "?,?"), (1, "?,?,?,?")])
def test_a_mean_over_an_image_is_a_global_pool(keeps, shape):
    body = f"a = Constant<value_ints=[2,3]>() y = ReduceMean<keepdims={keeps}>(x, a)"
    node = last_of(f"g (float[1,16,8,8] x) => (float[{shape}] y) {{ {body} }}")
    assert integer_work(node).kernel == "qpool_global"


def test_a_mean_of_another_rank_is_no_global_pool():
    body = "a = Constant<value_ints=[2]>() y = ReduceMean<keepdims=0>(x, a)"
    assert integer_work(last_of(f"g (float[1,16,8] x) => (float[?,?] y) {{ {body} }}")) is None


@pytest.mark.parametrize(
    ("step", "kernel"),
    [
        ("ArgMax(x)", "reduce"),  # whose axis is the first, unless it says another one
        ("ArgMax<axis=-1>(x)", "reduce_last"),
        ("Softmax(x)", "softmax"),
        ("Floor(x)", "activation_cheap"),  # of what has no row: of one input, and of two
        ("Max(x, x)", "add"),
    ],
)
def test_what_a_node_does_not_say_is_as_the_operator_has_it(step, kernel):
    model = model_of(BODY.format(f"d = {step} y = Relu(x)"))
    assert float_work(model.graph[0]).kernel == kernel


def test_products_are_told_apart_by_their_rows_and_weights():
    body = "g (float[{0},64] x, float[64,32] v) => (float[?,?] y) {{ y = MatMul(x, {1}) }}"
    rows = last_of(body.format(8, "w"), w=(64, 32))
    assert float_work(rows) == Work("gemm", 8 * 64 * 32, 8 * 64 + 64 * 32, 8 * 32)
    assert integer_work(rows).kernel == "qgemm"
    assert float_work(last_of(body.format(1, "w"), w=(64, 32))).kernel == "gemm_row"
    both = last_of(body.format(8, "v"))
    assert (float_work(both).kernel, integer_work(both).kernel) == ("matmul", "qmatmul")


def test_multiply_adds_of_products_are_those_of_the_formula():
    gemm = "g (float[{0}] x) => (float[?,?] y) {{ y = Gemm{1}(x, w) }}"
    for shape, transposed in (("8,64", ""), ("8,64", "<transA=0>"), ("64,8", "<transA=1>")):
        node = last_of(gemm.format(shape, transposed), w=(64, 32))
        assert float_work(node) == Work("gemm", 8 * 64 * 32, 8 * 64 + 64 * 32, 8 * 32)
    # Four gates, each from what comes in and from what was there, at every step of every row.
    body = "g (float[5,2,16] x) => (float[?,?,?,?] y) { y = LSTM<hidden_size=8>(x, w, r) }"
    work = float_work(last_of(body, w=(1, 32, 16), r=(1, 32, 8)))
    assert (work.kernel, work.macs) == ("recurrent", 5 * 2 * 4 * 8 * (16 + 8))


def test_a_pool_reads_every_window():
    node = last_of(BODY.format("y = MaxPool<kernel_shape=[3,2], strides=[1,2]>(x)"))
    assert float_work(node)[1:4] == integer_work(node)[1:4] == (0, 16 * 6 * 4 * 6, 16 * 6 * 4)


def test_a_border_between_convolutions_costs_layouts_as_well():
    model = model_of(BODY.format("c = Conv(x, w) y = Relu(c)"), w=(16, 16, 1, 1))
    value = model.graph[0].outputs[0]
    assert quantize_work(value) == Work("quantize_image", 0, 1024, 1024)
    assert dequantize_work(value).kernel == "dequantize_image"
    flat = ir.val("x", shape=[1, 128, 64])
    assert quantize_work(flat) == Work("quantize", 0, 8192, 8192)


@pytest.mark.parametrize(("opset", "kernel"), [(18, "pool"), (19, "pool_average_19")])
def test_an_average_of_a_late_opset_has_another_kernel(opset, kernel):
    x, y = (ir.val(name, ir.DataType.FLOAT, [1, 24, 8, 8]) for name in "xy")
    node = ir.node("AveragePool", [x], {"kernel_shape": [2, 2]}, outputs=[y])
    ir.Graph([x], [y], nodes=[node], opset_imports={"": opset})
    assert float_work(node).kernel == kernel


def works(body, **weights):
    """Return the work of each node of a model, all in integers, as `emit/forms` writes them."""
    model = model_of(BODY.format(body), **weights)
    ties = channel_ties(model.graph)
    return [integer_work(node, ties) for node in model.graph]


def test_channels_between_convolutions_are_padded():
    body = "c = Conv(x, w) d = Conv<group=24, pads=[1,1,1,1]>(c, v) y = Conv(d, u)"
    first, depthwise, last = works(body, w=(24, 16, 1, 1), v=(24, 1, 3, 3), u=(16, 24, 1, 1))
    assert first == Work("qconv_pointwise", 64 * 32 * 16, 1024 + 24 * 16, 64 * 32)
    assert depthwise == Work("qconv_depthwise", 64 * 32 * 9, 64 * 32 + 24 * 9, 64 * 32)
    assert last == Work("qconv_pointwise", 64 * 16 * 32, 64 * 32 + 16 * 24, 1024)


def test_channels_that_others_read_are_not_padded():
    body = "c = Conv(x, w) d = Conv<group=24>(c, v) y = Transpose<perm=[0,2,3,1]>(d)"
    found = works(body, w=(24, 16, 1, 1), v=(24, 1, 1, 1))
    assert found[1].kernel == "qconv_depthwise_plain"


def test_channels_behind_a_concat_are_padded_where_they_come_from():
    body = "c = Conv(x, w) d = Conv(x, v) e = Concat<axis=1>(c, d) y = Conv(e, u)"
    found = works(body, w=(18, 16, 1, 1), v=(30, 16, 1, 1), u=(16, 48, 1, 1))
    kernels = ["qconv_pointwise", "qconv_pointwise", "qconcat", "qconv_pointwise"]
    assert [work.kernel for work in found] == kernels
    assert found[3] == Work("qconv_pointwise", 64 * 16 * 52, 64 * 52 + 16 * 48, 1024)


def test_an_average_and_groups_are_padded_like_the_convolutions_that_they_become():
    body = "c = Conv(x, w) d = AveragePool<kernel_shape=[2,2]>(c) y = Conv(d, u)"
    found = works(body, w=(24, 16, 1, 1), u=(16, 24, 1, 1))
    assert found[1] == Work("qconv_depthwise", 49 * 32 * 4, 64 * 32 + 24 * 4, 49 * 32)
    body = "c = Conv(x, w) y = Conv<group=3, pads=[1,1,1,1]>(c, u)"
    found = works(body, w=(30, 16, 1, 1), u=(48, 10, 3, 3))
    assert found[1] == Work("qconv", 64 * 48 * 32 * 9, 64 * 32 + 48 * 10 * 9, 64 * 48)
