"""OpenVINO computes the models of its target in 8 bits, and NNCF quantizes the same activations."""

import json

import numpy as np
import onnx
import pytest
from support.models import make_samples
from support.target_models import MODELS
from support.tool_environment import run_script

import bitwright

OPENVINO = ("openvino==2026.4.1", "nncf==3.4.0")
# NNCF moves quantizers through what only moves or joins values, up to where they are computed: the
# same scales stand there once. It leaves the swish (Sigmoid, Mul), what a LeakyRelu reads, a Resize
# and a Relu at the end float.
MOVED = {"Flatten", "MaxPool", "Concat", "Split", "Pad", "Reshape"}
LEFT_FLOAT = {"Sigmoid", "Resize", "LeakyRelu", "Relu"}
# What only NNCF quantizes, each with the reason that our plan gives, or would: a product of results
# that are computed in float, attention whose factors are both computed, and sums outside of
# products.
ONLY_NNCF = {
    "gates": {"t", "s"},
    "transformer": {"q_a", "k_a", "v_a", "p", "context", "o_a", "down_a"},
}
# OpenVINO computes a small perceptron in one kernel, which has no precision of its own, and
# transposed convolutions in float.
PRODUCTS = {"mlp": set(), "segmenter": {"u8", "f32"}}
# A convolution whose result is quantized and added to what another one wrote is one kernel with the
# sum and the quantizer behind that: OpenVINO does not round what is inside of it.
LEFT_OUT = {
    "mobilenet": ["project0", "project1", "project2"],
    "mobilenet_with_relu6": ["project0", "project1", "project2"],
}


def quantized_activations(model):
    constants = {constant.name for constant in model.graph.initializer}
    sources = {node.input[0] for node in model.graph.node if node.op_type == "QuantizeLinear"}
    return {name.removesuffix("_QuantizeLinear_Input") for name in sources - constants}


@pytest.mark.slow
def test_openvino_computes_in_8_bits_and_nncf_agrees(tmp_path):
    ours = {}
    for name in MODELS:
        model = MODELS[name]()
        samples = make_samples(model, 1)
        label = name.replace(" ", "_")
        onnx.save(model, tmp_path / f"{label}.float.onnx")
        np.savez(tmp_path / f"{label}.npz", **samples[0])
        made = bitwright.quantize(
            model, data=samples, target="intel-openvino:cpu", effort="low", holdout=False
        )
        made.save(tmp_path / f"{label}.ours.onnx")
        ours[label] = model, quantized_activations(made.to_proto())
    run_script("openvino_check.py", tmp_path, needs=OPENVINO)
    for label, (model, activations) in ours.items():
        found = json.loads((tmp_path / f"{label}.json").read_text())
        assert {*found["precisions"]} == PRODUCTS.get(label, {"u8"}), (label, found)
        assert found["left_out"] == LEFT_OUT.get(label, []), (label, found)
        assert found["distance"] < 1e-5, (label, found)
        assert (found["distance_as_written"] > 1e-3) == (label in LEFT_OUT), (label, found)
        assert {*found["nncf"]} - activations == ONLY_NNCF.get(label, set()), (label, found)
        for name in activations - {*found["nncf"]}:
            near = {n.op_type for n in model.graph.node if name in (*n.input, *n.output)}
            assert near & (MOVED | LEFT_FLOAT), (label, name)
