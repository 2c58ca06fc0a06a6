"""Names in n-bit models are those of ONNX Runtime's tool."""

from __future__ import annotations

import onnxruntime.quantization.matmul_nbits_quantizer as peer
import pytest
from support.models import INT64, build, info, node, weight

import bitwright.compat.onnxruntime.matmul_nbits_quantizer as ours
from bitwright.compat.onnxruntime import QuantFormat


def make_model():
    nodes = [
        node("MatMul", ["x", "w"], ["h"], name="product"),
        node("Gather", ["table", "ids"], ["g"], name="look_up"),
        node("Add", ["h", "g"], ["y"], name="add"),
    ]
    constants = {"w": weight(64, 32), "table": weight(64, 32)}
    return build(nodes, [info("x", [4, 64]), info("ids", [4], INT64)], {"y": [4, 32]}, constants)


def names(module, quant_format, op_types, symmetric):
    kind = QuantFormat if module is ours else peer.QuantFormat
    quantizer = module.MatMulNBitsQuantizer(
        make_model(),
        block_size=32,
        is_symmetric=symmetric,
        quant_format=kind[quant_format],
        op_types_to_quantize=op_types,
    )
    quantizer.process()
    graph = quantizer.model.model.graph
    nodes = {item.name: (item.op_type, list(item.input), list(item.output)) for item in graph.node}
    return nodes, {tensor.name for tensor in graph.initializer}


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(
    ("quant_format", "op_types"),
    [("QOperator", ("MatMul",)), ("QOperator", ("MatMul", "Gather")), ("QDQ", ("MatMul",))],
)
def test_nodes_and_tensors_have_the_peers_names(quant_format, op_types, symmetric):
    mine = names(ours, quant_format, op_types, symmetric)
    assert mine == names(peer, quant_format, op_types, symmetric)
