"""Run a pass on a model and prove what came out: valid, sorted, nothing idle, the same function."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir

from bitwright import graph
from support.models import make_samples, run


def rewrite(proto, change, *, infer=True):
    """Return (model, how often the pass changed it, its notes)."""
    model = ir.from_proto(proto)
    graph.normalize(model)
    if infer:
        graph.infer_shapes(model)
    changed, notes = change(model)
    return model, changed, list(notes)


def checked(model):
    """Return the protobuf model after ONNX's full check; no initializer is left over."""
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    bodies = [a.g for n in proto.graph.node for a in n.attribute if a.HasField("g")]
    read = {name for g in (proto.graph, *bodies) for n in g.node for name in n.input}
    read |= {o.name for o in proto.graph.output}
    assert {i.name for i in proto.graph.initializer} <= read
    return proto


def op_types(model):
    """Op type -> how many, in bodies too."""
    return Counter(node.op_type for node in model.graph.all_nodes())


def assert_same(proto, model, *, samples=None, rtol=1e-5, atol=1e-6, transposed=False):
    """Prove that both compute the same, under the same names; NHWC outside if `transposed`."""
    after = checked(model)
    assert [o.name for o in after.graph.output] == [o.name for o in proto.graph.output]
    assert [i.name for i in after.graph.input] == [i.name for i in proto.graph.input]
    for sample in samples or make_samples(proto, 2):
        fed = {k: to_last(v) for k, v in sample.items()} if transposed else sample
        for expected, actual in zip(run(proto, sample), run(after, fed), strict=True):
            expected = to_last(expected) if transposed else expected
            assert expected.shape == actual.shape
            np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol)


def to_last(array):
    return array.transpose(0, 2, 3, 1) if array.ndim == 4 else array
