"""Products inside ONNX Runtime's fused operators come out, and the function stays."""

import numpy as np
import onnx_ir as ir
import pytest
from support.models import build, constants_of, info, node, normal, run, weight
from support.rewriting import op_types, rewrite

import bitwright
from bitwright.prepare import split_fused_products

DOMAIN = {"domain": "com.microsoft"}


def with_domain(model):
    model.opset_import.add(domain="com.microsoft", version=1)
    return model


def fused(shape=(64, 32), **attributes):
    product = node("FusedMatMul", ["x", "w"], ["y"], name="p", **attributes, **DOMAIN)
    return with_domain(
        build([product], {"x": [2, 3, 64]}, {"y": [2, 3, 32]}, {"w": weight(*shape)}, opset=21)
    )


def attention(*, mask=False, past=False, **attributes):
    inputs = [info("x", [2, 5, 64])]
    names = ["x", "w", "b"]
    if mask:
        names.append("mask")
        inputs.append(info("mask", [2, 5], 6))
    if past:
        names += [""] * (4 - len(names)) + ["past"]
        inputs.append(info("past", [2, 2, 4, 3, 16]))
    layer = node("Attention", names, ["y"], name="attn", num_heads=4, **attributes, **DOMAIN)
    constants = {"w": weight(64, 192), "b": normal(192, size=0.1)}
    return with_domain(build([layer], inputs, {"y": [2, 5, 64]}, constants, opset=21))


def assert_same(model, work, feeds):
    np.testing.assert_allclose(
        run(ir.to_proto(work), feeds)[0], run(model, feeds)[0], rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    "model",
    [fused(), fused(alpha=0.25), fused((32, 64), transB=1), fused((32, 64), transB=1, alpha=3.0)],
)
def test_a_fused_product_is_a_product_and_a_factor(model):
    work, count, notes = rewrite(model, split_fused_products)
    assert (count, notes) == (1, [])
    assert op_types(work)["MatMul"] == 1 and op_types(work)["FusedMatMul"] == 0
    assert_same(model, work, {"x": normal(2, 3, 64)})


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("attributes", [{}, {"unidirectional": 1}, {"scale": 0.5}])
def test_attention_is_a_product_and_heads(mask, attributes):
    model = attention(mask=mask, **attributes)
    work, count, _ = rewrite(model, split_fused_products)
    assert count == 1
    assert op_types(work) == {"MatMul": 1, "Split": 1, "MultiHeadAttention": 1}
    feeds = {"x": normal(2, 5, 64)}
    if mask:
        feeds["mask"] = np.array([[1, 1, 1, 1, 0], [1, 1, 1, 0, 0]], np.int32)
    assert_same(model, work, feeds)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (attention(past=True), "Attention 'attn' keeps its float weight: its past"),
        (fused((3, 32), transA=1), "FusedMatMul 'p' keeps its float weight: it has transA"),
    ],
)
def test_what_has_no_other_form_stays_with_a_reason(model, reason):
    _, count, notes = rewrite(model, split_fused_products, infer=False)
    assert count == 0
    assert notes[0].startswith(reason)


@pytest.mark.parametrize(
    "model", [fused(alpha=0.25), fused((32, 64), transB=1), attention(mask=True)]
)
def test_their_weights_are_stored_in_blocks(model):
    result = bitwright.quantize(model, recipe={"base": "int4-rtn", "weights": {"bits": 8}})
    assert result.quantized == {"MatMul": 1}
    assert "w" not in constants_of(result.to_proto())
    feeds = {"x": normal(*(2, 3, 64) if len(model.graph.input) == 1 else (2, 5, 64))}
    if len(model.graph.input) > 1:
        feeds["mask"] = np.ones((2, 5), np.int32)
    wanted, found = run(model, feeds)[0], run(result.to_proto(), feeds)[0]
    np.testing.assert_allclose(found, wanted, atol=0.03 * np.abs(wanted).max())
