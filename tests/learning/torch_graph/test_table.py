"""Every operator of the torch executor against ONNX Runtime's kernel for it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from support.models import INT64, build, info, node, normal, run

from bitwright.errors import ModelError

torch = pytest.importorskip("torch", reason="the executor is torch code")

from support.torch_graphs import run_in_torch  # noqa: E402

from bitwright.learning.torch_graph.executor import TorchGraph  # noqa: E402
from bitwright.learning.torch_graph.table import OPS, why_not  # noqa: E402

X4 = normal(2, 4, 7, 6, seed=1)
X3 = normal(2, 4, 9, seed=2)
X5 = normal(1, 2, 5, 4, 6, seed=3)
X2 = normal(3, 8, seed=4)
POSITIVE = np.abs(X4) + 0.1


def ints(*values):
    return np.array(values, np.int64)


def case(op, *inputs, opset=21, outputs=1, **attributes):
    """The first inputs that are not None and float are fed, integers are constants."""
    return pytest.param(op, inputs, attributes, opset, outputs, id=_id(op, attributes, inputs))


def _id(op, attributes, inputs):
    shown = "-".join(f"{key}={value}" for key, value in attributes.items())
    return f"{op}-{inputs[0].ndim}d-{shown}".replace(" ", "")


W4 = normal(6, 4, 3, 3, seed=5)
RESIZES = [
    case("Resize", X4, None, None, ints(2, 4, *size), mode=mode,
         coordinate_transformation_mode=coordinates, **extra)
    for size in ((14, 12), (5, 9), (1, 3))
    for coordinates in ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
    for mode, extra in [("linear", {})] + [
        ("nearest", {"nearest_mode": way})
        for way in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    ]
]  # fmt: skip

CASES = [
    case("Conv", X4, W4),
    case("Conv", X4, W4, normal(6, seed=6), pads=[1, 1, 1, 1], strides=[2, 1]),
    case("Conv", X4, W4, pads=[0, 1, 2, 1], dilations=[2, 1]),
    case("Conv", X4, normal(8, 2, 3, 2, seed=5), group=2, auto_pad="SAME_UPPER", strides=[2, 2]),
    case("Conv", X4, normal(4, 1, 2, 4, seed=5), group=4, auto_pad="SAME_LOWER"),
    case("Conv", X4, W4, auto_pad="VALID"),
    case("Conv", X3, normal(5, 4, 3, seed=5), normal(5, seed=6), pads=[2, 1], strides=[2]),
    case("Conv", X5, normal(3, 2, 3, 2, 2, seed=5), pads=[1, 0, 1, 1, 1, 0]),
    case("ConvTranspose", X4, normal(4, 3, 3, 3, seed=5), normal(3, seed=6), strides=[2, 2]),
    case("ConvTranspose", X4, normal(4, 2, 3, 3, seed=5), group=2, pads=[1, 0, 0, 1]),
    case("ConvTranspose", X4, normal(4, 3, 3, 3, seed=5), normal(3, seed=6),
         strides=[2, 3], pads=[1, 1, 1, 1], output_padding=[1, 2]),
    case("ConvTranspose", X4, normal(4, 3, 3, 3, seed=5), strides=[2, 2], output_shape=[13, 13]),
    case("ConvTranspose", X4, normal(4, 3, 3, 3, seed=5), strides=[2, 2], auto_pad="SAME_UPPER"),
    case("ConvTranspose", X4, normal(4, 3, 3, 3, seed=5), strides=[2, 2], auto_pad="SAME_LOWER"),
    case("ConvTranspose", X3, normal(4, 3, 4, seed=5), strides=[2], dilations=[2]),
    case("ConvTranspose", X5, normal(2, 3, 2, 2, 2, seed=5), strides=[2, 1, 2]),
    case("MaxPool", X4, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1]),
    case("MaxPool", X4, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
    case("MaxPool", X4, kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER"),
    case("MaxPool", X4, kernel_shape=[2, 2], dilations=[2, 3]),
    case("MaxPool", X3, kernel_shape=[3]),
    case("AveragePool", X4, kernel_shape=[2, 3]),
    case("AveragePool", X4, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    case("AveragePool", X4, kernel_shape=[3, 3], pads=[1, 0, 2, 1], count_include_pad=1),
    case("AveragePool", X4, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    case("AveragePool", X4, kernel_shape=[3, 3], strides=[3, 2], auto_pad="SAME_LOWER"),
    case("AveragePool", X3, kernel_shape=[4], strides=[3]),
    case("GlobalAveragePool", X4),
    case("GlobalMaxPool", X5),
    case("Gemm", X2, normal(8, 5, seed=5), normal(5, seed=6)),
    case("Gemm", X2, normal(5, 8, seed=5), normal(3, 1, seed=6), transB=1, alpha=0.5, beta=2.0),
    case("Gemm", X2, normal(3, 5, seed=5), transA=1),
    case("MatMul", X3, normal(9, 5, seed=5)),
    case("MatMul", X4, normal(2, 1, 6, 3, seed=5)),
    case("Einsum", X3, normal(2, 4, 5, seed=5), equation="bij,bik->bjk"),
    case("BatchNormalization", X4, normal(4, seed=5), normal(4, seed=6), normal(4, seed=7),
         np.abs(normal(4, seed=8)) + 0.1, epsilon=0.01),
    case("InstanceNormalization", X4, normal(4, seed=5), normal(4, seed=6), epsilon=0.01),
    case("LayerNormalization", X3, normal(9, seed=5), normal(9, seed=6)),
    case("LayerNormalization", X3, normal(4, 9, seed=5), axis=1, epsilon=0.1),
    case("GroupNormalization", X4, normal(4, seed=5), normal(4, seed=6), num_groups=2),
    case("LpNormalization", X3, axis=1),
    case("LpNormalization", X3, p=1),
    case("Clip", X4, np.float32(-0.5), np.float32(1)),
    case("Clip", X4, np.float32(0)),
    case("Clip", X4, opset=6, min=-0.25, max=0.5),
    *[case(op, X4) for op in (
        "Abs", "Cos", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu",
        "Mish", "Neg", "Relu", "Sigmoid", "Sin", "Softplus", "Tanh", "Identity", "Transpose",
        "Flatten", "Softmax", "LogSoftmax", "ReduceMean", "ReduceSum", "ReduceMax",
    )],
    *[case(op, POSITIVE) for op in ("Log", "Reciprocal", "Sqrt", "ReduceL2", "ReduceMin")],
    case("Gelu", X4, approximate="tanh"),
    case("HardSigmoid", X4, alpha=0.3, beta=0.4),
    case("LeakyRelu", X4, alpha=0.3),
    case("Elu", X4, alpha=0.3),
    case("PRelu", X4, normal(4, 1, 1, seed=5)),
    case("Softmax", X4, axis=1),
    case("Softmax", X4, axis=2, opset=11),
    case("LogSoftmax", X4, opset=11),
    *[case(op, X4, normal(4, 1, 6, seed=5)) for op in ("Add", "Sub", "Mul", "Max", "Min", "Sum")],
    case("Div", X4, POSITIVE[:1]),
    case("Mean", X4, POSITIVE, X4),
    case("Pow", X4, np.float32(2)),
    case("Pow", POSITIVE, normal(6, seed=5)),
    case("ReduceMean", X4, ints(2, -1), keepdims=0),
    case("ReduceMean", X4, opset=13, axes=[1], keepdims=1),
    case("ReduceSumSquare", X4, ints(1)),
    case("ReduceSum", X4, noop_with_empty_axes=1),
    case("Concat", X4, X4, X4, axis=-2),
    case("DepthToSpace", X4, blocksize=2),
    case("DepthToSpace", X4, blocksize=2, mode="CRD"),
    case("SpaceToDepth", normal(2, 3, 4, 6), blocksize=2),
    case("Expand", normal(4, 1, seed=5), ints(2, 1, 5)),
    case("Flatten", X4, axis=-1),
    case("Gather", X4, ints(1, -1, 0), axis=2),
    case("Gather", X4, np.array(2), axis=1),
    case("Pad", X4, ints(0, 0, 1, 2, 0, 0, 0, 1), np.float32(3)),
    case("Pad", X4, ints(0, 0, -1, 2, 0, 0, 0, -1)),
    case("Pad", X4, ints(1, 2, 0, 1), None, ints(2, 3), mode="reflect"),
    case("Pad", X4, ints(0, 0, 1, 2, 0, 1, 0, 1), mode="edge"),
    case("Range", np.array(0.5, np.float32), np.float32(4), np.float32(1)),
    case("Reshape", X4, ints(0, -1, 6)),
    case("Slice", X4, ints(1, -4), ints(100, -1), ints(1, 2)),
    case("Slice", X4, ints(-1, 0), ints(-100, 6), ints(2, 3), ints(-2, 3)),
    case("Slice", X4, opset=9, starts=[1], ends=[-1], axes=[2]),
    case("Split", X4, ints(1, 3), outputs=2, axis=1),
    case("Split", X4, outputs=3, axis=2, num_outputs=3),
    case("Squeeze", X4[:1, :, :1], ints(0, -2)),
    case("Squeeze", X4[:1]),
    case("Unsqueeze", X4, ints(0, -1)),
    case("Tile", X2, ints(2, 1)),
    case("Transpose", X4, perm=[0, 2, 3, 1]),
    case("Upsample", X4, np.float32([1, 1, 2, 3]), opset=9),
    case("Resize", X4, None, np.float32([1, 1, 1.5, 0.7]), mode="linear"),
    case("Resize", X4, None, np.float32([2.0, 0.6]), axes=[2, 3]),
    *RESIZES,
]  # fmt: skip


def model_of(op, inputs, attributes, opset, outputs):
    names = ["" if array is None else f"x{i}" for i, array in enumerate(inputs)]
    # Shapes must be constants; a second float may be either.
    fed = {name: array for name, array in zip(names, inputs, strict=True) if name == "x0"}
    constants = {n: a for n, a in zip(names, inputs, strict=True) if n not in ("", "x0")}
    results = [f"y{i}" for i in range(outputs)]
    return build(
        [node(op, names, results, name="it", **attributes)],
        {name: array.shape for name, array in fed.items()},
        [info(name) for name in results],
        constants,
        opset=opset,
        ir_version=10,
    ), fed


@pytest.mark.parametrize(("op", "inputs", "attributes", "opset", "outputs"), CASES)
@pytest.mark.sampled(92)
def test_the_executor_computes_what_the_runtime_computes(op, inputs, attributes, opset, outputs):
    proto, feeds = model_of(op, inputs, attributes, opset, outputs)
    for ours, theirs in zip(run_in_torch(proto, feeds), run(proto, feeds), strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)


# These work on shapes and masks, and are tried together below.
TOGETHER = {"And", "Cast", "ConstantOfShape", "Dropout", "Equal", "Greater", "GreaterOrEqual",
            "Less", "LessOrEqual", "Not", "Or", "Shape", "Where"}  # fmt: skip


def test_every_operator_of_the_table_is_tried():
    assert {case.values[0] for case in CASES} | TOGETHER == set(OPS)


def test_shapes_and_masks_are_worked_out_as_the_runtime_does():
    constants = {
        "one": ints(1), "minus": ints(-1), "zero": np.float32(0), "half": np.float32(0.5),
        "eight": ints(2),
    }  # fmt: skip
    nodes = [
        node("Shape", ["x"], ["shape"], name="shape", start=0, end=2),
        node("Gather", ["shape", "one"], ["second"], name="pick"),
        node("Div", ["second", "eight"], ["halved"], name="halve"),
        node("Concat", ["halved", "minus"], ["wanted"], name="wanted", axis=0),
        node("Reshape", ["x", "wanted"], ["flat"], name="flat"),
        node("Shape", ["flat"], ["flat_shape"], name="flat_shape"),
        node("ConstantOfShape", ["flat_shape"], ["zeros"], name="zeros"),
        node("Dropout", ["flat"], ["kept"], name="drop"),
        node("Greater", ["kept", "zero"], ["positive"], name="positive"),
        node("Less", ["kept", "half"], ["small"], name="small"),
        node("And", ["positive", "small"], ["both"], name="both"),
        node("Not", ["both"], ["neither"], name="neither"),
        node("GreaterOrEqual", ["kept", "half"], ["large"], name="large"),
        node("LessOrEqual", ["kept", "zero"], ["low"], name="low"),
        node("Or", ["large", "low"], ["outside"], name="outside"),
        node("And", ["neither", "outside"], ["left"], name="left"),
        node("Equal", ["left", "positive"], ["same"], name="same"),
        node("Where", ["same", "kept", "zeros"], ["chosen"], name="choose"),
        node("Cast", ["both"], ["marks"], name="cast", to=1),
        node("Add", ["chosen", "marks"], ["y"], name="add"),
    ]
    proto = build(nodes, {"x": [2, 4, 9]}, {"y": None}, constants, opset=17)
    np.testing.assert_array_equal(run_in_torch(proto, {"x": X3})[0], run(proto, {"x": X3})[0])


def test_an_operator_that_is_not_on_the_table_is_refused_by_name():
    strange = ir.node("NonMaxSuppression", [], name="nms")
    assert why_not(strange, 21) == "there is no NonMaxSuppression in torch here"
    with pytest.raises(ModelError, match="node 'nms' cannot run in torch: there is no NonMax"):
        TorchGraph([strange], [], opset=21)
    cubic = ir.node("Resize", [], {"mode": "cubic"})
    assert why_not(cubic, 21) == "Resize has the mode cubic"
    vendor = ir.node("Conv", [], domain="com.vendor")
    assert why_not(vendor, 21) is not None
    training = ir.node("BatchNormalization", [], {"training_mode": 1})
    assert why_not(training, 21) == "it is in training mode"


def test_a_second_output_that_is_read_is_refused():
    proto = build(
        [node("MaxPool", ["x"], ["y", "places"], name="pool", kernel_shape=[2, 2])],
        {"x": [2, 4, 7, 6]},
        [info("y"), info("places", None, INT64)],
    )
    model = ir.serde.deserialize_model(proto)
    assert why_not(model.graph[0], 17) == "a second output of MaxPool is read"
