"""Arrays and single weights, by the documented values."""

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from onnx import helper, numpy_helper
from support.models import (
    build,
    normal,
    run,
    weight,
)
from support.neural_compressor import GROUP
from support.weights import make_layer

from bitwright.compat.neural_compressor.tensors import quantize_groups
from bitwright.compat.neural_compressor.weight_only import (
    get_blob_size,
    get_weight_scale,
    gptq,
    make_matmul_weight_only_node,
    pad_tensor,
    qdq_tensor,
    quant_tensor,
)
from bitwright.errors import DataError, ModelError, RecipeError, TargetError


def test_get_blob_size():
    assert [get_blob_size(32, has_zp) for has_zp in (True, False)] == [16, 16]
    with pytest.raises(RecipeError, match="even"):
        get_blob_size(3, True)


@pytest.mark.parametrize(
    ("options", "codes", "scale", "zero"),
    [
        ({}, [0, 6, 11, 15], 0.113333, 9),
        ({"scheme": "sym", "dtype": "uint"}, [0, 6, 10, 13], 0.133333, 8),
        ({"scheme": "sym"}, [-8, -2, 2, 5], 0.133333, 0),
        ({"num_bits": 8}, [0, 105, 180, 255], 0.0066667, 150),
        ({"num_bits": 2}, [0, 1, 2, 3], 0.566667, 2),
    ],
)
def test_quant_tensor_gives_the_documented_values(options, codes, scale, zero):
    found, scales, zeros = quant_tensor(GROUP, group_size=4, **options)
    assert found.dtype == scales.dtype == np.float64
    assert found.shape == (1, 4) and scales.shape == zeros.shape == (1, 1)
    assert found.tolist() == [codes]
    assert scales[0, 0] == pytest.approx(scale, abs=1e-6)
    assert zeros[0, 0] == zero
    assert zeros.dtype == (np.uint8 if options.get("dtype") == "uint" else np.float64)


@pytest.mark.parametrize("dtype", ["int", "uint"])
@pytest.mark.parametrize("values", [[1.0, 1.1, 1.2, 1.3], [-1.3, -1.2, -1.1, -1.0], [0.5] * 4])
def test_groups_of_one_sign_are_not_clipped(values, dtype):
    """There `[1.0, 1.1, 1.2, 1.3]` became `[0.3, 0.3, 0.3, 0.3]`, and a constant 0."""
    found = qdq_tensor(values, group_size=4, dtype=dtype)
    assert np.abs(found - values).max() <= 1.3 / 15


def test_qdq_tensor_keeps_the_shape_and_halves_fit_in_a_ratio():
    data = normal(6, 64)
    assert qdq_tensor(data).shape == data.shape
    codes, scale, zero = quant_tensor(data, ratio=0.8)
    np.testing.assert_array_equal(
        qdq_tensor(data, ratio=0.8), (scale * (codes - zero)).reshape(data.shape)
    )
    assert (scale < quant_tensor(data)[1]).all()
    assert quant_tensor(data, group_size=-1)[1].shape == (6, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scheme": "foo"}, "unknown scheme 'foo'"),
        ({"dtype": "float"}, "unknown dtype"),
        ({"group_size": 3}, "whole groups of 3"),
        ({"num_bits": 9}, "1 to 8 bits"),
    ],
)
def test_quant_tensor_refuses_in_a_sentence(options, message):
    with pytest.raises(RecipeError, match=message):
        quant_tensor(GROUP, **{"group_size": 4, **options})


def test_a_weight_that_is_not_a_number_is_refused():
    with pytest.raises(ModelError, match="NaN"):
        quant_tensor([np.nan, 1.0], group_size=2)


def test_pad_tensor():
    padded = pad_tensor(np.ones((5, 3)), 4, 2)
    assert padded.shape == (8, 3) and padded.sum() == 15 and not padded[5:].any()
    assert pad_tensor(np.ones((5, 3)), -1, 1).shape == (5, 3)
    with pytest.raises(RecipeError, match="do not hold"):
        pad_tensor(np.ones((9, 3)), 4, 2)


def test_get_weight_scale_gives_the_documented_values():
    rows = [[1, 2, 3, 4], [4, 4, 2, 1]]
    assert get_weight_scale(rows, 2).tolist() == [0.75, 1, 0.875, 0.75]
    assert get_weight_scale(rows, -1).tolist() == [0.625, 0.75, 0.625, 0.625]


@pytest.mark.parametrize("level", [0, 4])
@pytest.mark.parametrize("scheme", ["sym", "asym"])
@pytest.mark.parametrize(("k", "group_size"), [(64, 32), (96, 32), (70, 16), (33, 32)])
@pytest.mark.parametrize("num_bits", [2, 4, 8])
def test_a_packed_node_computes_what_quant_tensor_gives(num_bits, k, group_size, scheme, level):
    """Also with odd numbers of groups, where zero points there were packed across outputs."""
    w, count = weight(k, 7), -(-k // group_size)
    product = helper.make_node("MatMul", ["x", "w"], ["y"], name="fc")
    padded = pad_tensor(w, group_size, count).T
    codes, scale, zero = quant_tensor(padded, num_bits, group_size, scheme, "uint")
    made, constants = make_matmul_weight_only_node(
        product,
        w.shape,
        num_bits,
        group_size,
        count,
        codes.astype(np.uint8),
        scale.astype(np.float32),
        zero if scheme == "asym" else None,
        level,
    )
    assert (made.name, made.domain) == (f"fc_Q{num_bits}", "com.microsoft")
    suffixes = ["_scale", *(["_zp"] if scheme == "asym" else []), f"_Q{num_bits}G{group_size}"]
    assert [tensor.name for tensor in constants] == [f"w{suffix}" for suffix in suffixes]
    assert any(a.name == "accuracy_level" for a in made.attribute) is bool(level)
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in constants}
    model = build(
        [made], {"x": ["m", k]}, {"y": ["m", 7]}, arrays, domains=["com.microsoft"], opset=21
    )
    onnx.checker.check_model(model)
    x = normal(3, k, seed=4)
    wanted = x @ (scale * (codes - zero)).reshape(7, -1).T[:k]
    tolerance = 2e-2 if level else 1e-5
    np.testing.assert_allclose(
        run(model, {"x": x})[0], wanted, atol=tolerance * np.abs(wanted).max()
    )


def test_a_node_with_4_bits_has_the_documented_bytes():
    product = helper.make_node("MatMul", ["x", "w"], ["y"], name="fc")
    codes = np.arange(32, dtype=np.uint8).reshape(1, 32) % 16
    _, constants = make_matmul_weight_only_node(
        product, (32, 1), 4, 32, 1, codes, np.ones((1, 1), np.float32), np.array([[5]], np.uint8)
    )
    scale, zero, packed = (numpy_helper.to_array(tensor) for tensor in constants)
    assert packed.shape == (1, 1, 16) and packed[0, 0, :3].tolist() == [0x10, 0x32, 0x54]
    assert zero.tolist() == [[5]] and scale.tolist() == [[1.0]]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"group_size": 24, "k_blocks": 2}, TargetError, "blocks of 16, 32, 64, 128 and 256"),
        ({"num_bits": 3}, TargetError, "2, 4 and 8 bits"),
        ({"k_blocks": 2}, RecipeError, "instead of"),
        ({"accuracy_level": 5}, TargetError, "accuracy level"),
    ],
)
def test_a_node_that_no_kernel_runs_is_refused(change, error, message):
    product = helper.make_node("MatMul", ["x", "w"], ["y"], name="fc")
    options = {"num_bits": 4, "group_size": 32, "k_blocks": 1, "accuracy_level": 0} | change
    codes = np.zeros((1, 32), np.uint8)
    with pytest.raises(error, match=message):
        make_matmul_weight_only_node(
            product, (32, 1), q_weight=codes, scale=np.ones((1, 1)), zero_point=None, **options
        )


# GPTQ of one weight ---------------------------------------------------------------------------


def loss(weights, found, hessian):
    change = weights.astype(np.float64) - found
    return np.einsum("kn,kl,ln->", change, hessian, change)


@pytest.mark.parametrize("scheme", ["sym", "asym"])
@pytest.mark.parametrize("options", [{}, {"mse": True}, {"actorder": True}])
def test_gptq_is_better_than_rounding_to_nearest(scheme, options):
    """There it gave the codes of nearest rounding, bit for bit."""
    weights, moment = make_layer(128, 16)
    hessian = moment.matrix()
    before = weights.copy(), hessian.copy()
    found = gptq(weights, hessian, scheme=scheme, **options)
    nearest = qdq_tensor(weights.T, scheme=scheme, dtype="uint").T
    assert found.shape == weights.shape and found.dtype == weights.dtype
    assert loss(weights, found, hessian) < 0.8 * loss(weights, nearest, hessian)
    np.testing.assert_array_equal(before[0], weights)
    np.testing.assert_array_equal(before[1], hessian)


def test_gptq_with_one_scale_for_all_outputs_is_better_than_rounding_so():
    weights, moment = make_layer(128, 16)
    nearest = qdq_tensor(weights, group_size=32 * 16, dtype="uint")  # 32 whole rows are a group
    found = gptq(weights, moment.matrix(), perchannel=False)
    assert loss(weights, found, moment.matrix()) < 0.8 * loss(weights, nearest, moment.matrix())


def test_gptq_in_activation_order_is_better_still_and_blocksize_makes_no_difference():
    weights, moment = make_layer(256, 64, spread=1.5)
    hessian = moment.matrix()
    plain, ordered = (gptq(weights, hessian, actorder=order) for order in (False, True))
    assert loss(weights, ordered, hessian) < 0.8 * loss(weights, plain, hessian)
    np.testing.assert_array_equal(plain, gptq(weights, hessian, blocksize=32))


def test_gptq_refuses_what_it_cannot_use():
    with pytest.raises(DataError, match="all zero"):
        gptq(np.eye(32), np.zeros((32, 32)))
    with pytest.raises(DataError, match="NaN"):
        gptq(np.eye(32), np.full((32, 32), np.nan))
    with pytest.raises(DataError, match="another layer"):
        gptq(np.eye(32), np.eye(16))
    with pytest.raises(RecipeError, match="blocksize"):
        gptq(np.eye(32), np.eye(32), blocksize=0)


@pytest.mark.parametrize(
    ("options", "codes", "scale", "zero"),
    [
        ({}, [0, 6, 11, 15], 0.113333, 9),
        ({"symmetric": True}, [0, 6, 10, 13], 0.133333, 8),
        ({"symmetric": True, "signed": True}, [-8, -2, 2, 5], 0.133333, 0),
        ({"bits": 8}, [0, 105, 180, 255], 0.0066667, 150),
        ({"bits": 2}, [0, 1, 2, 3], 0.566667, 2),
        ({"bits": 1, "symmetric": True, "signed": True}, [0, 0, 0, 0], 2.0, 0),
    ],
)
def test_the_published_vectors_of_groups(options, codes, scale, zero):
    found = quantize_groups(GROUP, length=4, **options)
    assert found.codes.tolist() == [codes]
    assert found.scales[0, 0] == pytest.approx(scale, abs=1e-6)
    assert found.zero_points.tolist() == [[zero]]


@given(
    values=arrays.arrays(np.float32, (3, 8), elements=st.floats(-1000, 1000, width=32)),
    bits=st.integers(2, 8),
    bounded=st.booleans(),
)
def test_no_value_is_further_off_than_a_step(values, bits, bounded):
    """Also groups of one sign, constants and zeros: the range holds zero where the zero point is
    a code."""
    found = quantize_groups(values, bits=bits, length=8, bounded=bounded)
    off = np.abs(found.scales * (found.codes - found.zero_points) - values.reshape(-1, 8))
    assert (off <= found.scales * (1 + 1e-9) + 1e-30).all()
    if bounded:
        assert (found.zero_points >= 0).all() and (found.zero_points < 1 << bits).all()


def test_a_zero_point_that_is_no_code_lets_the_range_lie_anywhere():
    far = [1.0, 1.1, 1.2, 1.3]
    found = quantize_groups(far, length=4, bounded=False)
    assert found.zero_points[0, 0] < 0
    off = np.abs(found.scales * (found.codes - found.zero_points) - far)
    assert off.max() < 0.011


def test_a_ratio_narrows_the_range_of_groups():
    whole, part = (quantize_groups(GROUP, length=4, ratio=ratio) for ratio in (1.0, 0.5))
    assert part.scales[0, 0] == pytest.approx(whole.scales[0, 0] / 2)


def test_shares_of_the_published_example():
    rows = [[1, 2, 3, 4], [4, 4, 2, 1]]
    assert get_weight_scale(rows, 2).tolist() == [0.75, 1, 0.875, 0.75]
    assert get_weight_scale(rows, -1).tolist() == [0.625, 0.75, 0.625, 0.625]
    assert get_weight_scale(np.zeros((2, 4)), -1).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("values", "options", "error", "message"),
    [
        (GROUP, {"length": 3}, RecipeError, "4 values do not make whole groups of 3"),
        (GROUP, {"length": 0}, RecipeError, "at least one value"),
        (GROUP, {"length": 4, "bits": 9}, RecipeError, "1 to 8 bits"),
        (GROUP, {"length": 4, "ratio": 0}, RecipeError, r"\(0, 1\]"),
        ([np.nan, 1], {"length": 2}, ModelError, "NaN"),
        (["a"], {"length": 1}, DataError, "numbers"),
    ],
)
def test_bad_groups_are_refused(values, options, error, message):
    with pytest.raises(error, match=message):
        quantize_groups(values, **options)
