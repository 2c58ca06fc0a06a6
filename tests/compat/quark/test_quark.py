"""The names of `quark.onnx`."""

from __future__ import annotations

import pytest
from onnx import TensorProto
from support.models import make_cnn
from support.quark_configs import U8S8, quantize_config

from bitwright.compat import quark
from bitwright.compat.quark import (
    AutoMixprecisionConfig,
    Int8Spec,
    Int16Spec,
    QConfig,
    QLayerConfig,
    QuarotConfig,
    UInt16Spec,
)
from bitwright.errors import RecipeError

A16 = QLayerConfig(input_tensors=UInt16Spec(), weight=Int8Spec())


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (QuarotConfig(r_matrix_dim=64), "no rotation"),
        (AutoMixprecisionConfig(data_size=100, target_op_type=["Conv"]), "needs target_layer_conf"),
        (AutoMixprecisionConfig([]), "needs target_layer_conf"),
        (AutoMixprecisionConfig(A16, subgraph_json="parts.json"), "has no subgraph_json"),
        (AutoMixprecisionConfig(A16, dual_quant_nodes=True), "has no dual_quant_nodes"),
        (
            AutoMixprecisionConfig(A16, metric_threshold=1, metric_default="l1"),
            "Known: cosine, kl, l2",
        ),
    ],
)
def test_steps_that_do_not_exist_are_refused_when_they_are_used(step, said):
    with pytest.raises(RecipeError, match=said):
        quantize_config(QConfig(global_config=U8S8, algo_config=[step]))


@pytest.mark.parametrize(
    ("step", "wide"),
    [
        (AutoMixprecisionConfig(A16), {"x", "p1", "f"}),
        (AutoMixprecisionConfig(A16, target_op_type=["Gemm"]), {"f"}),
        (AutoMixprecisionConfig(A16, exclude_layers=["conv1", "fc"]), {"p1"}),
        (AutoMixprecisionConfig({A16: ["conv1"], U8S8: []}, include_layers=["conv1"]), {"x"}),
    ],
)
def test_mixed_precision_without_a_threshold_is_for_all_candidates(step, wide):
    model = quantize_config(QConfig(global_config=U8S8, algo_config=[step]))
    widths = {
        item.input[0]: next(t.data_type for t in model.graph.initializer if t.name == item.input[2])
        for item in model.graph.node
        if item.op_type == "QuantizeLinear"
    }
    found = {name.removesuffix("_DequantizeLinear_Output") for name, kind in widths.items()
             if kind == TensorProto.UINT16}  # fmt: skip
    assert wide <= found


def wide_tensors(step, base=U8S8):
    model = quantize_config(QConfig(global_config=base, algo_config=[step]))
    types = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    return {
        node.input[0].removesuffix("_DequantizeLinear_Output")
        for node in model.graph.node
        if node.op_type == "QuantizeLinear" and types[node.input[2]] == TensorProto.UINT16
    }


def test_a_threshold_says_how_many_layers_get_other_types():
    """For quality, as few as it takes; none where it holds already, all where nothing will do."""
    every = wide_tensors(AutoMixprecisionConfig(A16))
    quality = {"metric_default": "sqnr", "metric_optimize_object": "quality"}
    assert not wide_tensors(AutoMixprecisionConfig(A16, metric_threshold=-1, **quality))
    assert wide_tensors(AutoMixprecisionConfig(A16, metric_threshold=-500, **quality)) == every
    assert not wide_tensors(AutoMixprecisionConfig(A16, metric_threshold=None, **quality))


def test_for_speed_layers_are_narrowed_as_long_as_the_threshold_holds():
    wide = wide_tensors(AutoMixprecisionConfig(U8S8, metric_threshold=-500.0), base=A16)
    all_narrow = wide_tensors(AutoMixprecisionConfig(U8S8, metric_threshold=1e9), base=A16)
    assert all_narrow < wide  # beyond the threshold as it is: nothing is narrowed


def test_of_several_configurations_each_layer_gets_the_one_that_loses_least():
    wide = QLayerConfig(input_tensors=UInt16Spec(), weight=Int16Spec())
    several = wide_tensors(AutoMixprecisionConfig([U8S8, wide]))
    assert set() < several <= wide_tensors(AutoMixprecisionConfig(wide))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError):
        quark.NoSuchThing  # noqa: B018


def test_functions_have_quark_s_defaults():
    with pytest.raises(RecipeError, match="Did you mean 'per_channel'"):
        quark.quantize_static(make_cnn(), per_chanel=True)
