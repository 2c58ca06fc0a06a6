"""Options that simulate the NPU's operators: what each changes in the model written."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from support.models import (
    constants_of,
    make_samples,
    node,
    nodes_by_name,
    ops,
    quality,
)
from support.vai_q_onnx import (
    behind_conv,
    on_npu,
    option,
    quantize_vai,
)


def attributes_of(model, op_type):
    found = next(n for n in model.graph.node if n.op_type == op_type)
    return {a.name: helper.get_attribute_value(a) for a in found.attribute}


@option("SimulateDPU", "ConvertLeakyReluToDPUVersion")
def test_leaky_relus_have_slopes_in_256ths():
    model = behind_conv(node("LeakyRelu", ["c"], ["y"], name="act", alpha=0.1))
    assert attributes_of(on_npu(model), "LeakyRelu")["alpha"] == 26 / 256
    for options in ({"SimulateDPU": False}, {"ConvertLeakyReluToDPUVersion": False}):
        assert attributes_of(on_npu(model, options), "LeakyRelu")["alpha"] == pytest.approx(0.1)
    # Without the NPU nothing stands in for anything, unless asked for.
    assert attributes_of(quantize_vai(model), "LeakyRelu")["alpha"] == pytest.approx(0.1)
    made = quantize_vai(model, {"SimulateDPU": True})
    assert attributes_of(made, "LeakyRelu")["alpha"] == 26 / 256


@option("ConvertSigmoidToHardSigmoid", "ConvertHardSigmoidToDPUVersion")
def test_sigmoids_become_hard_and_hard_ones_are_scaled():
    model = behind_conv(node("Sigmoid", ["c"], ["y"], name="act"))
    made = on_npu(model)
    assert ops(made)["HardSigmoid"] == 1 and ops(made)["Mul"] == 1
    assert ops(on_npu(model, {"ConvertSigmoidToHardSigmoid": False}))["Sigmoid"] == 1
    made = on_npu(model, {"ConvertHardSigmoidToDPUVersion": False})
    assert ops(made)["HardSigmoid"] == 1 and ops(made)["Mul"] == 0


@option("ConvertAvgPoolToDPUVersion")
def test_average_pools_are_scaled():
    pool = node("AveragePool", ["c"], ["y"], name="pool", kernel_shape=[3, 3])
    model = behind_conv(pool)
    assert ops(on_npu(model))["Mul"] == 1
    assert ops(on_npu(model, {"ConvertAvgPoolToDPUVersion": False}))["Mul"] == 0


@option("ConvertReduceMeanToDPUVersion")
def test_means_are_scaled():
    model = behind_conv(node("ReduceMean", ["c"], ["y"], name="mean", axes=[2, 3]))
    options = {"ConvertReduceMeanToGlobalAvgPool": False}
    assert ops(on_npu(model, options))["Mul"] == 1
    options["ConvertReduceMeanToDPUVersion"] = False
    assert ops(on_npu(model, options))["Mul"] == 0


@option("ConvertSoftmaxToDPUVersion", "ConvertInstanceNormToDPUVersion")
@pytest.mark.parametrize(
    ("key", "nodes", "constants"),
    [
        ("ConvertSoftmaxToDPUVersion", node("Softmax", ["c"], ["y"], name="op", axis=1), {}),
        (
            "ConvertInstanceNormToDPUVersion",
            node("InstanceNormalization", ["c", "g", "b"], ["y"], name="op"),
            {"g": np.ones(4, np.float32), "b": np.zeros(4, np.float32)},
        ),
    ],
)
def test_softmax_and_instance_norm_in_bfloat16_steps(key, nodes, constants):
    model = behind_conv(nodes, constants=constants)
    plain, made = on_npu(model), on_npu(model, {key: True})
    assert ops(plain)[nodes.op_type] == 1 and ops(made)[nodes.op_type] == 0
    assert quality(model, made, make_samples(model)) > 15


@option("ConvertClipToDPUVersion")
def test_bounds_of_a_clip_become_integers():
    constants = {"low": np.float32(-1.4), "high": np.float32(2.6)}
    model = behind_conv(node("Clip", ["c", "low", "high"], ["y"], name="clip"), constants=constants)

    def bounds(made):
        return [constants_of(made)[n].item() for n in nodes_by_name(made)["clip"].input[1:]]

    assert bounds(on_npu(model)) == pytest.approx([-1.4, 2.6])
    assert bounds(on_npu(model, {"ConvertClipToDPUVersion": True})) == [-1, 3]
