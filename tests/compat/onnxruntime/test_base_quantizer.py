"""The quantizer classes answer what the peer's answer, and refuse what is a step of its pass."""

from __future__ import annotations

import copy

import numpy as np
import onnx
import pytest
from support.models import build, make_cnn, make_transformer, node
from support.peer_overrides import both, in_types_of

from bitwright.compat.onnxruntime.base_quantizer import BaseQuantizer
from bitwright.compat.onnxruntime.enums import QuantType
from bitwright.errors import BitwrightError, RecipeError

QDQ, OPERATORS, DATA = both("qdq_quantizer"), both("onnx_quantizer"), both("calibrate")
FIXED = {"scale": np.array(0.5, np.float32), "zero_point": np.array(3)}
SAME = "Conv Gemm Relu Add MaxPool Softmax MatMul".split()


def ranges(data, model):
    """Return a made-up range for each tensor of a model."""
    names = {name for n in model.graph.node for name in (*n.input, *n.output)}
    names -= {tensor.name for tensor in model.graph.initializer}
    ends = {name: (-0.5 - len(name), 1.5 + len(name)) for name in sorted(names)}
    pairs = {n: tuple(np.array(end, np.float32) for end in pair) for n, pair in ends.items()}
    return data.TensorsData(data.CalibrationMethod.MinMax, pairs)


def quantizers(model, options=None, *, per_channel=False, modules=QDQ, **names):
    for module, data in zip(modules, DATA, strict=True):
        yield module.QDQQuantizer(
            onnx.ModelProto.FromString(model.SerializeToString()),
            per_channel,
            False,
            in_types_of(module, "QInt8"),
            in_types_of(module, "QUInt8"),
            ranges(data, model),
            names.get("nodes", []),
            names.get("exclude", []),
            names.get("op_types", SAME),
            in_types_of(module, options or {}),
        )


@pytest.mark.parametrize(
    "names",
    [
        {},
        {"nodes": ["conv1"]},
        {"exclude": ["conv1", "fc"]},
        {"op_types": ["Relu"]},
    ],
)
def test_nodes_are_selected_as_by_the_peer(names):
    mine, theirs = (
        [q.should_quantize_node(n) for n in q.model.nodes()]
        for q in quantizers(make_cnn(), **names)
    )
    assert mine == theirs


@pytest.mark.parametrize("options", [{}, {"WeightSymmetric": False}, {"WeightSymmetric": True}])
def test_facts_of_weights_are_the_peers(options):
    found = []
    for q in quantizers(make_cnn(), options, per_channel=True):
        found.append(
            [
                [q.is_weight_symmetric(kind) for kind in (2, 3, 4, 5, 17, 21, 22)],
                [q.is_input_a_initializer(name) for name in ("x", "w1", "c1")],
                [q.is_valid_quantize_weight(name) for name in ("x", "w1", "nowhere")],
                q.is_per_channel(),
                [q.is_tensor_quantized(name) for name in ("x", "w1")],
            ]
        )
    assert found[0] == found[1]


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"TensorQuantOverrides": {"w1": [{"symmetric": True}]}},
        {"TensorQuantOverrides": {"w1": [{"axis": 1}]}},
        {"QDQOpTypePerChannelSupportToAxis": {"Conv": 2}},
    ],
    ids=str,
)
def test_channels_of_weights_are_the_peers(options, per_channel):
    found = [
        [
            q.is_tensor_per_channel(*asked)
            for asked in (("w1", 0), ("w1", -1, "Conv"), ("w1", 9), ("x", 0))
        ]
        for q in quantizers(make_cnn(), options, per_channel=per_channel)
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("make", [make_cnn, make_transformer])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"ActivationSymmetric": True},
        {"MinimumRealRange": 30.0},
        {"ActivationRestrictedAsymmetric": True},
        {
            "TensorQuantOverrides": {
                "x": [{"quant_type": "QUInt16", "convert": {"quant_type": "QInt8"}}]
            }
        },
        {
            "TensorQuantOverrides": {
                "x": [{"scale": np.array(0.5, np.float32), "zero_point": np.array(3)}]
            }
        },
        {"TensorQuantOverrides": {"x": [{"rmin": np.float32(-9), "rmax": np.float32(9)}]}},
    ],
    ids=str,
)
def test_parameters_of_activations_are_the_peers(make, options):
    found = []
    for q in quantizers(make(), options):
        params = q.calc_graph_quant_params()
        found.append(
            {
                name: [
                    (p["quant_type"], p["scale"].tolist(), p["zero_point"].tolist())
                    for p in (entry.original, entry.converted)
                    if p is not None
                ]
                for name, entry in params.items()
            }
        )
    assert found[0] == found[1]


def test_the_plan_answers_after_the_model_is_quantized():
    model = make_cnn()
    quantizer = next(iter(quantizers(model, modules=QDQ[:1] * 2)))
    quantizer.quantize_model()
    assert quantizer.is_tensor_quantized("x") and not quantizer.is_tensor_quantized("nowhere")


def make_static(module, model):
    data = DATA[OPERATORS.index(module)]
    mode = both("quant_utils")[OPERATORS.index(module)].QuantizationMode.QLinearOps
    types = in_types_of(module, "QInt8"), in_types_of(module, "QUInt8")
    copied = copy.deepcopy(model)
    return module.ONNXQuantizer(
        copied, False, False, mode, True, *types, ranges(data, model), [], [], SAME, {}
    )


def test_tensors_are_looked_up_as_by_the_peer():
    model = onnx.shape_inference.infer_shapes(make_cnn())
    names = ("x", "w1", "c1", "y", "nowhere")
    mine, theirs = (
        [
            [q.is_float_tensor(name) for name in names[:-1]],
            [q.get_tensor_type(name) for name in names[:-1]],
            [q.contains_tensor(name) for name in ("x", "w1", "nowhere")],
            [q.find_initializer_in_path(name) for name in names],
            q.has_QDQ_nodes(),
            q.find_quantized_value("x"),
        ]
        for q in (make_static(module, model) for module in OPERATORS)
    )
    assert mine == theirs


def test_a_quantized_value_has_the_names_in_the_model():
    quantizer = make_static(OPERATORS[0], make_cnn())
    written = quantizer.quantize_model()
    value = quantizer.find_quantized_value("w1")
    constants = {tensor.name for tensor in written.graph.initializer}
    assert {value.q_name, value.scale_name, value.zp_name} <= constants
    assert quantizer.find_quantized_value("nowhere") is None
    assert quantizer.has_QDQ_nodes()


def test_steps_of_the_pass_say_what_to_do_instead():
    qdq = next(iter(quantizers(make_cnn())))
    integers = make_static(OPERATORS[0], make_cnn())
    for step in (qdq.quantize_activation_tensor, qdq.remove_nodes, integers.quantize_weight):
        with pytest.raises(NotImplementedError, match="TensorQuantOverrides") as caught:
            step("x")
        assert isinstance(caught.value, BitwrightError)


def test_bad_overrides_are_refused_in_the_peers_words():
    options = {"TensorQuantOverrides": {"x": [{"scale": 1.0}]}}
    with pytest.raises(RecipeError):
        next(iter(quantizers(make_cnn(), options)))
    nodes = [node("Relu", ["x"], ["y"], name="relu")]
    model = build(nodes, {"x": [2]}, {"y": [2]})
    types = QuantType.QInt8, QuantType.QUInt8
    with pytest.raises(ValueError, match="both 'scale' and 'zero_point'"):
        BaseQuantizer(model, False, False, *types, None, extra_options=options)
