"""Every reason is shown on a model with just this flaw, as the installed runtime optimizes it.

So a rule that the runtime gives up fails here: the node would be fused, and nothing found.
"""

from __future__ import annotations

import numpy as np
import pytest
from support.pair_models import make_binary, make_conv, make_product, make_unary

from bitwright import graph
from bitwright.decide.ops.unfused import find_unfused
from bitwright.run.optimized import optimize_model

FUSED = {
    "conv": make_conv(),
    "conv with an int32 bias": make_conv(bias="int32"),
    "conv with a float bias": make_conv(bias="float"),
    "conv with a relu at the end of its type": make_conv(activation="Relu"),
    "gemm": make_product(),
    "gemm with an int32 bias and no pair": make_product(bias="int32", paired=False),
    "matmul": make_product("MatMul"),
    "matmul without a pair": make_product("MatMul", paired=False),
    "matmul with an int32 vector and no pair": make_product("MatMul", added="int32", paired=False),
    "matmul per channel": make_product("MatMul", scale=[0.1] * 5),
    "add": make_binary("Add"),
    "add that reads a float activation": make_binary("Add", kinds=("uint8", None)),
    "concat": make_binary("Concat", axis=0),
    "sigmoid": make_unary("Sigmoid"),
    "max pool": make_unary("MaxPool", kernel_shape=[2, 2]),
    "max pool without a pair behind": make_unary("MaxPool", kernel_shape=[2, 2], paired=False),
    "reshape": make_unary("Reshape", more=[np.array([1, -1])]),
}

SIZES = [None, np.array([1, 1, 2, 2], np.float32)]

FLOAT = {
    "conv no pair": (make_conv(paired=False), "its output 'conv' has no Q/DQ pair"),
    "conv read in float": (
        make_conv(also_read=True),
        "its output 'conv' is also read in float, by 'other'",
    ),
    "conv is an output": (
        make_conv(also_output=True),
        "its output 'conv' is also an output of the model, in float",
    ),
    "conv int8 bias": (
        make_conv(bias="int8"),
        "its bias is int8, and only int32 can be added to integers",
    ),
    "conv bias scale": (
        make_conv(bias="int32", bias_scale=0.1),
        "its bias has another scale than input scale x weight scale",
    ),
    "conv relu zero point": (
        make_conv(activation="Relu", zero_point=5),
        "the Relu behind it is no part of its quantizer, whose zero point is 5 and not 0",
    ),
    "conv sigmoid": (
        make_conv(activation="Sigmoid"),
        "Sigmoid stands between it and its quantizer, and has no pair of its own",
    ),
    "conv types": (
        make_conv(result="int8"),
        "it reads and writes int8 and uint8, and its kernel wants one type",
    ),
    "conv signs": (
        make_conv(source="int8", weight="uint8", result="int8"),
        "its activations are int8 and its weight is uint8, which no kernel takes",
    ),
    "conv 16 bits": (
        make_conv(source="uint16", result="uint16"),
        "ONNX Runtime's Conv works on 8 bits only, and not on uint16",
    ),
    "gemm float bias": (
        make_product(bias="float", paired=False),
        "its bias is float and its output has no Q/DQ pair: only an int32 bias will do",
    ),
    "gemm alpha": (
        make_product(bias="int32", alpha=0.5),
        "its alpha is 0.5, and ONNX Runtime's integer Gemm has none",
    ),
    "gemm axis": (
        make_product(scale=[0.1] * 8, axis=0),
        "its weight has scales along axis 0, across which it is summed up",
    ),
    "matmul float vector": (
        make_product("MatMul", added="float", paired=False),
        "its bias is float and its output has no Q/DQ pair: only an int32 bias will do",
    ),
    "add float": (
        make_unary("Add", more=[np.ones(8, np.float32)]),
        "its input 'c0' is float: it has no Q/DQ pair",
    ),
    "add mixed": (
        make_binary("Add", kinds=("uint8", "int8")),
        "it reads and writes int8 and uint8, and its kernel wants one type",
    ),
    "concat 16 bits": (
        make_binary("Concat", kinds=("uint16", "uint16"), result="uint16", axis=0),
        "ONNX Runtime's Concat works on 8 bits only, and not on uint16",
    ),
    "tanh": (make_unary("Tanh"), "ONNX Runtime has no integer kernel for Tanh"),
    "sub": (make_binary("Sub"), "ONNX Runtime has no integer kernel for Sub"),
    "resize": (
        make_unary("Resize", more=SIZES, mode="linear"),
        "ONNX Runtime resizes integers by the nearest only, not linear",
    ),
    "max pool 16 bits": (
        make_unary("MaxPool", source="uint16", result="uint16", kernel_shape=[2, 2]),
        "ONNX Runtime's MaxPool works on 8 bits only, and not on uint16",
    ),
    "flatten scales": (
        make_unary("Flatten", scale=0.1),
        "the pairs before and behind it have the scales 0.05 and 0.1, so that it cannot pass the "
        "integers on",
    ),
}


def unfused(model, signed=True):
    return list(
        find_unfused(optimize_model(graph.load_model(model), signed_kernels=signed)).values()
    )


@pytest.mark.parametrize("name", FUSED)
def test_a_node_that_is_fused_or_was_meant_to_be_float_is_not_found(name):
    assert unfused(FUSED[name]) == []


@pytest.mark.parametrize("name", FLOAT)
def test_a_node_in_float_is_found_with_its_reason(name):
    model, reason = FLOAT[name]
    assert [found.reason for found in unfused(model)] == [reason]


def test_x86_has_uint8_kernels_that_other_types_are_turned_into():
    for name in ("conv types", "conv signs", "add mixed"):
        assert unfused(FLOAT[name][0], signed=False) == []


def test_a_node_is_called_by_its_own_name_and_op_whatever_the_runtime_made_of_it():
    (found,) = unfused(make_product("MatMul", added="float", paired=False))
    assert (found.node, found.op) == ("product", "MatMul")
    (found,) = unfused(make_conv(activation="Sigmoid"))
    assert (found.node, found.op) == ("conv", "Conv")


def test_nodes_without_names_are_told_apart():
    model = make_conv(paired=False)
    for step in model.graph.node:
        step.name = ""
    (found,) = unfused(model)
    assert found.op == "Conv"
    assert found.node.startswith("Conv")


def test_the_model_stays_as_it_is_and_nothing_stays_on_disk(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    model = graph.load_model(make_conv(paired=False))
    before = [node.name for node in model.graph]
    optimize_model(model)
    assert [node.name for node in model.graph] == before
    assert not list(tmp_path.iterdir())
