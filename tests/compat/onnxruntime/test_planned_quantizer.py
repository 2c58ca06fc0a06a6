"""The quantizer classes plan a model, or run the peer's pass where a client asks for its steps."""

from __future__ import annotations

import copy

import numpy as np
import onnx
import pytest
from support.models import make_cnn
from support.peer_overrides import both, in_types_of

from bitwright.compat.onnxruntime.enums import QuantType
from bitwright.errors import RecipeError

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


def test_a_quantized_value_has_the_names_in_the_model():
    quantizer = make_static(OPERATORS[0], make_cnn())
    written = quantizer.quantize_model()
    value = quantizer.find_quantized_value("w1")
    constants = {tensor.name for tensor in written.graph.initializer}
    assert {value.q_name, value.scale_name, value.zp_name} <= constants
    assert quantizer.find_quantized_value("nowhere") is None
    assert quantizer.has_QDQ_nodes()


def test_bad_overrides_are_refused_in_the_peers_words():
    options = {"TensorQuantOverrides": {"w1": [{"axis": 0}], "x": [{"scale": 1.0}]}}
    with pytest.raises(RecipeError, match="both 'scale' and 'zero_point'"):
        next(iter(quantizers(make_cnn(), options)))


def test_the_given_model_and_ranges_stay_as_they_are():
    model = make_cnn()
    given = ranges(DATA[0], model)
    before = model.SerializeToString(), {name: data.range_value for name, data in given.items()}
    types = QuantType.QInt8, QuantType.QUInt8
    QDQ[0].QDQQuantizer(model, False, False, *types, given).quantize_model()
    after = model.SerializeToString(), {name: data.range_value for name, data in given.items()}
    assert before == after


def test_tensors_that_a_client_marks_are_quantized_by_the_peers_pass():
    made = []
    for quantizer in quantizers(make_cnn(), op_types=["Conv"]):
        quantizer.quantize_activation_tensor("y")  # which no Conv reads or writes
        made.append(quantizer.quantize_model().graph)
    assert made[0] == made[1]
    assert "y_QuantizeLinear" in [node.name for node in made[0].node]


def test_a_step_that_a_derived_class_replaces_is_run():
    made = []
    for module in QDQ:

        class WithoutBiases(module.QDQQuantizer):
            def quantize_bias_tensor(self, *arguments, **options):
                """Leave every bias float."""

        stand_in = type("Module", (), {"QDQQuantizer": WithoutBiases, "__name__": module.__name__})
        quantizer = next(iter(quantizers(make_cnn(), modules=(stand_in, stand_in))))
        made.append(quantizer.quantize_model().graph)
    assert made[0] == made[1]
    assert not any(tensor.name == "b1_quantized" for tensor in made[0].initializer)
