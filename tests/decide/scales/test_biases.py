import msgspec
import numpy as np
import onnx_ir as ir
import pytest
from support.models import build, constants_of, make_cnn, make_samples, node, weight
from support.plans import edited

import bitwright
from bitwright import load_recipe
from bitwright.decide.scales.biases import fit_biases


def shifted(changes, amount):
    """Return a plan that shifts every bias by an amount, and the same after it was fitted."""
    model = make_cnn()
    recipe = load_recipe("int8").replace(bias_correction="fast", **changes)
    plan = bitwright.make_plan(model, data=make_samples(model, 4), recipe=recipe, progress=False)
    float_model = ir.from_proto(model)
    for name, shift in plan.bias_shifts.items():
        value = float_model.graph.initializers[name]
        value.const_value = ir.tensor(value.const_value.numpy() + np.float32(amount), name=name)
        plan = edited(plan, bias_shifts={name: [amount] * len(shift)})
    return plan, fit_biases(float_model, plan), float_model


def biases(plan):
    return {key: e for key, e in plan.tensors.items() if e.tensor in plan.bias_shifts}


def test_an_int32_bias_has_room_for_any_shift():
    plan, fitted, _ = shifted({}, 100.0)
    assert biases(plan)
    assert fitted is plan


@pytest.mark.parametrize("changes", [{"bias": "weight"}, {"bias": "int16", "format": "extended"}])
def test_what_a_narrow_bias_holds_after_its_shift_is_not_clipped(changes):
    plan, fitted, model = shifted(changes, 1000.0)
    assert biases(fitted).keys() == biases(plan).keys()
    for key, entry in biases(fitted).items():
        found, before = fitted.parameters(key), plan.parameters(key)
        most = np.abs(model.graph.initializers[entry.tensor].const_value.numpy()).max()
        assert np.max(found.scale) * found.qtype.highest >= most * 0.999
        assert np.max(before.scale) * before.qtype.highest < most


def test_what_is_not_shifted_stays_as_it_was():
    plan, fitted, _ = shifted({"bias": "weight"}, 1000.0)
    others = {key: e for key, e in plan.tensors.items() if key not in biases(plan)}
    assert others
    assert all(fitted.tensors[key] == entry for key, entry in others.items())
    assert msgspec.structs.replace(fitted, tensors=plan.tensors) == plan


def test_a_weight_of_another_type_is_widened_for_its_bias_too():
    """16 bits times 16 bits: at the product's scale int32 ends near 3, and the bias is 9."""
    gemm = node("Gemm", ["x", "w", "b"], ["y"], name="gemm")
    constants = {"w": weight(8, 4), "b": np.array([9, -9, 0.5, 1], np.float32)}
    model = build([gemm], {"x": [1, 8]}, {"y": [1, 4]}, constants, opset=21, ir_version=10)
    samples = make_samples(model)
    wide = bitwright.Override(qtype="int16")
    recipe = bitwright.Recipe(activation="uint16", weight="int8", overrides={"w": wide})
    made = bitwright.quantize(model, data=samples, recipe=recipe)
    assert made.plan.tensors["w"].qtype.name == "int16"
    stored = constants_of(made.to_proto())
    bias = stored["b_quantized"] * stored["b_quantized_scale"].astype(np.float64)
    np.testing.assert_allclose(bias, constants["b"], rtol=1e-4)


# Float biases, which the runtime stores in int32 whether they fit or not ---------------------

PRODUCTS = {
    "Gemm": [node("Gemm", ["x", "w", "b"], ["y"], name="op")],
    "MatMul": [
        node("MatMul", ["x", "w"], ["m"], name="op"),
        node("Add", ["m", "b"], ["y"], name="add"),
    ],
}


def widened(op, *, bias=100, size=(4,), **fields):
    """Return whether the scale of a tiny weight was enlarged for a large bias that stays float."""
    constants = {"w": weight(8, 4) * 1e-6, "b": np.full(size, bias, np.float32)}
    model = build(PRODUCTS[op], {"x": [1, 8]}, {"y": [1, 4]}, constants, opset=21, ir_version=10)
    recipe = bitwright.Recipe(quantize_bias=False, **fields)
    plan = bitwright.make_plan(model, data=make_samples(model), recipe=recipe, progress=False)
    return "widened for the bias" in plan.tensors["w"].method


@pytest.mark.parametrize("op", PRODUCTS)
@pytest.mark.parametrize("per_channel", [False, True])
def test_a_weight_is_widened_for_a_float_bias_that_int32_cannot_hold(op, per_channel):
    fields = {"per_channel": per_channel, "select": {"op_types": ["Gemm", "MatMul"]}}
    assert widened(op, **fields)
    assert not widened(op, bias=1e-3, **fields)


@pytest.mark.parametrize(
    ("op", "fields"),
    [
        ("Gemm", {"block_size": 4}),  # no integer kernel has blocks
        ("Gemm", {"emulate": {"adjust_for_bias": False}}),
        ("Gemm", {"activation": "bfloat16", "format": "extended"}),  # not a product of integers
        ("Gemm", {"overrides": {"w": {"scale": 1e-8, "zero_point": 0}}}),
        ("MatMul", {"size": ()}),  # one number is no vector that the runtime would store
    ],
)
def test_a_weight_is_left_where_the_runtime_adds_the_bias_in_float_or_its_scale_is_given(
    op, fields
):
    assert not widened(op, **{"select": {"op_types": ["Gemm", "MatMul"]}, **fields})


def test_layers_without_a_bias_before_one_do_not_end_the_search():
    nodes = [
        node("Gemm", ["x", "first"], ["h"], name="plain"),
        node("Gemm", ["h", "w", "b"], ["y"], name="op"),
    ]
    constants = {"first": weight(8, 8), "w": weight(8, 4) * 1e-6, "b": np.full(4, 100, np.float32)}
    model = build(nodes, {"x": [1, 8]}, {"y": [1, 4]}, constants, opset=21, ir_version=10)
    recipe = bitwright.Recipe(quantize_bias=False)
    plan = bitwright.make_plan(model, data=make_samples(model), recipe=recipe, progress=False)
    assert "widened for the bias" in plan.tensors["w"].method
