"""The torch executor runs whole models, and gradients go through it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from support.models import make_cnn, normal, run

torch = pytest.importorskip("torch", reason="the executor is torch code")

from support.torch_graphs import run_in_torch  # noqa: E402

from bitwright.learning.torch_graph.executor import TorchGraph  # noqa: E402


def test_a_whole_model_runs():
    proto = make_cnn()
    feeds = {"x": normal(1, 3, 12, 12, seed=9)}
    np.testing.assert_allclose(
        run_in_torch(proto, feeds)[0], run(proto, feeds)[0], rtol=1e-4, atol=1e-5
    )


def test_gradients_reach_weights_and_single_inputs_can_be_changed():
    model = ir.serde.deserialize_model(make_cnn())
    outputs = [value.name for value in model.graph.outputs]
    graph = TorchGraph(model.graph, outputs, opset=17)
    weight = graph.constants["w1"].clone().requires_grad_()
    feeds = {"x": torch.from_numpy(normal(1, 3, 12, 12, seed=9))}
    result = graph.run(feeds, constants={"w1": weight})[outputs[0]]
    assert torch.autograd.grad(result.sum(), weight)[0].abs().sum() > 0
    silent = graph.run(feeds, read={("residual", 1): torch.zeros_like})[outputs[0]]
    assert not torch.equal(silent, result)
