"""Models trained with Q/DQ pairs, in every odd form: the same function, fused, the same scales."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from support.models import (
    build,
    constants_of,
    dequantizer_before,
    element_types,
    info,
    node,
    normal,
    ops,
    parameters_of,
    run,
    run_plain,
    weight,
)
from support.qat_models import (
    INT8,
    Trained,
    fused_ops,
    largest_difference,
    samples_for,
)

import bitwright
from bitwright.cli import main

FIXTURES = Path(__file__).parent.parent / "fixtures"
FLOAT_OPS = {"Conv", "Gemm", "MatMul", "FusedConv", "FusedGemm", "Add"}
STEP = 0.05


def behind_relu(**options):
    t = Trained(**options)
    x = t.pair("x", 0.04, 128)
    y = t.pair(t.add("Relu", [t.conv(x, "a", axis=0)]), STEP)
    return t.model(t.pair(t.add("Relu", [t.conv(y, "b", (5, 4))]), STEP))


def per_tensor():
    t = Trained()
    y = t.pair(t.conv(t.pair("x", 0.04, -3, np.int8), "a"), STEP, 5, np.int8)
    return t.model(y)


def no_zero_points():
    t = Trained()
    x = t.pair(t.add("Abs", ["x"]), 0.02, None)
    return t.model(t.pair(t.add("Relu", [t.conv(x, "a")]), STEP, None))


def shared_parameters():
    """One scale and one zero point for several pairs, as initializers that all of them read."""
    t = Trained()
    q, names = t.quantize("x", STEP, 128)
    x = t.dequantize(q, names)
    c = t.conv(x, "a", (3, 3))
    t.nodes.append(onnx.helper.make_node("QuantizeLinear", [c, *names], ["qc"], name="qc"))
    y = t.add("Add", [t.dequantize("qc", names), x])
    t.nodes.append(onnx.helper.make_node("QuantizeLinear", [y, *names], ["qy"], name="qy"))
    return t.model(t.dequantize("qy", names))


def before_relu():
    t = Trained()
    c = t.pair(t.conv(t.pair("x", 0.04, 128), "a"), STEP, 100)
    r = t.add("Relu", [c])
    return t.model(t.pair(t.conv(r, "b", (5, 4)), STEP, 128))


def before_relu_from_zero():
    t = Trained()
    c = t.pair(t.conv(t.pair("x", 0.04, 128), "a"), STEP, 0)
    return t.model(t.pair(t.conv(t.add("Relu", [c]), "b", (5, 4)), STEP, 128))


def both_sides_of_relu():
    t = Trained()
    c = t.pair(t.conv(t.pair("x", 0.04, 128), "a"), 0.06, 120)
    r = t.pair(t.add("Relu", [c]), 0.02, 0)
    return t.model(t.pair(t.conv(r, "b", (5, 4)), STEP, 128))


def behind_max_pool():
    t = Trained()
    c = t.add("Relu", [t.conv(t.pair("x", 0.04, 128), "a", axis=0)])
    p = t.pair(t.add("MaxPool", [c], kernel_shape=[2, 2], strides=[2, 2]), STEP)
    return t.model(t.pair(t.conv(p, "b", (5, 4)), STEP, 128))


def before_max_pool():
    t = Trained()
    c = t.pair(t.add("Relu", [t.conv(t.pair("x", 0.04, 128), "a")]), STEP)
    p = t.add("MaxPool", [c], kernel_shape=[2, 2], strides=[2, 2])
    return t.model(t.pair(t.conv(p, "b", (5, 4)), STEP, 128))


def behind_transpose():
    t = Trained()
    c = t.conv(t.pair("x", 0.04, 128), "a")
    r = t.pair(t.add("Transpose", [c], perm=[0, 1, 3, 2]), STEP, 128)
    return t.model(t.pair(t.conv(r, "b", (5, 4)), STEP, 128))


def before_reshape():
    t = Trained()
    c = t.pair(t.conv(t.pair("x", 0.04, 128), "a"), STEP, 128)
    flat = t.add("Reshape", [c, t.constant("shape", np.array([1, -1]))])
    w = t.weight("m_w", weight(256, 6, seed=4))
    return t.model(t.pair(t.add("MatMul", [flat, w]), STEP, 128))


def moved_as_integers():
    """Q, then Transpose and MaxPool of integers, then DQ."""
    t = Trained()
    q, names = t.quantize(t.conv(t.pair("x", 0.04, 128), "a"), STEP, 128)
    moved = t.add("Transpose", [q], perm=[0, 1, 3, 2])
    moved = t.add("MaxPool", [moved], kernel_shape=[2, 2], strides=[2, 2])
    return t.model(t.pair(t.conv(t.dequantize(moved, names), "b", (5, 4)), STEP, 128))


def doubled():
    t = Trained()
    x = t.pair(t.pair("x", 0.04, 128), 0.04, 128)
    return t.model(t.pair(t.pair(t.conv(x, "a"), STEP, 128), STEP, 128))


def doubled_otherwise():
    t = Trained()
    c = t.pair(t.pair(t.conv(t.pair("x", 0.04, 128), "a"), STEP, 128), 0.07, 110)
    return t.model(t.pair(t.conv(c, "b", (5, 4)), STEP, 128))


def constant_nodes():
    return behind_relu(constant_nodes=True)


def runtime_domain():
    return behind_relu(domain="com.microsoft")


def biased_pair():
    t = Trained()
    x = t.pair("x", 0.04, 128)
    w = t.weight("a_w", weight(4, 3, 3, 3, seed=5))
    b = t.pair(t.constant("a_b", normal(4, seed=7, size=0.3)), 0.01, 0, np.int8)
    return t.model(t.pair(t.add("Conv", [x, w, b], pads=[1, 1, 1, 1]), STEP, 128))


def stored_integers():
    """Weights and bias that are integers already, as some exporters write them."""
    t = Trained()
    x = t.pair("x", 0.04, 128)
    rng = np.random.default_rng(3)
    t.constant("a_w_quantized", rng.integers(-127, 128, (4, 3, 3, 3)).astype(np.int8))
    w = t.dequantize("a_w_quantized", t.parameters("a_w", 0.003, 0, np.int8))
    t.constant("a_b", rng.integers(-2000, 2000, 4).astype(np.int32))
    b = t.dequantize("a_b", t.parameters("a_bias", 0.04 * 0.003, 0, np.int32))
    return t.model(t.pair(t.add("Conv", [x, w, b], pads=[1, 1, 1, 1]), STEP, 128))


def batch_norm_behind():
    """What torch's fused modules export: the weight times the norm's factor, then divided."""
    t = Trained()
    x = t.pair("x", 0.04, 128)
    gamma, variance = 1 + normal(4, seed=1, size=0.3), 1 + np.abs(normal(4, seed=2))
    factor = (gamma / np.sqrt(variance + 1e-5)).astype(np.float32)
    array = weight(4, 3, 3, 3, seed=3) * factor.reshape(4, 1, 1, 1)
    c = t.add("Conv", [x, t.weight("a_w", array, axis=0)], pads=[1, 1, 1, 1])
    d = t.add("Div", [c, t.constant("factor", factor.reshape(1, 4, 1, 1))])
    names = [
        t.constant("gamma", gamma),
        t.constant("beta", normal(4, seed=4, size=0.2)),
        t.constant("mean", normal(4, seed=5, size=0.2)),
        t.constant("variance", variance),
    ]
    n = t.add("BatchNormalization", [d, *names])
    return t.model(t.pair(t.add("Relu", [n]), STEP))


def batch_norm_that_changes_scales():
    t = Trained()
    x = t.pair("x", 0.04, 128)
    c = t.conv(x, "a", bias=False)
    names = [
        t.constant("gamma", np.array([0.5, 1.5, -0.7, 2.0], np.float32)),
        t.constant("beta", normal(4, seed=4, size=0.2)),
        t.constant("mean", normal(4, seed=5, size=0.2)),
        t.constant("variance", 1 + np.abs(normal(4, seed=2))),
    ]
    return t.model(t.pair(t.add("BatchNormalization", [c, *names]), STEP, 128))


def turned_weight():
    """A Linear layer: the weight has its pair before it is transposed."""
    t = Trained((2, 16))
    w = t.add("Transpose", [t.weight("w", weight(16, 6, seed=1).T.copy(), axis=0)], perm=[1, 0])
    return t.model(t.pair(t.add("MatMul", [t.pair("x", 0.04, 128), w]), STEP, 128))


def gemm_with_factors():
    t = Trained((2, 16))
    w = t.weight("w", weight(16, 6, seed=1).T.copy(), axis=0)
    b = t.constant("b", normal(6, seed=3))
    g = t.add("Gemm", [t.pair("x", 0.04, 128), w, b], transB=1, alpha=0.5, beta=2.0)
    return t.model(t.pair(g, STEP, 128))


def rival_pairs():
    """Each reader has a quantizer of its own, and they do not agree."""
    t = Trained()
    c = t.conv(t.pair("x", 0.04, 128), "a")
    one = t.pair(t.conv(t.pair(c, 0.05, 128), "b", (4, 4)), STEP, 128)
    two = t.pair(t.conv(t.pair(c, 0.03, 120), "cc", (4, 4)), STEP, 128)
    return t.model(t.pair(t.add("Add", [one, two]), 0.08, 128))


def residual_without_pair():
    t = Trained()
    c = t.conv(t.pair("x", 0.04, 128), "a", (4, 3))
    d = t.conv(t.pair(c, STEP, 128), "b", (4, 4))
    return t.model(t.pair(t.add("Add", [c, t.pair(d, STEP, 128)]), STEP, 128))


def joined():
    t = Trained()
    x = t.pair("x", 0.04, 128)
    both = t.add("Concat", [t.conv(x, "a"), t.conv(x, "bb")], axis=1)
    return t.model(t.pair(t.conv(t.pair(both, STEP, 128), "c", (5, 8)), STEP, 128))


def reduced_range():
    """torch's fbgemm setting: 7 bits of uint8, by a Clip of the integers."""
    t = Trained()
    q, names = t.quantize("x", 0.02, 60)
    x = t.dequantize(t.add("Clip", [q, "", t.constant("top", np.uint8(127))]), names)
    q, names = t.quantize(t.add("Relu", [t.conv(x, "a", axis=0)]), 0.01)
    return t.model(t.dequantize(t.add("Clip", [q, "", "top"]), names))


def unsigned_weights():
    t = Trained()
    x = t.pair("x", 0.04, -3, np.int8)
    return t.model(t.pair(t.conv(x, "a", dtype=np.uint8, zero=128), STEP, 5, np.int8))


def shifted_weights():
    t = Trained()
    return t.model(t.pair(t.conv(t.pair("x", 0.04, 128), "a", zero=11), STEP, 128))


def uneven_zero_points():
    t = Trained()
    zeros = np.array([3, -5, 0, 20])
    c = t.conv(t.pair("x", 0.04, 128), "a", axis=0, zero=zeros)
    return t.model(t.pair(c, STEP, 128))


def channels_on_the_wrong_axis():
    """As many scales as output channels, along the inputs: the runtime takes them for outputs."""
    t = Trained()
    c = t.pair(t.conv(t.pair("x", 0.04, 128), "a"), STEP, 128)
    return t.model(t.pair(t.conv(c, "b", (4, 4), axis=1, bias=False), STEP, 128))


def huge_bias(scale=1e-8):
    t = Trained()
    c = t.pair(t.conv(t.pair("x", 0.04, 128), "a"), STEP, 128)
    axis = 0 if np.ndim(scale) else None
    zero = np.zeros(np.shape(scale), np.int8)
    w = t.pair(t.constant("w", weight(4, 4, 3, 3, seed=1) * 1e-6), scale, zero, np.int8, axis)
    b = t.constant("b", np.full(4, 3.0, np.float32))
    return t.model(t.pair(t.add("Conv", [c, w, b], pads=[1, 1, 1, 1]), STEP, 128))


def float_result():
    t = Trained((2, 16))
    w = t.weight("w", weight(16, 6, seed=1).T.copy(), axis=0)
    b = t.constant("b", normal(6, seed=3))
    return t.model(t.add("Gemm", [t.pair("x", 0.04, 128), w, b], transB=1))


def attention():
    t = Trained((1, 6, 16))
    x = t.pair("x", 0.04, 128)
    q, k = (
        t.pair(t.add("MatMul", [x, t.weight(name, weight(16, 16, seed=seed), axis=1)]), STEP, 128)
        for seed, name in enumerate(("q_w", "k_w"))
    )
    scores = t.pair(t.add("MatMul", [q, t.add("Transpose", [k], perm=[0, 2, 1])]), 0.2, 128)
    chances = t.pair(t.add("Softmax", [scores], axis=-1), 1 / 255)
    return t.model(t.pair(t.add("MatMul", [chances, q]), STEP, 128))


def added_bias():
    t = Trained((2, 16))
    m = t.add("MatMul", [t.pair("x", 0.04, 128), t.weight("w", weight(16, 8, seed=1))])
    a = t.add("Add", [m, t.constant("b", normal(8))])
    return t.model(t.pair(t.add("Relu", [a]), STEP))


def tied_weights():
    t = Trained()
    w = t.weight("w", weight(3, 3, 3, 3, seed=1))
    y = t.pair("x", 0.04, 128)
    for _ in range(2):
        y = t.pair(t.add("Conv", [y, w], pads=[1, 1, 1, 1]), STEP, 128)
    return t.model(y)


def axis_from_the_end():
    t = Trained((2, 16))
    array = weight(16, 8, seed=1)
    t.constant("w", array)
    w = t.pair("w", np.float32(np.abs(array).max(axis=0) / 127), 0, np.int8, -1)
    return t.model(t.pair(t.add("MatMul", [t.pair("x", 0.04, 128), w]), STEP, 128))


def old_opset():
    return behind_relu(opset=13)


FUSED = [
    behind_relu,
    per_tensor,
    no_zero_points,
    shared_parameters,
    before_relu,
    before_relu_from_zero,
    both_sides_of_relu,
    behind_max_pool,
    before_max_pool,
    behind_transpose,
    before_reshape,
    moved_as_integers,
    doubled,
    doubled_otherwise,
    constant_nodes,
    runtime_domain,
    biased_pair,
    stored_integers,
    batch_norm_behind,
    batch_norm_that_changes_scales,
    turned_weight,
    gemm_with_factors,
    rival_pairs,
    residual_without_pair,
    joined,
    reduced_range,
    unsigned_weights,
    uneven_zero_points,
    shifted_weights,
    float_result,
    huge_bias,
    attention,
    added_bias,
    tied_weights,
    axis_from_the_end,
    old_opset,
]
LEFT_FLOAT = [channels_on_the_wrong_axis]


def data_for(model):
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    return samples_for(shape)


@pytest.mark.parametrize("format", ["qdq", "qoperator"])
@pytest.mark.parametrize("make", [*FUSED, *LEFT_FLOAT], ids=lambda make: make.__name__)
@pytest.mark.sampled(30)
def test_the_function_stays_within_one_step_of_the_trained_one(make, format):
    model = make()
    result = bitwright.import_qat(model, format=format)
    samples = data_for(model)
    expected = run_plain(model, samples)
    # Where pairs were merged inside, their half step goes through what follows; else it is y's.
    merged = (rival_pairs, residual_without_pair, doubled_otherwise)
    step = 2 * STEP if make in merged else STEP
    if format == "qdq":
        assert largest_difference(expected, run_plain(result, samples)) <= 1.001 * step
    if make is attention:
        # The runtime's integer Softmax rounds in its own way, in the trained model as in ours.
        step += largest_difference(expected, run(model, samples))
    assert largest_difference(expected, run(result, samples)) <= 1.001 * step
    assert largest_difference(expected, [[np.zeros(1)]] * len(samples)) > 5 * STEP


@pytest.mark.parametrize("make", FUSED, ids=lambda make: make.__name__)
@pytest.mark.sampled(16)
def test_the_runtime_fuses_all_of_it(make, tmp_path):
    fused = fused_ops(bitwright.import_qat(make()), tmp_path)
    assert not FLOAT_OPS & fused.keys(), fused


@pytest.mark.parametrize("make", FUSED, ids=lambda make: make.__name__)
@pytest.mark.sampled(16)
def test_integer_ops_are_written_where_they_are_asked_for(make):
    result = bitwright.import_qat(make(), format="qoperator")
    # A bias that a MatMul's sum adds is added in float, before its one rounding.
    assert not (FLOAT_OPS - {"Add"}) & ops(result).keys(), ops(result)


@pytest.mark.parametrize("make", [*FUSED, *LEFT_FLOAT], ids=lambda make: make.__name__)
@pytest.mark.sampled(16)
def test_no_trained_scale_is_changed_or_invented(make):
    if make in (batch_norm_that_changes_scales, gemm_with_factors, huge_bias):
        pytest.skip("what is folded into a weight, or a bias beyond int32, changes its scale")
    model = make()
    before = {
        float(scale)
        for item in model.graph.node
        if item.op_type in ("QuantizeLinear", "DequantizeLinear")
        for scale in np.ravel(_array(model, item.input[1]))
    }
    result = bitwright.import_qat(model)
    after = set()
    for entry in result.plan.tensors.values():
        if entry.scale is not None:
            after |= {float(np.float32(s)) for s in np.ravel(entry.scale)}
    assert after <= before


def _array(model, name):
    found = constants_of(model).get(name)
    if found is None:
        maker = next(item for item in model.graph.node if name in item.output)
        found = onnx.numpy_helper.to_array(maker.attribute[0].t)
    return found


def test_weights_are_the_trained_integers_bit_by_bit():
    model = behind_relu()
    constants = constants_of(model)
    result = bitwright.import_qat(model)
    stored = constants_of(result)
    for name in ("a_w", "b_w"):
        quantizer = next(item for item in model.graph.node if item.input[:1] == [name])
        scale = constants[quantizer.input[1]]
        shape = (-1, 1, 1, 1) if scale.ndim else ()
        expected = np.clip(np.rint(constants[name] / scale.reshape(shape)), -128, 127)
        np.testing.assert_array_equal(stored[f"{name}_quantized"], expected)
        assert element_types(result)[f"{name}_quantized"] == INT8


def test_stored_integers_come_out_as_they_went_in():
    model = stored_integers()
    result = bitwright.import_qat(model)
    before, after = constants_of(model), constants_of(result)
    np.testing.assert_array_equal(after["a_w_quantized"], before["a_w_quantized"])
    np.testing.assert_array_equal(after["a_b_quantized"], before["a_b"])


def test_folding_a_batch_norm_leaves_integers_and_multiplies_scales():
    model = batch_norm_that_changes_scales()
    result = bitwright.import_qat(model)
    entry = result.plan.tensors["a_w"]
    constants = constants_of(model)
    factor = constants["gamma"] / np.sqrt(constants["variance"] + 1e-5)
    scale = np.abs(constants["a_w"]).max() / 127
    np.testing.assert_allclose(entry.scale, scale * np.abs(factor), rtol=1e-6)
    integers = np.rint(constants["a_w"] / np.float32(scale))
    signs = np.sign(factor).reshape(-1, 1, 1, 1)
    np.testing.assert_array_equal(constants_of(result)["a_w_quantized"], integers * signs)
    assert "BatchNormalization" not in ops(result)


def test_a_bias_is_int32_at_the_product_of_both_scales():
    result = bitwright.import_qat(per_tensor())
    name = next(item.name for item in result.to_proto().graph.node if item.op_type == "Conv")
    scales = [
        parameters_of(result, dequantizer_before(result, name, index))[0] for index in range(3)
    ]
    np.testing.assert_allclose(scales[2], scales[0] * scales[1], rtol=1e-6)


@pytest.mark.parametrize("scale", [1e-8, np.array([1e-8, 1e-2, 1e-8, 1e-8], np.float32)], ids=str)
def test_a_weight_scale_grows_where_the_bias_would_overflow(scale):
    result = bitwright.import_qat(huge_bias(scale))
    entry = result.plan.tensors["w"]
    grown = np.asarray(entry.scale) > np.float64(np.float32(scale)) * 1.01
    assert np.array_equal(grown, np.asarray(scale) < 1e-3)
    assert any("overflowed int32" in note for note in result.plan.notes)
    assert np.abs(constants_of(result)["b_quantized"].astype(np.int64)).max() > 2**30


def test_scales_along_an_axis_that_the_kernel_misreads_stay_out_of_it():
    model = channels_on_the_wrong_axis()
    # This is why: the runtime takes them for scales of the outputs.
    samples = samples_for()
    assert largest_difference(run_plain(model, samples), run(model, samples)) > 3 * STEP
    result = bitwright.import_qat(model)
    first, second = (node for node in result.plan.nodes.values() if node.op == "Conv")
    assert first.action == "quantize"
    assert second.action == "float" and "along axis 1" in second.reason


def test_nodes_without_trained_scales_stay_float_each_with_a_reason():
    t = Trained()
    c = t.pair(t.conv(t.pair("x", 0.04, 128), "a"), STEP, 128)
    e = t.add("Erf", [c])
    plain = t.add("Conv", [e, t.constant("w", weight(2, 4, 3, 3, seed=2))])
    result = bitwright.import_qat(t.model(plain))
    reasons = {node.op: node.reason for node in result.plan.nodes.values() if node.reason}
    assert reasons == {
        "Erf": "there is no integer Erf",
        "Conv": "its input 'erf6_out' has no trained scale",
    } or set(reasons) == {"Erf", "Conv"}


def test_weights_alone_can_be_trained():
    t = Trained((2, 16))
    model = t.model(t.add("MatMul", ["x", t.weight("w", weight(16, 6, seed=1), axis=1)]))
    result = bitwright.import_qat(model)
    assert element_types(result)["w_quantized"] == INT8
    samples = samples_for((2, 16))
    # The runtime's default level quantizes x too, with and without us.
    assert largest_difference(run_plain(model, samples), run_plain(result, samples)) < 1e-5


def test_a_pair_with_two_different_halves_stays_as_it_is():
    t = Trained()
    q, _ = t.quantize("x", 0.04, 128)
    odd = t.dequantize(q, t.parameters("other", 0.08, 128, np.uint8))
    model = t.model(t.pair(t.conv(t.pair(odd, 0.08, 128), "a"), STEP, 128))
    result = bitwright.import_qat(model)
    assert any("different parameters" in note for note in result.plan.notes)
    samples = samples_for()
    assert largest_difference(run_plain(model, samples), run(result, samples)) <= 1.001 * STEP


@pytest.mark.parametrize("domain", ["", "com.microsoft"])
def test_16_bit_types_stay_16_bit_types(domain):
    t = Trained(opset=17 if domain else 21, domain=domain)
    c = t.conv(t.pair("x", 2e-4, 0, np.int16), "a")
    model = t.model(t.pair(c, 2e-4, 0, np.int16))
    result = bitwright.import_qat(model)
    assert result.plan.recipe.activation.name == "int16"
    samples = samples_for()
    assert largest_difference(run_plain(model, samples), run(result, samples)) <= 2.1e-4


@pytest.mark.parametrize("format", ["qdq", "qoperator"])
def test_groups_of_a_transposed_convolution_share_their_scales(format):
    t = Trained((1, 4, 8, 8))
    w = t.weight("w", weight(4, 3, 3, 3, seed=2), axis=1)
    read = [t.pair("x", 0.04, 128), w, t.constant("b", normal(6, seed=3))]
    model = t.model(t.pair(t.add("ConvTranspose", read, group=2), STEP, 128))
    samples = samples_for((1, 4, 8, 8))
    result = bitwright.import_qat(model, format=format)
    assert largest_difference(run_plain(model, samples), run(result, samples)) <= 1.001 * STEP


def test_a_tensor_inside_can_also_be_an_output():
    for read_behind_pair in (False, True):
        t = Trained()
        c = t.conv(t.pair("x", 0.04, 128), "a")
        p = t.pair(c, STEP, 128)
        last = t.pair(t.conv(p, "b", (5, 4)), STEP, 128)
        model = t.model(last, p if read_behind_pair else c)
        result = bitwright.import_qat(model)
        assert [value.name for value in result.model.graph.outputs] == ["y", "y1"]
        samples = samples_for()
        assert largest_difference(run_plain(model, samples), run(result, samples)) <= 1.001 * STEP


def test_bodies_of_branches_are_imported_too():
    t = Trained()
    y = t.pair(t.conv(t.pair("x", 0.04, 128), "a"), STEP, 128)
    stored = [onnx.numpy_helper.from_array(array, name) for name, array in t.constants.items()]
    then = onnx.helper.make_graph(t.nodes, "then", [], [_open_info(y)], stored)
    kernel = onnx.numpy_helper.from_array(weight(4, 3, 3, 3), "k")
    conv = onnx.helper.make_node("Conv", ["x", "k"], ["e"], pads=[1, 1, 1, 1])
    other = onnx.helper.make_graph([conv], "else", [], [_open_info("e")], [kernel])
    nodes = [
        onnx.helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        onnx.helper.make_node("Less", ["sum", "limit"], ["c"]),
        onnx.helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other),
    ]
    limit = {"limit": np.float32(1e9)}
    model = build(nodes, [info("x", [1, 3, 8, 8])], [_open_info("y")], limit)
    result = bitwright.import_qat(model)
    samples = samples_for()
    assert largest_difference(run_plain(model, samples), run(result, samples)) <= 1.001 * STEP
    assert any(node.op == "Conv" and node.quantized for node in result.plan.nodes.values())


def _open_info(name):
    value = info(name)
    value.type.tensor_type.ClearField("shape")
    return value


def test_a_float_model_is_refused():
    model = build([onnx.helper.make_node("Relu", ["x"], ["y"])], {"x": [1, 3]}, {"y": [1, 3]})
    with pytest.raises(bitwright.ModelError, match="no Q/DQ pairs"):
        bitwright.import_qat(model)


def test_an_unknown_format_is_refused_with_a_suggestion():
    with pytest.raises(bitwright.RecipeError, match="Did you mean 'qdq'"):
        bitwright.import_qat(behind_relu(), format="qdk")


def test_the_input_is_not_changed_and_the_output_is_written(tmp_path):
    source, target = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(behind_relu(), source)
    before = source.read_bytes()
    result = bitwright.import_qat(source, target, data=[s["x"] for s in samples_for()])
    assert source.read_bytes() == before
    assert result.path == target and result.outputs[0].sqnr > 30
    assert (
        largest_difference(run(onnx.load(target), samples_for()), run(result, samples_for())) == 0
    )
    with pytest.raises(bitwright.OutputError, match="overwrite the input"):
        bitwright.import_qat(source, source)


def test_excluded_nodes_read_and_write_float():
    model = behind_relu()
    convs = [item.name for item in model.graph.node if item.op_type == "Conv"]
    result = bitwright.import_qat(model, select=bitwright.Selection(exclude=(convs[1],)))
    assert result.plan.nodes[convs[1]].action == "float"
    assert result.plan.nodes[convs[0]].action == "quantize"
    assert dequantizer_before(result, convs[1], 1) is None


@pytest.mark.parametrize("format", ["qdq", "qoperator"])
@pytest.mark.parametrize("path", sorted(FIXTURES.glob("qat_*.onnx")), ids=lambda path: path.stem)
def test_what_torch_exports_is_fused_and_keeps_its_answers(path, format, tmp_path):
    model = onnx.load(path)
    result = bitwright.import_qat(path, format=format)
    fused = fused_ops(result, tmp_path)
    assert not FLOAT_OPS & fused.keys(), fused
    assert fused["QLinearConv"] >= 1
    samples = samples_for()
    expected = run_plain(model, samples)
    last = result.plan.outputs["y"]
    step = 1e-4 if last is None else float(result.plan.parameters(last).scale)
    assert largest_difference(expected, run(result, samples)) <= 1.001 * step
    assert all(node.quantized for node in result.plan.nodes.values())


def test_there_are_fixtures_of_both_exporters():
    assert {path.stem.rsplit("_")[-1] for path in FIXTURES.glob("qat_*.onnx")} == {
        "script",
        "dynamo",
    }


@pytest.mark.parametrize("format", ["qdq", "qoperator"])
@pytest.mark.parametrize("make", [behind_relu, per_tensor])
def test_a_plan_is_applied_again_to_the_trained_model(make, format, tmp_path):
    model = make()
    select = bitwright.Selection(exclude_op_types=("Add",))
    first = bitwright.import_qat(model, format=format, select=select)
    first.plan.save(tmp_path / "plan.json")
    again = bitwright.apply_plan(tmp_path / "plan.json", model, data=samples_for())
    assert again.to_proto().graph == first.to_proto().graph
    assert again.plan.tensors == first.plan.tensors
    # Compared with the model as it was trained, not with its float weights.
    assert again.samples == 4 and min(output.sqnr for output in again.outputs) > 30


def test_the_plan_of_another_model_is_refused_by_a_trained_one():
    float_plan = bitwright.make_plan(
        build([node("Relu", ["x"], ["y"], name="r"), node("Conv", ["y", "w"], ["z"], name="c")],
              {"x": [1, 3, 8, 8]}, {"z": [1, 4, 8, 8]}, {"w": weight(4, 3, 1, 1)}),
        data=samples_for(),
    )  # fmt: skip
    with pytest.raises(bitwright.ModelError, match="already quantized"):
        bitwright.apply_plan(float_plan, behind_relu())


def test_the_command_imports_a_trained_model(tmp_path, capsys):
    source, target, plan = tmp_path / "in.onnx", tmp_path / "out.onnx", tmp_path / "plan.json"
    onnx.save(behind_relu(), source)
    words = ["quantize", str(source), "--qat", "-o", str(target), "--plan-out", str(plan)]
    assert main(words) == 0
    assert "4 of 4 quantized" in capsys.readouterr().out
    assert bitwright.QuantPlan.load(plan).recipe.name == "trained"
    assert main([*words, "--format", "qoperator", "--quiet"]) == 0
    assert ops(target)["QLinearConv"] == 2


@pytest.mark.parametrize(
    "words",
    [["--ranges", "mse"], ["--recipe", "int8"], ["--dynamic"], ["--set", "per_channel=true"]],
    ids=lambda words: words[0],
)
def test_the_command_refuses_to_decide_what_was_trained(tmp_path, capsys, words):
    source = tmp_path / "in.onnx"
    onnx.save(behind_relu(), source)
    assert main(["quantize", str(source), "--qat", "-o", str(tmp_path / "q.onnx"), *words]) == 2
    assert f"{words[0]} does not go with --qat" in capsys.readouterr().err
    assert not (tmp_path / "q.onnx").exists()


def test_a_trained_model_without_qat_is_refused_as_before():
    with pytest.raises(bitwright.ModelError, match="already quantized"):
        bitwright.quantize(behind_relu(), data=[s["x"] for s in samples_for()])
