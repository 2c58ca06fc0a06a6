"""Weights in Constant nodes: weights here, activations for ONNX Runtime's tool, and what that is.

That tool puts pairs around them as around activations: asymmetric, rounded at every run, with the
floats still in the file, and their biases are left alone. Asked for the same, the numbers are the
same, in a third of the size.
"""

from __future__ import annotations

from onnx import helper
from support.models import make_cnn, make_samples, quality
from support.peer_runs import peer, quantize_by, quiet  # noqa: F401 (a fixture)

from bitwright.compat import onnxruntime as ours

AS_ACTIVATIONS = {"WeightSymmetric": False, "QuantizeBias": False}


def with_constant_nodes(model):
    nodes = [
        helper.make_node("Constant", [], [tensor.name], value=tensor)
        for tensor in model.graph.initializer
    ]
    nodes += model.graph.node
    del model.graph.initializer[:], model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def test_they_are_stored_as_integers_with_the_peers_numbers(tmp_path):
    model = with_constant_nodes(make_cnn(channels=32))
    samples = make_samples(model, 16)
    theirs = quantize_by(peer, tmp_path, model, samples)
    mine = quantize_by(ours, tmp_path, model, samples, extra_options=AS_ACTIVATIONS)
    assert mine.ByteSize() < theirs.ByteSize() / 2
    assert quality(model, mine, samples) > quality(model, theirs, samples) - 0.1


def test_it_makes_no_difference_where_a_weight_stands(tmp_path):
    samples = make_samples(make_cnn(), 8)
    found, wanted = (
        quantize_by(ours, tmp_path, model, samples)
        for model in (with_constant_nodes(make_cnn()), make_cnn())
    )
    assert quality(make_cnn(), found, samples) == quality(make_cnn(), wanted, samples)
    assert {tensor.name for tensor in found.graph.initializer} == {
        tensor.name for tensor in wanted.graph.initializer
    }
