"""What `inspect` tells of a model."""

from __future__ import annotations

from collections import Counter

import onnx_ir as ir
import pytest
from support.models import make_cnn, make_mlp, make_samples

import bitwright
from bitwright.assess.inspection import show_type
from bitwright.graph.decisions import Decisions
from bitwright.plan import NodePlan, QuantPlan
from bitwright.recipe import Recipe


def test_a_float_model_is_told_as_such():
    facts = bitwright.inspect(make_cnn())
    assert not facts.is_quantized
    assert facts.ops == {
        "Conv": 2,
        "Relu": 2,
        "Add": 1,
        "Flatten": 1,
        "Gemm": 1,
        "GlobalAveragePool": 1,
        "MaxPool": 1,
    }
    assert facts.inputs == ["x: float[1,3,12,12]"]
    assert facts.outputs == ["y: float[1,10]"]
    assert facts.opsets == {"": 17}
    assert facts.weights["float"]["tensors"] == 6


def test_parameters_and_bytes_are_counted():
    facts = bitwright.inspect(make_mlp())
    assert facts.parameters == 16 * 16 + 16 + 16 * 4
    assert facts.bytes == 4 * facts.parameters


@pytest.mark.parametrize(
    ("fields", "types", "scales"),
    [
        ({}, {"uint8", "int8", "int32"}, {"per tensor"}),
        ({"per_channel": True}, {"uint8", "int8", "int32"}, {"per tensor", "per channel"}),
        (
            {"weight": "int4", "block_size": 4, "activation": "uint16"},
            {"uint16", "int4", "int32"},
            {"per tensor", "per block"},
        ),
    ],
    ids=["per-tensor", "per-channel", "blocks"],
)
def test_a_quantized_model_says_what_is_quantized_and_how(fields, types, scales):
    model = make_cnn()
    recipe = Recipe.from_mapping({"name": "test", **fields})
    result = bitwright.quantize(model, data=make_samples(model), recipe=recipe)
    facts = bitwright.inspect(result.model)
    assert facts.is_quantized
    assert set(facts.quantized_types) == types
    assert set(facts.scales) == scales
    assert facts.quantized_ops["Conv"] == 2
    assert facts.metadata["bitwright.version"] == bitwright.__version__
    assert facts.to_dict()["is_quantized"] is True


def test_inspecting_a_file_and_a_model_in_memory_agree(tmp_path):
    import onnx

    onnx.save(make_cnn(), tmp_path / "m.onnx")
    assert bitwright.inspect(tmp_path / "m.onnx") == bitwright.inspect(make_cnn())


POOLS = {"GlobalAveragePool": 1, "MaxPool": 1}


@pytest.mark.parametrize(
    ("recipe", "quantized"),
    [
        ("int8", {"Conv": 7, "Add": 2, "Gemm": 1, "Flatten": 1, **POOLS}),
        # Flatten reads dequantized values, and is none of the hardware's ops.
        ("xint8", {"Conv": 7, "Relu": 7, "Add": 2, "Gemm": 1, **POOLS}),
        (
            {"base": "int8", "format": "qoperator"},
            {"QLinearConv": 7, "QLinearAdd": 2, "QGemm": 1, "QLinearGlobalAveragePool": 1,
             "Flatten": 1, "MaxPool": 1},
        ),
        ("int8-dynamic", {"ConvInteger": 7, "MatMul": 1}),
        ("int8-weights", {"MatMulNBits": 1}),
    ],
)  # fmt: skip
def test_inspect_counts_what_quantize_counts(recipe, quantized):
    demo = bitwright.load_demo()
    data, force = demo.calibration[:8], recipe == "int8-dynamic"
    result = bitwright.quantize(demo.model_path, data=data, recipe=recipe, force_dynamic=force)
    facts = bitwright.inspect(result.model)
    assert facts.quantized_ops == quantized
    left = Counter(node.op for node in result.plan.nodes.values() if not node.quantized)
    assert facts.left_float == result.plan.decisions().left_float
    assert facts.float_ops == left


def test_metadata_that_somebody_else_wrote_is_ignored():
    model = bitwright.quantize(make_cnn(), data=make_samples(make_cnn()), purpose="size").model
    for text in ("", "[]", '{"quantized": 1}', '{"quantized": {}, "left_float": {"Conv": 1}}'):
        model.metadata_props["bitwright.nodes"] = text
        facts = bitwright.inspect(model)
        assert facts.float_ops == {}
        assert facts.quantized_ops["Conv"] == 2


def test_types_are_shown_with_open_sizes():
    assert show_type(ir.val("x", ir.DataType.FLOAT, ["n", 3])) == "float[n,3]"


def test_reasons_in_a_model_stay_a_few_kilobytes_however_many_there_are():
    nodes = {
        f"n{n}": NodePlan(op="Conv", action="float", reason=f"reason {n % 5000}")
        for n in range(10_000)
    }
    plan = QuantPlan(recipe=Recipe(), fingerprint="", tensors={}, nodes=nodes)
    model = ir.from_proto(make_cnn())
    plan.decisions().write(model)
    assert sum(map(len, model.metadata_props.values())) < 1000
    kept = Decisions.read(model).left_float["Conv"]
    assert sum(kept.values()) == 10_000 and kept["other reasons, which the plan tells"] == 9984
