"""Weights that are standardized by a batch norm in training mode are constants like others."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch
from support.models import build, node, normal
from support.rewriting import op_types, rewrite

from bitwright.prepare import norms_of_one, prepare_exactly

PARAMETERS = ("scale", "bias", "mean", "variance")


def model_of(opset, shape=(1, 4, 27), outputs=("y",)):
    """Return a convolution whose weight is standardized: TorchScript's spelling of StdConv2d."""
    statistics = ["m", "v", "sm", "sv"] if opset < 14 else ["m", "v"]
    mode = {} if opset < 14 else {"training_mode": 1}
    nodes = [
        node("Reshape", ["w", "rows"], ["r"]),
        node("BatchNormalization", ["r", *PARAMETERS], ["n", *statistics], epsilon=1e-3, **mode),
        node("Reshape", ["n", "back"], ["k"]),
        node("Conv", ["x", "k"], ["y"]),
    ]
    weight = normal(4, 3, 3, 3, seed=1) + np.arange(4, dtype=np.float32).reshape(4, 1, 1, 1)
    arrays = {
        "w": weight,
        "rows": np.array(shape),
        "back": np.array([4, 3, 3, 3]),
        "scale": np.array([1, 2, 3, 4], np.float32),
        "bias": np.array([0, 0, 1, 0], np.float32),
        "mean": np.zeros(4, np.float32),
        "variance": np.ones(4, np.float32),
    }
    outputs = dict.fromkeys(outputs)
    return build(nodes, {"x": ["n", 3, 5, 5]}, outputs, arrays, opset=opset), arrays


@pytest.mark.parametrize("opset", [9, 13, 14, 17])
def test_the_weight_is_a_constant_and_the_one_that_torch_computes(opset):
    proto, arrays = model_of(opset)
    model, _, _ = rewrite(proto, lambda model: (0, prepare_exactly(model)))
    assert op_types(model) == {"Conv": 1}
    (conv,) = model.graph
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    expected = torch.nn.functional.batch_norm(
        tensors["w"].reshape(1, 4, 27), None, None, tensors["scale"], tensors["bias"],
        training=True, eps=1e-3,
    )  # fmt: skip
    got = conv.inputs[1].const_value.numpy().reshape(1, 4, 27)
    np.testing.assert_allclose(got, expected.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "case",
    [{"shape": (3, 4, 9)}, {"outputs": ("y", "m")}, {"shape": (27, 4)}],
    ids=["a batch of three", "a mean that is read", "two axes"],
)
def test_other_norms_stay(case):
    proto, _ = model_of(15, **case)
    model = ir.from_proto(proto)
    assert norms_of_one(model).changed == 0
    assert op_types(model)["BatchNormalization"] == 1
