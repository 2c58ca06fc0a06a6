"""MoE becomes QMoE: the error is that of the rounding, and nothing else of the node changes."""

import itertools

import msgspec
import numpy as np
import pytest
from onnx import TensorProto
from support.models import (
    build,
    constants_of,
    node,
    nodes_by_name,
    normal,
    ops,
    quality,
    retype,
    run,
    weight,
)

import bitwright
from bitwright import PlanError, Recipe, Selection
from bitwright.decide.layout import weight_only
from bitwright.recipe import AWQ, GPTQ, HQQ, AdaRound, Nearest, WeightOnly, WeightOverride

EXPERTS, HIDDEN, INNER, TOKENS = 4, 64, 96, 9


def mixture(*, biases=True, hidden=HIDDEN, third=False, **attributes):
    """A product, a router, and experts that a product reads.

    What the experts make is an output, too: where it is not, ONNX Runtime 1.31 computes a float MoE
    that does not normalize its routing wrongly.
    """
    given = {"k": 2, "activation_type": "silu", "normalize_routing_weights": 1} | attributes
    inner = INNER * (2 if given["activation_type"] == "swiglu" else 1)
    names = ["h", "r", "up", "up_bias" if biases else "", "down", "down_bias" if biases else ""]
    layers = [
        node("MatMul", ["x", "first"], ["h"], name="first"),
        node("MatMul", ["h", "router"], ["r"], name="router"),
        node(
            "MoE",
            [*names, *(["gate"] if third else [])],
            ["m"],
            name="experts",
            domain="com.microsoft",
            **given,
        ),
        node("MatMul", ["m", "last"], ["y"], name="last"),
    ]
    constants = {
        "first": weight(hidden, hidden),
        "router": weight(hidden, EXPERTS, seed=1),
        "up": normal(EXPERTS, inner, hidden, seed=2, size=0.2),
        "down": normal(EXPERTS, hidden, INNER, seed=3, size=0.2),
        "last": weight(hidden, 8, seed=4),
    }
    if biases:
        constants |= {
            "up_bias": normal(EXPERTS, inner, seed=5, size=0.1),
            "down_bias": normal(EXPERTS, hidden, seed=6, size=0.1),
        }
    if third:
        constants["gate"] = normal(EXPERTS, INNER, hidden, seed=7, size=0.2)
    return build(
        layers,
        {"x": ["t", hidden]},
        {"y": ["t", 8], "m": ["t", hidden]},
        constants,
        opset=21,
        domains=("com.microsoft",),
    )


def quantize(model, *, data=None, fine_tune=None, select=None, **weights):
    recipe = Recipe(
        mode="weight-only",
        weights=WeightOnly(**weights),
        fine_tune=fine_tune,
        select=select or Selection(op_types=("MoE",)),
    )
    return bitwright.quantize(model, data=data, recipe=recipe)


def samples(count=6):
    # Channels that go together, and of different sizes: what GPTQ lives from.
    mixing = normal(HIDDEN, HIDDEN, seed=90) * np.geomspace(0.05, 2, HIDDEN, dtype=np.float32)
    return [{"x": normal(40, HIDDEN, seed=seed) @ mixing / 8} for seed in range(count)]


def unpacked(array, bits, count):
    parts = [(array >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, -1).reshape(*array.shape[:-1], -1)[..., :count].astype(np.float64)


def stored_weight(model, places, shape):
    """Return the floats that a QMoE's bytes stand for, by its schema's words alone."""
    experts = nodes_by_name(model)["experts"]
    held = constants_of(model)
    numbers = {a.name: a.i for a in experts.attribute}
    bits, block = numbers["expert_weight_bits"], numbers.get("block_size", 0)
    codes, scales, zeros = (
        held[experts.input[p]] if p < len(experts.input) and experts.input[p] else None
        for p in places
    )
    codes = unpacked(codes, bits, shape[-1])
    per_weight = lambda a: np.repeat(a, block, -1) if block else a[..., None]  # noqa: E731
    count = shape[-1] // block if block else shape[-2]
    zero = 2.0 ** (bits - 1) if zeros is None else per_weight(unpacked(zeros, bits, count))
    return (codes - zero) * per_weight(scales.astype(np.float64))


def reference(model, x, up, down, *, normalize=True, swiglu=False, chosen=2):
    """The mixture in float64."""
    held = {name: array.astype(np.float64) for name, array in constants_of(model).items()}
    h = x.astype(np.float64) @ held["first"]
    logits = h @ held["router"]
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    out = np.zeros_like(h)
    for token, row in enumerate(h):
        best = np.argsort(-logits[token])[:chosen]
        total = chances[token, best].sum() if normalize else 1.0
        for expert in best:
            inner = up[expert] @ row + held["up_bias"][expert]
            if swiglu:
                gate, linear = np.minimum(inner[::2], 7.0), np.clip(inner[1::2], -7.0, 7.0)
                inner = gate / (1 + np.exp(-1.702 * gate)) * (linear + 1.0)
            else:
                inner = inner / (1 + np.exp(-inner))
            part = down[expert] @ inner + held["down_bias"][expert]
            out[token] += chances[token, expert] / total * part
    return out @ held["last"]


SWIGLU = {
    "activation_type": "swiglu",
    "swiglu_fusion": 1,
    "activation_alpha": 1.702,
    "activation_beta": 1.0,
    "swiglu_limit": 7.0,
}
EIGHT = {"bits": 8, "block_size": -1}  # so accurate that no router chooses another expert


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("bits", "block"), list(itertools.product((2, 4, 8), (-1, 16, 32))))
def test_what_the_kernel_computes_is_the_mixture_of_the_stored_weights(bits, block, symmetric):
    model = mixture()
    result = quantize(model, bits=bits, block_size=block, symmetric=symmetric)
    written, x = result.to_proto(), normal(TOKENS, HIDDEN)
    assert ops(written) == {"MatMul": 3, "QMoE": 1} and result.quantized == {"MoE": 1}
    assert not {"up", "down"} & constants_of(written).keys()
    up = stored_weight(written, (2, 3, 11), (EXPERTS, INNER, HIDDEN))
    down = stored_weight(written, (5, 6, 12), (EXPERTS, HIDDEN, INNER))
    wanted = reference(model, x, up, down)
    # Blocks of 8 bits have kernels for inputs of 8 bits only.
    tolerance = 0.02 if bits == 8 and block > 0 else 1e-5
    atol = tolerance * np.abs(wanted).max()
    np.testing.assert_allclose(run(written, {"x": x})[0], wanted, atol=atol)
    # and the stored weights are the model's own, to half a step
    floats = constants_of(model)
    for found, name in ((up, "up"), (down, "down")):
        error = np.sqrt(np.mean((found - floats[name]) ** 2) / np.mean(floats[name] ** 2))
        assert error < {2: 0.6, 4: 0.15, 8: 0.012}[bits]


@pytest.mark.parametrize("normalize", [0, 1])
@pytest.mark.parametrize("activation", [{}, SWIGLU])
def test_routing_and_activations_stay_what_they_are(normalize, activation):
    model = mixture(normalize_routing_weights=normalize, **activation)
    x, floats = normal(TOKENS, HIDDEN), constants_of(model)
    exact = reference(
        model, x, floats["up"], floats["down"], normalize=normalize, swiglu=bool(activation)
    )
    np.testing.assert_allclose(run(model, {"x": x})[0], exact, atol=1e-5 * np.abs(exact).max())
    written = quantize(model, bits=8, block_size=-1).to_proto()
    found = run(written, {"x": x})[0]
    np.testing.assert_allclose(found, exact, atol=0.02 * np.abs(exact).max())


@pytest.mark.parametrize("biases", [True, False])
def test_the_file_is_smaller_by_what_the_weights_lose(biases):
    model = mixture(biases=biases)
    result = quantize(model, bits=4, block_size=32)
    weights = 2 * EXPERTS * INNER * HIDDEN
    # 4 bits, and for each 32 of them a float and half a byte
    saved = weights * (4 - 0.5 - 4.5 / 32)
    assert model.ByteSize() - len(result.to_proto().SerializeToString()) > 0.97 * saved


@pytest.mark.parametrize("output", ["qdq", "float"])
@pytest.mark.parametrize("block", [-1, 32])
def test_the_other_forms_keep_the_node(output, block):
    model = mixture()
    form = {"bits": 4, "block_size": block}
    written = quantize(model, output=output, **form).to_proto()
    assert "up" not in constants_of(written) and ops(written)["MoE"] == 1
    x = normal(TOKENS, HIDDEN)
    same = run(quantize(model, **form).to_proto(), {"x": x})[0]
    np.testing.assert_allclose(run(written, {"x": x})[0], same, atol=1e-5 * np.abs(same).max())


def test_half_floats():
    halves = retype(mixture(), np.float16, TensorProto.FLOAT16)
    written = quantize(halves, bits=8, block_size=-1).to_proto()
    assert ops(written)["QMoE"] == 1
    x = normal(TOKENS, HIDDEN)
    wanted = run(mixture(), {"x": x})[0]
    found = run(written, {"x": x.astype(np.float16)})[0]
    np.testing.assert_allclose(found, wanted, atol=0.05 * np.abs(wanted).max())


# Rounding ------------------------------------------------------------------------------------


def test_gptq_sees_what_the_experts_read():
    model, data = mixture(), samples()
    form = {"bits": 4, "block_size": 32, "output": "float"}
    errors = {}
    test = {"x": samples(7)[-1]["x"]}
    wanted = run(model, test)[0]
    for name, rounding in (("nearest", Nearest()), ("gptq", GPTQ())):
        result = quantize(model, data=data, rounding=rounding, **form)
        errors[name] = np.square(run(result.to_proto(), test)[0] - wanted).mean()
    assert errors["gptq"] < 0.9 * errors["nearest"]
    assert isinstance(result.plan.weights["up"].rounding, GPTQ)
    assert isinstance(result.plan.weights["down"].rounding, Nearest)
    assert any(note.startswith("1 weight of stacked matrices") for note in result.plan.notes)


def test_awq_scales_products_and_leaves_experts():
    data = samples()
    model = mixture()
    result = quantize(model, data=data, awq=AWQ(), select=Selection(), **EIGHT)
    assert result.quantized == {"MatMul": 3, "MoE": 1}
    assert result.plan.smoothing and "experts" not in {
        name for entry in result.plan.smoothing.values() for name in entry.nodes
    }
    assert quality(model, result.to_proto(), samples(1)) > 25


@pytest.mark.parametrize("rounding", [Nearest(weighted=True), HQQ()])
def test_other_roundings(rounding):
    model = mixture()
    result = quantize(
        model, data=samples(), rounding=rounding, refine=1, select=Selection(), **EIGHT
    )
    assert result.quantized == {"MatMul": 3, "MoE": 1}
    assert quality(model, result.to_proto(), samples(1)) > 25


def test_fine_tuning_passes_experts_over():
    pytest.importorskip("torch")
    result = quantize(
        mixture(), data=samples(2), fine_tune=AdaRound(iterations=20), select=Selection()
    )
    assert result.quantized == {"MatMul": 3, "MoE": 1}


# The plan -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "options", "reason"),
    [
        (mixture(third=True), {}, "third weight"),
        (mixture(**SWIGLU | {"swiglu_fusion": 2}), {}, "interleaved"),
        (mixture(use_sparse_mixer=1), {}, "sparse mixer"),
        (mixture(), {"block_size": 64}, "multiples of 64 inputs, and one of its weights has 96"),
        (mixture(hidden=66), {"block_size": -1}, "multiples of 4 inputs"),
        (mixture(), {"rounding": HQQ(float_zero_points=True)}, "integers"),
        (mixture(), {"overrides": {"experts": WeightOverride(keep_float=True)}}, "override"),
    ],
)
def test_what_no_kernel_takes_stays_float_with_a_reason(model, options, reason):
    recipe = Recipe(mode="weight-only", weights=WeightOnly(bits=4, **options))
    plan = bitwright.make_plan(model, recipe=recipe)
    assert reason in plan.nodes["experts"].reason
    assert not {"up", "down"} & plan.weights.keys()


def test_an_older_runtime_keeps_them_float(monkeypatch):
    monkeypatch.setattr(weight_only, "runtime_version", lambda: (1, 26))
    plan = bitwright.make_plan(mixture(), recipe="int4-rtn")
    assert "ONNX Runtime 1.27" in plan.nodes["experts"].reason


def test_a_plan_survives_its_file():
    model = mixture()
    result = quantize(model, bits=4)
    plan = bitwright.QuantPlan.from_json(result.plan.to_json())
    again = bitwright.apply_plan(plan, model)
    assert again.to_proto().SerializeToString() == result.to_proto().SerializeToString()


@pytest.mark.parametrize("edit", ["bits", "absent"])
def test_an_edited_plan_that_no_kernel_takes_is_refused(edit):
    model = mixture()
    plan = quantize(model, bits=4).plan
    weights = dict(plan.weights)
    if edit == "bits":
        weights["up"] = msgspec.structs.replace(weights["up"], bits=8)
    else:
        del weights["up"]
    match = "same bits" if edit == "bits" else r"all of its weights .* add \['up'\]"
    with pytest.raises(PlanError, match=match):
        bitwright.apply_plan(msgspec.structs.replace(plan, weights=weights), model)


def test_the_int8_kernel_is_used_where_it_is_asked_for():
    model = mixture()
    fast = quantize(model, bits=4, accuracy_level=4).to_proto()
    (level,) = (a.i for a in nodes_by_name(fast)["experts"].attribute if a.name == "accuracy_level")
    assert level == 4
    x = normal(TOKENS, HIDDEN)
    wanted = run(model, {"x": x})[0]
    np.testing.assert_allclose(run(fast, {"x": x})[0], wanted, atol=0.3 * np.abs(wanted).max())
