"""Operators that ONNX Runtime has and ONNX does not: accepted, converted and inferred around."""

import numpy as np
import onnx
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as runtime
from support.models import build, info, make_samples, node, normal, weight

import bitwright
from bitwright.errors import ModelError
from bitwright.graph import check_model, infer_shapes, load_model
from bitwright.graph.runtime_ops import _IN_ONNX_DOMAIN, keeps_type
from bitwright.run import Session, upgrade_opset

SKIP = "SkipSimplifiedLayerNormalization"


def normalized(*, opset=21, kind="SimplifiedLayerNormalization"):
    """A product, a norm in ONNX's domain, a product, and a norm of the runtime with a skip."""
    return build(
        [
            node("MatMul", ["x", "w"], ["p"], name="first"),
            node(kind, ["p", "scale"], ["n"], name="norm", axis=-1, epsilon=1e-5),
            node("MatMul", ["n", "w"], ["q"], name="second"),
            node(SKIP, ["q", "n", "scale"], ["y", "", "", "sum"], "skip", domain="com.microsoft"),
            node("MatMul", ["sum", "w"], ["z"], name="third"),
        ],
        [info("x", ["n", 4, 8])],
        [info("y"), info("z")],
        {"w": weight(8, 8), "scale": 1 + normal(8, seed=3, size=0.1)},
        opset=opset,
        domains=["com.microsoft"],
    )


def test_the_table_has_all_that_the_runtime_adds_to_the_domain_of_onnx():
    known = {(s.name, s.since_version) for s in onnx.defs.get_all_schemas_with_history()}
    added = {
        schema.name
        for schema in runtime.get_all_operator_schema()
        if not schema.domain and (schema.name, schema.since_version) not in known
        # Nodes that the runtime writes itself, and those of another runtime.
        if not schema.name.startswith("Memcpy") and not schema.name.endswith("_TRT")
    }
    assert added <= _IN_ONNX_DOMAIN


@pytest.mark.parametrize(
    ("kind", "opset"), [("SimplifiedLayerNormalization", 21), ("LayerNormalization", 14)]
)
def test_they_are_valid_and_what_is_behind_them_is_known(kind, opset):
    model = load_model(normalized(kind=kind, opset=opset))
    check_model(model)
    assert infer_shapes(model) is None
    for made in model.graph:
        for value in (v for v in made.outputs if v.name):
            assert value.dtype is not None and list(value.shape)[1:] == [4, 8], value.name


def test_an_operator_that_neither_has_is_still_refused():
    model = load_model(normalized(kind="LayerNormalisation"))
    with pytest.raises(ModelError, match="LayerNormalisation"):
        check_model(model)


def test_a_model_with_them_moves_to_a_newer_opset():
    model = load_model(normalized(kind="LayerNormalization", opset=14))
    sample = {"x": normal(2, 4, 8)}
    upgraded = upgrade_opset(model, 21, sample=sample)
    assert [made.domain for made in upgraded.graph] == ["", "", "", "com.microsoft", ""]
    assert set(upgraded.opset_imports) == {"", "com.microsoft"}
    found, expected = (Session(m).run(sample) for m in (upgraded, model))
    np.testing.assert_allclose(found["z"], expected["z"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("recipe", ["int8", "int8-dynamic", "int4-rtn", "int4-gptq", "int4-awq"])
def test_products_around_them_are_quantized(recipe):
    model = normalized()
    data = make_samples(model, 4)
    result = bitwright.quantize(model, recipe=recipe, data=data, progress=False)
    quantized = {
        name for name, plan in result.plan.nodes.items() if plan.action == "quantize"
    } or set(next(iter(result.plan.weights.values())).nodes)
    assert {"first", "second", "third"} <= quantized
    assert min(o.sqnr for o in bitwright.compare(model, result.model, data=data).outputs) > 10


def test_a_skip_norm_keeps_the_type_of_its_result_and_its_sum():
    kept = [index for index in range(4) if keeps_type("SkipLayerNormalization", index)]
    assert kept == [0, 3]
