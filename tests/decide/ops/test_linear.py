"""Which numbers of a weight belong to which channels, shown by what the runtime computes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from support.models import build, node, run

from bitwright.decide.ops.linear import LinearNode

# op type, attributes, shape of the weight, shape of the input, channels in and out
CASES = [
    ("Conv", {}, (6, 4, 3, 3), (1, 4, 5, 5), 4, 6),
    ("Conv", {"group": 2}, (6, 2, 3), (1, 4, 7), 4, 6),
    ("Conv", {"group": 4}, (4, 1, 3, 3), (1, 4, 5, 5), 4, 4),
    ("ConvTranspose", {}, (4, 6, 2, 2), (1, 4, 5, 5), 4, 6),
    ("ConvTranspose", {"group": 2}, (4, 3, 2, 2), (1, 4, 5, 5), 4, 6),
    ("Gemm", {}, (4, 6), (3, 4), 4, 6),
    ("Gemm", {"transB": 1}, (6, 4), (3, 4), 4, 6),
    ("MatMul", {}, (4, 6), (3, 4), 4, 6),
]


@pytest.mark.parametrize(("op_type", "attributes", "shape", "fed", "inputs", "outputs"), CASES)
def test_a_factor_on_a_channel_of_the_weight_is_one_on_the_tensor(
    op_type, attributes, shape, fed, inputs, outputs
):
    rng = np.random.default_rng(0)
    weight = rng.standard_normal(shape).astype(np.float32)
    x = rng.standard_normal(fed).astype(np.float32)

    def compute(weight, x):
        product = node(op_type, ["x", "w"], ["y"], name="product", **attributes)
        return run(build([product], {"x": list(fed)}, {"y": None}, {"w": weight}), {"x": x})[0]

    linear = LinearNode(ir.node(op_type, [ir.Value(), ir.Value()], attributes), weight)
    assert (linear.in_channels, linear.out_channels) == (inputs, outputs)
    assert linear.is_well_formed
    assert linear.is_depthwise == (attributes.get("group") == 4)
    out_factor, in_factor = rng.uniform(0.5, 2, outputs), rng.uniform(0.5, 2, inputs)
    scaled = weight.copy()
    view = linear.by_channel(scaled)
    view *= out_factor.reshape(view.shape[0], -1, 1, 1)
    view *= in_factor.reshape(view.shape[0], 1, -1, 1)
    behind = np.expand_dims(out_factor, tuple(range(1, len(fed) - 1)))
    before = np.expand_dims(in_factor, tuple(range(1, len(fed) - 1)))
    expected = behind * compute(weight, (before * x).astype(np.float32))
    np.testing.assert_allclose(compute(scaled, x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("op_type", "shape"),
    [("Conv", (6, 4)), ("Conv", (5, 2, 3)), ("Gemm", (0, 4)), ("MatMul", (4,))],
)
def test_weights_that_their_op_cannot_take_are_told(op_type, shape):
    attributes = {"group": 2} if op_type == "Conv" else {}
    made = ir.node(op_type, [ir.Value(), ir.Value()], attributes)
    assert not LinearNode(made, np.zeros(shape)).is_well_formed


def test_a_transposed_convolution_has_its_outputs_second():
    node = ir.node("ConvTranspose", [ir.Value(name="x"), ir.Value(name="w")])
    weight = np.zeros((4, 8, 3, 3))
    assert LinearNode(node, weight).by_channel(weight).shape == (1, 8, 4, 9)
