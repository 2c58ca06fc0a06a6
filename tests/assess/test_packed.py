"""Weights in blocks of few bits, read back from the nodes that keep them."""

import numpy as np
import onnx_ir as ir
import pytest
from support import language_models

import bitwright
from bitwright.graph import infer_shapes, load_model
from bitwright.graph.packed_weights import packed_weight
from bitwright.run import Session


def written(bits, tied=False, **weights):
    model = language_models.make_block(depth=1, tied=tied)
    recipe = {"base": "int4-rtn", "weights": {"bits": bits, "embeddings": True, **weights}}
    return model, bitwright.quantize(model, recipe=recipe).model


def through_kernel(model, name, source):
    """Return what ONNX Runtime makes of an input with one node alone."""
    node = next(node for node in model.graph if node.name == name)
    read = node.inputs[1 if name == "embed" else 0].name
    part = ir.convenience.extract(model.graph, [read], [node.outputs[0].name])
    part.opset_imports.update(model.graph.opset_imports)
    session = Session(ir.Model(part, ir_version=model.ir_version))
    return session.run({read: source})[node.outputs[0].name]


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [False, True])
def test_what_is_read_back_is_what_the_runtime_multiplies_with(bits, symmetric):
    _, quantized = written(bits, symmetric=symmetric)
    infer_shapes(quantized)
    found = {node.name: packed_weight(node) for node in quantized.graph}
    product, table = found["down0/MatMul"].numbers(), found["embed"].numbers()
    ones = np.eye(product.shape[0], dtype=np.float32)[None]
    given = through_kernel(quantized, "down0/MatMul", ones)[0]
    np.testing.assert_allclose(given, product, atol=1e-2 * np.abs(product).max())
    entries = np.arange(table.shape[0])[None]
    np.testing.assert_allclose(through_kernel(quantized, "embed", entries)[0], table, rtol=1e-5)


def test_other_nodes_keep_nothing_in_blocks():
    model, _ = written(4)
    assert all(packed_weight(node) is None for node in load_model(model).graph)


def test_their_errors_are_among_those_of_the_weights():
    model, quantized = written(4, tied=True)
    samples = language_models.make_samples(2)
    found = bitwright.compare(model, quantized, data=samples)
    # A table that a Gemm reads the other way round is one weight, and so is each product's.
    assert {"embedding", "gate0", "up0", "down0"} <= set(found.weights)
    assert all(10 < found.weights[name] < 40 for name in ("embedding", "gate0", "up0", "down0"))


def test_a_report_draws_them():
    model, quantized = written(4, tied=True)
    samples = language_models.make_samples(2)
    report = bitwright.write_report(model, quantized, data=samples, latency=False)
    drawn = {node.measured.name: dict(node.tensors) for node in report.subject.nodes}
    for name in ("embed", "gate0/MatMul", "head"):
        view = report.subject.tensors[drawn[name]["weight"]]
        assert view.qtype == "uint4 in blocks of 32" and view.scales > 1
        assert view.histogram is not None and view.peaks is not None
        low, high = view.range
        assert low < 0.7 * view.histogram.low and high > 0.7 * view.histogram.high
        # The ends of a block may be cut off where that lowers its error.
        assert view.clipped < 0.15
        assert view.to_dict()["scales"] == view.scales
