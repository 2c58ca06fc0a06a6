"""Options that rewrite the float model: what each changes in the model written."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from support.models import (
    build,
    dequantizer_before,
    info,
    make_cnn,
    make_samples,
    make_transformer,
    node,
    normal,
    ops,
    quality,
    weight,
)
from support.vai_q_onnx import (
    activation_model,
    conv,
    image_model,
    on_npu,
    option,
    quantize_vai,
)

from bitwright.compat.vai_q_onnx.options import read_options
from bitwright.errors import RecipeError

NORM = {name: np.abs(normal(3, seed=i)) + np.float32(0.5) for i, name in enumerate("gbmv")}


@option("RemoveInputInit")
def test_initializers_among_the_inputs_become_constants_or_stay():
    model = make_cnn()
    model.graph.input.append(info("w1", [8, 3, 3, 3]))
    made = quantize_vai(model, {"RemoveInputInit": True})
    assert [value.name for value in made.graph.input] == ["x"]
    kept = quantize_vai(model, {"RemoveInputInit": False})
    assert [value.name for value in kept.graph.input] == ["x", "w1"]
    assert dequantizer_before(kept, "conv1", 1) is None
    assert dequantizer_before(kept, "conv2", 1) is not None


@option("FoldBatchNorm", "SimplifyModel", "FillAllValueInfo", "CopyBiasInit", "TmpDir")
@option("QuantizeFP16", "UseFP32Scale", "RefineBlockAxis", "BF16WithClip")
@option("AlignTranspose", "AlignReshape", "LWPUseHistogram", "CLEBalanceMethod")
def test_what_happens_anyway_may_be_asked_for(tmp_path):
    switches = (
        "FoldBatchNorm SimplifyModel FillAllValueInfo QuantizeFP16 UseFP32Scale RefineBlockAxis "
        "AlignTranspose AlignReshape LWPUseHistogram BF16WithClip"
    ).split()
    asked = {**dict.fromkeys(switches, True), "CLEBalanceMethod": "max", "TmpDir": tmp_path}
    model = make_cnn()
    assert quantize_vai(model, {**asked, "CopyBiasInit": ["Conv"]}) == quantize_vai(model)
    with pytest.warns(UserWarning, match="SimplifyModel' has no effect: optimize_model=False"):
        assert quantize_vai(model, {"SimplifyModel": False}) == quantize_vai(model)
    for key in set(switches) - {"SimplifyModel"}:
        with pytest.raises(RecipeError, match=f"{key}' must be True, not False: .+"):
            read_options({key: False})


@option("AlignEltwiseQuantType")
def test_constants_of_sums_have_the_type_of_activations_or_of_weights():
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[1, 4] x) => (float[1, 4] y) <float[4] one = {1.0, 2.0, 3.0, 4.0}> {
            y = Add(x, one)
        }
    """)
    kinds = []
    for aligned in (True, False):
        made = quantize_vai(model, {"AlignEltwiseQuantType": aligned})
        types = {tensor.name: tensor.data_type for tensor in made.graph.initializer}
        kinds.append(types["one_quantized"])
    assert kinds == [onnx.TensorProto.UINT8, onnx.TensorProto.INT8]


@option("ConvertOpsetVersion")
def test_a_model_is_raised_to_an_opset_before_it_is_quantized():
    made = quantize_vai(make_cnn(opset=17), {"ConvertOpsetVersion": 20})
    assert {entry.version for entry in made.opset_import if entry.domain == ""} == {20}


@option("SkipPreprocess")
def test_without_preprocessing_the_graph_stays_as_it_was():
    norm = node("BatchNormalization", ["c", "g", "b", "m", "v"], ["y"], name="bn")
    model = image_model(
        conv(["x", "w"], "c", "conv"), norm, constants={"w": weight(3, 3, 1, 1), **NORM}
    )
    assert "BatchNormalization" not in ops(quantize_vai(model))
    assert ops(quantize_vai(model, {"SkipPreprocess": True}))["BatchNormalization"] == 1
    assert ops(on_npu(model, {"SkipPreprocess": True}))["BatchNormalization"] == 1


@option("FuseGelu", "FuseLayerNorm")
def test_written_out_operators_become_one():
    model = make_transformer()
    parts = read_options({"FuseGelu": True, "FuseLayerNorm": True})
    assert parts.rewrite == {"fuse_gelu": True, "fuse_layer_norm": True}
    made = quantize_vai(model, {"FuseGelu": True, "FuseLayerNorm": True})
    assert quality(model, made, make_samples(model)) > 20


@option("SaveTensorHistFig", "EvalMetrics", "EvalDataReader")
@option("CalibPassthroughOpTypes", "MinMSEModeFloatScale")
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("SaveTensorHistFig", True),
        ("EvalMetrics", ["COS"]),
        ("EvalDataReader", []),
        ("CalibPassthroughOpTypes", ["MaxPool"]),
        ("MinMSEModeFloatScale", "All"),
    ],
)
def test_what_changes_nothing_in_the_model_is_warned_of(key, value):
    with pytest.warns(UserWarning, match=f"'{key}' has no effect: .+"):
        assert read_options({key: value}) == read_options({})


@option("FixShapes")
def test_shapes_of_inputs_are_fixed():
    for asked in ("x:[1, 3, 12, 12]", {"x": [1, 3, 12, 12]}):
        samples = make_samples(make_cnn())
        made = quantize_vai(make_cnn(batch="batch"), {"FixShapes": asked}, samples=samples)
        shape = made.graph.input[0].type.tensor_type.shape
        assert [dim.dim_value for dim in shape.dim] == [1, 3, 12, 12]
    with pytest.raises(RecipeError, match="FixShapes' is like"):
        read_options({"FixShapes": "x=1"})


REWRITES = {
    "ConvertBNToConv": (
        image_model(
            node("BatchNormalization", ["x", "g", "b", "m", "v"], ["n"], name="norm"),
            node("Relu", ["n"], ["r"], name="relu"),
            conv(["r", "w"], "y", "conv"),
            constants={**NORM, "w": weight(4, 3, 1, 1)},
        ),
        "BatchNormalization",
    ),
    "ConvertReduceMeanToGlobalAvgPool": (
        image_model(
            conv(["x", "w"], "c", "conv"),
            node("ReduceMean", ["c"], ["y"], name="mean", axes=[2, 3]),
            constants={"w": weight(4, 3, 1, 1)},
        ),
        "ReduceMean",
    ),
    "ConvertSplitToSlice": (
        image_model(
            conv(["x", "w"], "c", "conv"),
            node("Split", ["c"], ["s", "t"], name="split", axis=1),
            node("Add", ["s", "t"], ["y"], name="sum"),
            constants={"w": weight(4, 3, 1, 1)},
        ),
        "Split",
    ),
}


@option(*REWRITES)
@pytest.mark.parametrize("key", REWRITES)
def test_ops_are_rewritten_for_the_npu(key):
    model, op_type = REWRITES[key]
    assert ops(on_npu(model))[op_type] == 0
    assert ops(on_npu(model, {key: False}))[op_type] == 1
    assert ops(quantize_vai(model))[op_type] == 1
    assert ops(quantize_vai(model, {key: True}))[op_type] == 0


@option("SplitLargeKernelPool")
def test_large_pools_are_split():
    model = image_model(
        conv(["x", "w"], "c", "conv"),
        node("GlobalAveragePool", ["c"], ["y"], name="pool"),
        constants={"w": weight(4, 3, 1, 1)},
        shape=(1, 3, 32, 32),
    )
    assert ops(on_npu(model))["AveragePool"] == 1
    assert ops(on_npu(model, {"SplitLargeKernelPool": False}))["AveragePool"] == 0


def instance_norm_model():
    ones = np.ones((1, 4, 1, 1), np.float32)
    constants = {
        "w": weight(4, 3, 1, 1),
        "e": np.float32(1e-5).reshape(1),
        "g": 2 * ones,
        "b": 0.5 * ones,
    }
    return image_model(
        conv(["x", "w"], "c", "conv"),
        node("GlobalAveragePool", ["c"], ["mean"], name="n1"),
        node("Sub", ["c", "mean"], ["d"], name="n2"),
        node("Mul", ["d", "d"], ["sq"], name="n3"),
        node("GlobalAveragePool", ["sq"], ["var"], name="n4"),
        node("Add", ["var", "e"], ["ve"], name="n5"),
        node("Sqrt", ["ve"], ["sd"], name="n6"),
        node("Reciprocal", ["sd"], ["r"], name="n7"),
        node("Mul", ["r", "g"], ["rg"], name="n8"),
        node("Mul", ["c", "rg"], ["left"], name="n9"),
        node("Mul", ["mean", "rg"], ["mrg"], name="n10"),
        node("Sub", ["b", "mrg"], ["right"], name="n11"),
        node("Add", ["left", "right"], ["y"], name="n12"),
        constants=constants,
    )


def l2_norm_model():
    return build(
        [
            node("MatMul", ["x", "w"], ["m"], name="mm"),
            node("Mul", ["m", "m"], ["sq"], name="n1"),
            node("ReduceSum", ["sq", "axes"], ["s"], name="n2", keepdims=1),
            node("Max", ["s", "e"], ["t"], name="n3"),
            node("Sqrt", ["t"], ["q"], name="n4"),
            node("Reciprocal", ["q"], ["r"], name="n5"),
            node("Mul", ["m", "r"], ["y"], name="n6"),
        ],
        {"x": [4, 8]},
        {"y": [4, 8]},
        {"w": weight(8, 8), "axes": np.array([-1]), "e": np.float32(1e-12).reshape(1)},
    )


@option("FuseInstanceNorm", "FuseL2Norm")
@pytest.mark.parametrize(
    ("key", "make", "op_type"),
    [
        ("FuseInstanceNorm", instance_norm_model, "InstanceNormalization"),
        ("FuseL2Norm", l2_norm_model, "LpNormalization"),
    ],
)
def test_pieces_of_a_norm_become_one(key, make, op_type):
    model = make()
    assert ops(on_npu(model))[op_type] == 0
    made = on_npu(model, {key: True})
    assert ops(made)[op_type] == 1
    assert quality(model, made, make_samples(model)) > 20


@option("ConvertClipToRelu", "ReplaceClip6Relu")
@pytest.mark.parametrize("key", ["ConvertClipToRelu", "ReplaceClip6Relu"])
def test_clips_from_zero_become_relus(key):
    model = activation_model("Clip")
    assert ops(on_npu(model))["Clip"] == 1
    made = on_npu(model, {key: True})
    assert ops(made)["Clip"] == 0 and ops(made)["Relu"] == 1
