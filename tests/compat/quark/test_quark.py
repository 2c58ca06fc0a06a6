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
        (AutoMixprecisionConfig(U8S8, metric_threshold=0.1), "bitwright.tune searches by yours"),
        (AutoMixprecisionConfig([U8S8, A16]), "searches for the best of them"),
        (AutoMixprecisionConfig(A16, subgraph_json="parts.json"), "reads no subgraph_json"),
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


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError):
        quark.NoSuchThing  # noqa: B018


def test_functions_have_quark_s_defaults():
    with pytest.raises(RecipeError, match="Did you mean 'per_channel'"):
        quark.quantize_static(make_cnn(), per_chanel=True)
