"""Resize computes what Upsample computed."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from support.models import build, node, normal, ops, run

from bitwright.compat.onnxruntime.fusions import ReplaceUpsampleWithResize
from bitwright.compat.onnxruntime.onnx_model import ONNXModel


@pytest.mark.parametrize("opset", [7, 9])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("factor", [2.0, 1.5])
def test_the_runtime_gives_the_same_for_both(opset, mode, factor):
    scales = np.array([1, 1, factor, 2], np.float32)
    given = {"scales": scales.tolist()} if opset == 7 else {}
    inputs = ["x"] if opset == 7 else ["x", "s"]
    upsample = node("Upsample", inputs, ["y"], name="up", mode=mode, **given)
    relu = node("Relu", ["y"], ["z"], name="relu")
    constants = {} if opset == 7 else {"s": scales}
    model = build(
        [upsample, relu],
        {"x": [1, 2, 4, 4]},
        {"z": [1, 2, None, None]},
        constants,
        opset=opset,
        ir_version=4,
    )
    x = normal(1, 2, 4, 4)
    before = run(model, {"x": x})[0]
    assert ReplaceUpsampleWithResize(ONNXModel(model), opset).apply() is True
    model.opset_import[0].version = 11
    onnx.checker.check_model(model)
    assert ops(model)["Resize"] == 1
    np.testing.assert_allclose(run(model, {"x": x})[0], before, atol=1e-6)


def test_scales_of_the_first_opset_are_attributes_of_their_own():
    upsample = node("Upsample", ["x"], ["y"], mode="bilinear", height_scale=2.0, width_scale=3.0)
    model = build([upsample], {"x": [1, 1, 2, 2]}, {"y": [1, 1, None, None]}, opset=6, ir_version=4)
    assert ReplaceUpsampleWithResize(ONNXModel(model), 6).apply()
    model.opset_import[0].version = 11
    assert run(model, {"x": normal(1, 1, 2, 2)})[0].shape == (1, 1, 4, 6)


def test_a_model_without_upsample_stays():
    model = build([node("Relu", ["x"], ["y"])], {"x": [4]}, {"y": [4]})
    assert ReplaceUpsampleWithResize(ONNXModel(model), 10).apply() is False
