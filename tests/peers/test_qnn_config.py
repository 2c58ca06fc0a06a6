"""For Qualcomm's NPU, ONNX Runtime's QNN configuration gives the same tensors the same types."""

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize
from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config
from support.models import make_samples
from support.target_models import MODELS

import bitwright


class Reader(CalibrationDataReader):
    def __init__(self, samples):
        self._samples = iter(samples)

    def get_next(self):
        return next(self._samples, None)


def types(model):
    """Return tensor -> its number type and whether it has several scales."""
    constants = {constant.name: constant for constant in model.graph.initializer}
    makers = {name: node for node in model.graph.node for name in node.output}
    found = {}
    for node in model.graph.node:
        if node.op_type == "DequantizeLinear":
            scale, zero = (constants[name] for name in node.input[1:])
            maker = makers.get(node.input[0])
            name = node.input[0].removesuffix("_quantized") if maker is None else maker.input[0]
            several = int(np.prod(scale.dims)) > 1
            found[name] = (onnx.TensorProto.DataType.Name(zero.data_type), several)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("name", MODELS)
def test_the_same_tensors_have_the_same_types(name, bits, tmp_path):
    model = MODELS[name]()
    samples = make_samples(model, 4)
    onnx.save(model, tmp_path / "float.onnx")
    config = get_qnn_qdq_config(
        tmp_path / "float.onnx",
        Reader(samples),
        activation_type={8: QuantType.QUInt8, 16: QuantType.QUInt16}[bits],
        weight_type=QuantType.QInt8,
        per_channel=True,
    )
    quantize(tmp_path / "float.onnx", tmp_path / "theirs.onnx", config)
    theirs = types(onnx.load(tmp_path / "theirs.onnx"))
    made = bitwright.quantize(
        model,
        data=samples,
        recipe={8: None, 16: "a16w8"}[bits],
        target="qualcomm-htp:v68",
        holdout=False,
        effort="low",
    )
    ours = types(made.to_proto())
    # By AIMET's table v68 has no scales of channels for Gemm; ONNX Runtime's tool gives it some.
    gemms = {name for node in model.graph.node if node.op_type == "Gemm" for name in node.input}
    theirs |= {name: (theirs[name][0], False) for name in gemms & theirs.keys()}
    assert ours == theirs
    errors = {
        (finding.rule, finding.node)
        for finding in bitwright.verify(made.model, "qualcomm-htp:v68").errors
    }
    # Two activations of 16 bits, of which the provider leaves one 8 bits: the rule says so.
    wide = {("wide_products", "scores"), ("wide_products", "context_matmul")}
    assert errors <= (wide if bits == 16 else set())
