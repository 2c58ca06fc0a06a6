"""Convolutions get the attributes that they left out."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from support.models import build, make_cnn, make_samples, node, weight
from support.rewriting import assert_same, rewrite

import bitwright
from bitwright.prepare import write_conv_attributes


def attributes_of(model, name="conv"):
    (found,) = [n for n in model.graph.node if n.name == name]
    return {a.name: onnx.helper.get_attribute_value(a) for a in found.attribute}


def model_of(op_type="Conv", rank=2, **attributes):
    conv = node(op_type, ["x", "w"], ["y"], name="conv", **attributes)
    kernel = [3, 2, 2][:rank]
    shape = [1, 4, *[8] * rank]
    return build([conv], {"x": shape}, {"y": None}, {"w": weight(4, 4, *kernel)})


@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_all_five_are_written(op_type, rank):
    proto = model_of(op_type, rank)
    model, count, _ = rewrite(proto, write_conv_attributes)
    assert count == 1
    assert_same(proto, model)
    assert attributes_of(ir.to_proto(model)) == {
        "kernel_shape": [3, 2, 2][:rank],
        "strides": [1] * rank,
        "dilations": [1] * rank,
        "group": 1,
        "pads": [0] * 2 * rank,
    }


def test_what_is_there_stays_and_auto_pad_excludes_pads():
    proto = model_of(strides=[2, 2], auto_pad="SAME_UPPER")
    model, count, _ = rewrite(proto, write_conv_attributes)
    found = attributes_of(ir.to_proto(model))
    assert count == 1 and found["strides"] == [2, 2] and "pads" not in found
    assert_same(proto, model)
    assert rewrite(ir.to_proto(model), write_conv_attributes)[1] == 0


def test_a_weight_of_no_fixed_shape_is_noted():
    nodes = [node("Conv", ["x", "w"], ["y"], name="conv")]
    proto = build(nodes, {"x": [1, 4, 8, 8], "w": [4, 4, "k", "k"]}, {"y": None})
    _, count, notes = rewrite(proto, write_conv_attributes)
    assert count == 0 and "no fixed shape" in notes[0]


def test_models_for_the_npu_have_them():
    model = make_cnn()
    made = bitwright.quantize(model, data=make_samples(model), target="npu-cnn").to_proto()
    assert {"kernel_shape", "strides", "pads", "dilations", "group"} <= attributes_of(
        made, "conv1"
    ).keys()
    assert np.array_equal(attributes_of(made, "conv1")["pads"], [1, 1, 1, 1])
