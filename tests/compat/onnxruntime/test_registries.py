"""Registries are the peer's own, and what a client changes in them is honoured."""

from __future__ import annotations

import contextlib
import warnings
from enum import Enum

import numpy as np
import onnx
import onnxruntime.quantization as there
import pytest
from onnxruntime.quantization.operators.base_operator import QuantOperatorBase
from onnxruntime.quantization.operators.conv import QDQConv
from onnxruntime.quantization.operators.direct_q8 import QDQDirect8BitOp
from onnxruntime.quantization.operators.qdq_base_operator import QDQOperatorBase
from onnxruntime.quantization.registry import (
    IntegerOpsRegistry,
    QDQRegistry,
    QLinearOpsRegistry,
)
from support.models import Reader, build, make_cnn, make_mlp, make_samples, node, ops, weight

import bitwright.compat.onnxruntime as tool
from bitwright.compat.onnxruntime import registry
from bitwright.compat.onnxruntime.qdq_quantizer import QDQQuantizer

U8S8 = {"activation_type": tool.QuantType.QUInt8, "weight_type": tool.QuantType.QInt8}


@contextlib.contextmanager
def changed(*registries):
    """Put registries back as they were."""
    before = [dict(entries) for entries in registries]
    try:
        yield
    finally:
        for entries, saved in zip(registries, before, strict=True):
            entries.clear()
            entries.update(saved)


@pytest.fixture
def registries():
    with changed(QDQRegistry, QLinearOpsRegistry, IntegerOpsRegistry):
        yield


def make_hard_swish():
    """A Conv, a Sigmoid, and a HardSwish, which has no entry."""
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="conv"),
        node("Sigmoid", ["c"], ["s"], name="sigmoid"),
        node("HardSwish", ["s"], ["y"], name="swish"),
    ]
    return build(nodes, {"x": [1, 3, 6, 6]}, {"y": [1, 4, 4, 4]}, {"w": weight(4, 3, 3, 3)})


def make_einsum():
    nodes = [node("Einsum", ["x", "w"], ["y"], name="product", equation="bi,io->bo")]
    return build(nodes, {"x": [2, 8]}, {"y": [2, 4]}, {"w": weight(8, 4)})


def by_both(folder, model, **options):
    """Return the models that ours and the peer's `quantize_static` write."""
    found = []
    samples = make_samples(model)
    onnx.save(model, folder / "model.onnx")
    for index, module in enumerate((tool, there)):
        path = folder / f"{index}.onnx"
        chosen = {**U8S8, **options}
        for key, value in chosen.items():
            if isinstance(value, Enum):
                chosen[key] = getattr(module, type(value).__name__)[value.name]
        module.quantize_static(folder / "model.onnx", path, Reader(samples), **chosen)
        found.append(onnx.load(path))
    return found


def named(model):
    """Return the nodes of a model by their names; the order is another in a sorted model."""
    return {made.name: made for made in model.graph.node}


def pairs_around(model, name):
    """Return whether the inputs and outputs of a node are behind and before quantizers."""
    (found,) = (made for made in model.graph.node if made.name == name)
    makers = {output: made.op_type for made in model.graph.node for output in made.output}
    readers = [made.op_type for made in model.graph.node if found.output[0] in made.input]
    return makers.get(found.input[0]) == "DequantizeLinear", "QuantizeLinear" in readers


def test_they_are_the_peers_own():
    assert registry.QDQRegistry is QDQRegistry
    assert registry.QLinearOpsRegistry is QLinearOpsRegistry


def test_an_op_type_with_the_generic_class_gets_pairs(tmp_path, registries):
    QDQRegistry.setdefault("HardSwish", QDQOperatorBase)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        mine, theirs = by_both(tmp_path, make_hard_swish())
    assert ops(mine) == ops(theirs)
    assert pairs_around(mine, "swish") == (True, True)


def test_without_the_entry_it_stays_float(tmp_path):
    mine, theirs = by_both(tmp_path, make_hard_swish())
    assert ops(mine) == ops(theirs)
    assert pairs_around(mine, "swish") == (True, False)


@pytest.mark.parametrize("format", ["QDQ", "QOperator"])
def test_a_removed_op_type_stays_float(tmp_path, registries, format):
    """As ModelOpt removes what TensorRT is to compute in float."""
    for entries in (QLinearOpsRegistry, QDQRegistry):
        for op_type in ("Sigmoid", "Softmax", "Relu"):
            entries.pop(op_type, None)
    mine, theirs = by_both(tmp_path, make_hard_swish(), quant_format=tool.QuantFormat[format])
    assert ops(mine) == ops(theirs)
    assert "QLinearSigmoid" not in ops(mine)


def test_another_known_class_is_run_by_the_peers_pass(tmp_path, registries):
    """With options that ModelOpt gives for TensorRT; the output shares the input's parameters."""
    QDQRegistry["HardSwish"] = QDQDirect8BitOp
    options = {"AddQDQPairToWeight": True, "QuantizeBias": False, "DedicatedQDQPair": True}
    with pytest.warns(UserWarning, match="HardSwish: ONNX Runtime's own quantizer makes"):
        mine, theirs = by_both(tmp_path, make_hard_swish(), extra_options=options)
    assert named(mine) == named(theirs)
    # An entry that no node of the model has leaves it to the plan.
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        tool.quantize_static(make_cnn(), tmp_path / "q.onnx", make_samples(make_cnn()))


class EinsumWeights(QDQOperatorBase):
    """A client's class: an Einsum whose second input is a weight."""

    def quantize(self):
        self.quantizer.quantize_activation_tensor(self.node.input[0])
        if self.quantizer.is_input_a_initializer(self.node.input[1]):
            self.quantizer.quantize_weight_tensor_per_channel(self.node.input[1], 1)
        self.quantizer.quantize_activation_tensor(self.node.output[0])


@pytest.mark.parametrize("method", ["MinMax", "Entropy", "Percentile"])
def test_a_class_of_the_clients_is_run_on_our_ranges(tmp_path, registries, method):
    QDQRegistry["Einsum"] = EinsumWeights
    mine, theirs = by_both(
        tmp_path,
        make_einsum(),
        op_types_to_quantize=["Einsum"],
        per_channel=True,
        calibrate_method=tool.CalibrationMethod[method],
    )
    assert named(mine) == named(theirs)
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in mine.graph.initializer}
    assert stored["w_quantized"].dtype == np.int8 and stored["w_scale"].shape == (4,)
    for tensor in theirs.graph.initializer:
        np.testing.assert_allclose(
            stored[tensor.name], onnx.numpy_helper.to_array(tensor), rtol=1e-6
        )


def test_a_replaced_class_counts_for_the_quantizer_classes(registries):
    calls = []

    class Noted(QDQConv):
        def quantize(self):
            calls.append(self.node.name)
            super().quantize()

    QDQRegistry["Conv"] = Noted
    model = make_cnn()
    calibrator = tool.create_calibrator(model)
    calibrator.collect_data(Reader(make_samples(model)))
    types = tool.QuantType.QInt8, tool.QuantType.QUInt8
    QDQQuantizer(model, True, False, *types, calibrator.compute_data()).quantize_model()
    assert calls == [made.name for made in model.graph.node if made.op_type == "Conv"]


def test_a_cache_of_ranges_serves_the_peers_pass(tmp_path, registries):
    QDQRegistry["Einsum"] = EinsumWeights
    model, cache = make_einsum(), tmp_path / "cache.json"
    for data in (Reader(make_samples(model)), None):
        tool.quantize_static(
            model,
            tmp_path / "q.onnx",
            data,
            op_types_to_quantize=["Einsum"],
            calibration_cache_path=cache,
            **U8S8,
        )
        assert ops(onnx.load(tmp_path / "q.onnx"))["DequantizeLinear"] == 3


class FloatMatMul(QuantOperatorBase):
    """A client's class that leaves a node as it is, but for its name."""

    def quantize(self):
        self.node.name = f"{self.node.name}_seen"
        self.quantizer.new_nodes += [self.node]


def test_dynamic_models_honour_them_too(tmp_path, registries):
    onnx.save(make_mlp(), tmp_path / "model.onnx")
    del IntegerOpsRegistry["MatMul"]
    for index, function in enumerate((tool.quantize_dynamic, there.quantize_dynamic)):
        function(tmp_path / "model.onnx", tmp_path / f"{index}.onnx")
    mine, theirs = (onnx.load(tmp_path / f"{index}.onnx") for index in (0, 1))
    assert "MatMulInteger" not in ops(mine) and "MatMulInteger" not in ops(theirs)
    IntegerOpsRegistry["MatMul"] = FloatMatMul
    for index, function in enumerate((tool.quantize_dynamic, there.quantize_dynamic)):
        function(tmp_path / "model.onnx", tmp_path / f"{index}.onnx")
    mine, theirs = (onnx.load(tmp_path / f"{index}.onnx") for index in (0, 1))
    assert [made.name for made in mine.graph.node] == [made.name for made in theirs.graph.node]
    assert any(made.name.endswith("_seen") for made in mine.graph.node)
