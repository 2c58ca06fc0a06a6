"""Neural Compressor's weight-only functions: signatures, values, and what was wrong there."""

import inspect

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from support.language_models import make_block, make_samples
from support.models import (
    FLOAT16,
    build,
    constants_of,
    info,
    node,
    normal,
    ops,
    retype,
    run,
    weight,
)
from support.weights import make_layer

import bitwright.compat.neural_compressor.weight_only as weight_only
from bitwright.compat.neural_compressor import ONNXModel
from bitwright.compat.neural_compressor.weight_only import (
    apply_awq_clip,
    apply_awq_scale,
    awq_quantize,
    get_blob_size,
    get_weight_scale,
    gptq,
    gptq_quantize,
    make_matmul_weight_only_node,
    pad_tensor,
    prepare_inputs,
    qdq_tensor,
    quant_tensor,
    rtn_quantize,
)
from bitwright.errors import DataError, ModelError, RecipeError, TargetError

CPU = ["CPUExecutionProvider"]
COMMON = "num_bits=4, group_size=32, scheme='asym'"
TENSOR = f"(data, {COMMON}, dtype='int', ratio=1.0)"
AWQ_STEP = "(model, weight_config, absorb_pairs, output_dicts, num_bits, group_size, scheme)"
GPTQ_TAIL = "actorder=False, mse=False, perchannel=True"
LAST = f"accuracy_level=0, providers={CPU}"
SIGNATURES = {
    "get_blob_size": "(group_size, has_zp)",
    "make_matmul_weight_only_node": "(node, weight_shape, num_bits, group_size, k_blocks, "
    "q_weight, scale, zero_point, accuracy_level=0)",
    "quant_tensor": TENSOR,
    "qdq_tensor": TENSOR,
    "pad_tensor": "(weight, group_size, k_blocks)",
    "rtn_quantize": f"(model, weight_config={{}}, {COMMON}, ratios={{}}, {LAST})",
    "get_weight_scale": "(weight, group_size)",
    "apply_awq_scale": AWQ_STEP,
    "apply_awq_clip": AWQ_STEP,
    "prepare_inputs": "(model, n_samples, dataloader, providers)",
    "awq_quantize": f"(model, dataloader, weight_config={{}}, {COMMON}, n_samples=128, "
    f"enable_auto_scale=True, enable_mse_search=True, {LAST})",
    "gptq": f"(W, H, {COMMON}, blocksize=128, percdamp=0.01, {GPTQ_TAIL})",
    "gptq_quantize": f"(model, dataloader, weight_config={{}}, {COMMON}, n_samples=128, "
    f"percdamp=0.01, blocksize=128, {GPTQ_TAIL}, {LAST})",
}


def test_all_thirteen_functions_are_there():
    assert sorted(weight_only.__all__) == sorted(SIGNATURES)


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_and_defaults_are_the_documented_ones(name):
    parameters = inspect.signature(getattr(weight_only, name)).parameters.values()
    bare = inspect.Signature([p.replace(annotation=inspect.Parameter.empty) for p in parameters])
    assert str(bare) == SIGNATURES[name]


# Arrays ---------------------------------------------------------------------------------------

GROUP = [-1.0, -0.3, 0.2, 0.7]


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


# Data -----------------------------------------------------------------------------------------


class Loader:
    """As Neural Compressor's: (inputs, label), with a batch size."""

    def __init__(self, samples, batch_size=1):
        self.samples, self.batch_size = samples, batch_size

    def __iter__(self):
        return ((sample, 0) for sample in self.samples)


def mlp(**options):
    constants = {"w1": weight(64, 96), "w2": weight(96, 32, seed=1)}
    nodes = [
        node("MatMul", ["x", "w1"], ["h"], name="fc1"),
        node("Relu", ["h"], ["r"], name="relu"),
        node("MatMul", ["r", "w2"], ["y"], name="fc2"),
    ]
    return build(nodes, {"x": ["m", 64]}, {"y": ["m", 32]}, constants, opset=21, **options)


def rows(count=6, length=24):
    size = np.exp(np.random.default_rng(1).normal(size=64))
    return [(normal(length, 64, seed=seed) * size).astype(np.float32) for seed in range(count)]


def test_prepare_inputs_reads_every_kind_of_item():
    model = mlp()
    for items in (rows(3), [{"x": x} for x in rows(3)], [(x,) for x in rows(3)]):
        inputs, options = prepare_inputs(model, -1, Loader(items), CPU)
        assert [list(sample) for sample in inputs] == [["x"]] * 3
        assert isinstance(options, onnxruntime.SessionOptions)
    inputs, _ = prepare_inputs(ONNXModel(model), 5, Loader(rows(6), batch_size=2), CPU)
    assert len(inputs) == 2
    assert len(prepare_inputs(model, 4, rows(6), CPU)[0]) == 4  # a plain list will do


def test_a_pair_of_arrays_is_fed_to_a_model_with_two_inputs():
    nodes = [
        node("Add", ["a", "b"], ["c"], name="add"),
        node("MatMul", ["c", "w"], ["y"], name="p"),
    ]
    model = build(nodes, {"a": [2, 32], "b": [2, 32]}, {"y": [2, 8]}, {"w": weight(32, 8)})
    for item in ((normal(2, 32), normal(2, 32)), ([normal(2, 32), normal(2, 32)], 0)):
        inputs, _ = prepare_inputs(model, -1, [item], CPU)
        assert sorted(inputs[0]) == ["a", "b"]


@pytest.mark.parametrize(
    ("loader", "n_samples", "message"),
    [
        (None, -1, "no calibration data"),
        ([], -1, "no samples"),
        ([({"z": np.zeros((1, 64), np.float32)}, 0)], -1, "'?z'?|'x'"),
        (7, -1, "cannot be read"),
        (Loader(rows(2)), 0, "n_samples"),
        (Loader(rows(2), batch_size=9), 4, "less than one batch"),
    ],
)
def test_data_that_does_not_fit_is_refused(loader, n_samples, message):
    with pytest.raises(DataError, match=message):
        prepare_inputs(mlp(), n_samples, loader, CPU)


# Whole models ---------------------------------------------------------------------------------


def dequantized(model, name):
    """Return the weight that a MatMulNBits node holds, by multiplying ones."""
    return run(model, {"x": np.eye(64, dtype=np.float32)})[0]


def test_rtn_quantize_rounds_as_quant_tensor_does():
    model = build(
        [node("MatMul", ["x", "w"], ["y"], name="fc")],
        {"x": ["m", 64]},
        {"y": ["m", 9]},
        {"w": weight(64, 9)},
        opset=21,
    )
    before = model.SerializeToString()
    found = rtn_quantize(model)
    assert isinstance(found, ONNXModel) and model.SerializeToString() == before
    onnx.checker.check_model(found.model)
    wanted = qdq_tensor(weight(64, 9).T, dtype="uint").T
    np.testing.assert_allclose(dequantized(found.model, "fc"), wanted, atol=1e-5)
    narrow = rtn_quantize(model, ratios={"w": 0.9})
    wanted = qdq_tensor(weight(64, 9).T, dtype="uint", ratio=0.9).T
    np.testing.assert_allclose(dequantized(narrow.model, "fc"), wanted, atol=1e-5)


def attributes(model):
    return {
        n.name: {a.name: helper.get_attribute_value(a) for a in n.attribute}
        for n in model.nodes()
        if n.op_type == "MatMulNBits"
    }


def test_weight_config_is_for_the_named_node_alone():
    config = {"fc1": {"bits": 8, "group_size": 64, "scheme": "sym", "algorithm": "RTN"}}
    found = rtn_quantize(mlp(), config)
    assert config == {"fc1": {"bits": 8, "group_size": 64, "scheme": "sym", "algorithm": "RTN"}}
    shown = attributes(found)
    assert (shown["fc1"]["bits"], shown["fc1"]["block_size"]) == (8, 64)
    assert (shown["fc2"]["bits"], shown["fc2"]["block_size"]) == (4, 32)
    # Nothing of it is left for the next call.
    assert {a["bits"] for a in attributes(rtn_quantize(mlp())).values()} == {4}
    left = rtn_quantize(mlp(), {"fc1": "fp32"})
    assert list(attributes(left)) == ["fc2"]
    partly = rtn_quantize(mlp(), {"fc2": {"bits": 8}}, group_size=16)
    assert attributes(partly)["fc2"]["block_size"] == 16


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"fc9": {"bits": 8}}, "no node is called 'fc9'"),
        ({"fc1": {"bit": 8}}, "Did you mean 'bits'"),
        ({"fc1": {"scheme": "symm"}}, "Did you mean 'sym'"),
        ({"fc1": {"algorithm": "GPT"}}, "Did you mean 'GPTQ'"),
        ({"fc1": "fp16"}, "'fp32' or a dict"),
        ({"fc1": {"bits": 1}}, "2 to 8 bits"),
        ({"fc1": {"group_size": 24}}, "power of two"),
    ],
)
def test_a_wrong_weight_config_is_refused(config, message):
    with pytest.raises(RecipeError, match=message):
        rtn_quantize(mlp(), config)
    with pytest.raises(RecipeError, match="unknown scheme"):
        rtn_quantize(mlp(), scheme="foo")
    with pytest.raises(RecipeError, match="no weight is called 'w9'"):
        rtn_quantize(mlp(), ratios={"w9": 0.9})


def test_a_named_node_that_stays_float_is_told():
    nodes = [
        node("MatMul", ["x", "x2"], ["h"], name="both"),
        node("MatMul", ["h", "w"], ["y"], name="fc"),
    ]
    model = build(nodes, {"x": [4, 32], "x2": [32, 32]}, {"y": [4, 8]}, {"w": weight(32, 8)})
    with pytest.warns(UserWarning, match="'both' of weight_config stays float: its weight"):
        rtn_quantize(model, {"both": {"bits": 4}})


@pytest.mark.parametrize(("bits", "group_size"), [(4, 32), (4, -1), (8, 128), (2, 64), (3, 32)])
def test_every_width_is_stored_small_and_runs(bits, group_size):
    model = mlp()
    found = rtn_quantize(model, num_bits=bits, group_size=group_size)
    assert ops(found.model) == {"MatMulNBits": 2, "Relu": 1}
    assert found.model.ByteSize() < 0.8 * model.ByteSize()
    x = rows(1)[0]
    wanted, (got,) = run(model, {"x": x})[0], run(found.model, {"x": x})
    assert np.corrcoef(wanted.ravel(), got.ravel())[0, 1] > (0.75 if bits == 2 else 0.95)


def test_the_accuracy_level_is_written_and_zero_means_what_is_fast():
    assert "accuracy_level" not in attributes(rtn_quantize(mlp()))["fc1"]
    assert attributes(rtn_quantize(mlp(), accuracy_level=4))["fc1"]["accuracy_level"] == 4
    # 8 bits are fast at level 4 only.
    assert attributes(rtn_quantize(mlp(), num_bits=8))["fc1"]["accuracy_level"] == 4


def test_float16_models_keep_their_type():
    model = retype(mlp(), np.float16, FLOAT16)
    found = rtn_quantize(model)
    scales = [a for name, a in constants_of(found.model).items() if name.endswith("scales")]
    assert {array.dtype for array in scales} == {np.dtype(np.float16)}
    run(found.model, {"x": rows(1)[0].astype(np.float16)})


def error(model, found, samples):
    lost = [
        ((run(model, s)[0] - run(found, s)[0]) ** 2).sum() / (run(model, s)[0] ** 2).sum()
        for s in samples
    ]
    return float(np.mean(lost))


@pytest.fixture(scope="module")
def language_model():
    return make_block(depth=1), make_samples(8), make_samples(4, seed=9)


@pytest.fixture(scope="module")
def plain_error(language_model):
    model, _, test = language_model
    return error(model, rtn_quantize(model, num_bits=3).model, test)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"enable_auto_scale": False},
        {"enable_mse_search": False},
        {"scheme": "sym"},
    ],
)
def test_awq_quantize_is_better_than_rtn(language_model, plain_error, options):
    """There each half needed the other, and neither did anything."""
    model, data, test = language_model
    found = awq_quantize(model, Loader(data), num_bits=3, **options)
    bar = plain_error
    if options.get("scheme") == "sym":
        bar = error(model, rtn_quantize(model, num_bits=3, scheme="sym").model, test)
    assert error(model, found.model, test) < 0.97 * bar


def test_awq_quantize_without_both_is_rtn(language_model):
    model, data, _ = language_model
    off = {"enable_auto_scale": False, "enable_mse_search": False}
    found = awq_quantize(model, Loader(data), **off).model
    assert found.graph.SerializeToString() == rtn_quantize(model).model.graph.SerializeToString()


@pytest.mark.parametrize("options", [{}, {"actorder": True, "mse": True}])
def test_gptq_quantize_is_better_than_rtn(language_model, plain_error, options):
    model, data, test = language_model
    found = gptq_quantize(model, Loader(data), num_bits=3, **options)
    assert error(model, found.model, test) < 0.85 * plain_error


def test_awq_takes_products_of_graph_inputs_samples_of_any_length_and_ragged_weights():
    """There: KeyError, ValueError, ValueError."""
    nodes = [node("MatMul", ["x", "w"], ["y"], name="fc")]
    model = build(nodes, {"x": ["m", 70]}, {"y": ["m", 12]}, {"w": weight(70, 12)}, opset=21)
    data = [(normal(length, 70, seed=length), 0) for length in (5, 9, 70)]
    found = awq_quantize(model, iter(data))
    x = normal(4, 70, seed=2)
    wanted, (got,) = run(model, {"x": x})[0], run(found.model, {"x": x})
    assert np.corrcoef(wanted.ravel(), got.ravel())[0, 1] > 0.98


def test_algorithms_of_single_nodes(language_model):
    model = mlp()
    data = Loader(rows())
    mixed = {"fc1": {"algorithm": "GPTQ"}, "fc2": {"algorithm": "RTN", "bits": 8}}
    first = gptq_quantize(model, data, mixed)
    assert list(attributes(first)) == ["fc1"]
    both = rtn_quantize(first, mixed)
    assert {name: a["bits"] for name, a in attributes(both).items()} == {"fc1": 4, "fc2": 8}
    one = awq_quantize(model, data, {"fc2": {"algorithm": "RTN"}})
    plain = rtn_quantize(model)
    held = [constants_of(m.model)["w2_q4"] for m in (one, plain)]
    np.testing.assert_array_equal(*held)
    assert (constants_of(one.model)["w1_q4"] != constants_of(plain.model)["w1_q4"]).any()


def test_calibration_that_is_empty_is_refused():
    for function in (awq_quantize, gptq_quantize):
        with pytest.raises(DataError):
            function(mlp(), [])
        with pytest.raises(DataError):
            function(mlp(), None)


def test_large_models_are_saved_from_a_path(tmp_path):
    onnx.save(mlp(), tmp_path / "m.onnx", save_as_external_data=True, location="m.data")
    found = rtn_quantize(tmp_path / "m.onnx")
    found.save(tmp_path / "small.onnx")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.data", "m.onnx", "small.onnx"]
    assert ops(onnx.load(tmp_path / "small.onnx"))["MatMulNBits"] == 2


# AWQ in steps ---------------------------------------------------------------------------------


def observed(model, samples, names):
    twin = onnx.ModelProto()
    twin.CopyFrom(model)
    twin.graph.output.extend(info(name) for name in names)
    values = [dict(zip([*"y", *names], run(twin, {"x": x}), strict=True)) for x in samples]
    return {name: [value[name] for value in values] for name in names}


def test_awq_in_steps_changes_nothing_and_helps():
    model, samples = mlp(), rows()
    pairs = {"relu": [n for n in model.graph.node if n.name == "fc2"]}
    outputs = observed(model, samples, ["r"])
    outputs["r"][0][:, :4] *= 30  # a few channels stand out
    kept = model.SerializeToString(), {name: list(arrays) for name, arrays in outputs.items()}
    scaled, after = apply_awq_scale(model, {}, pairs, outputs, 3, 32, "asym")
    assert model.SerializeToString() == kept[0] and list(outputs) == list(kept[1])
    np.testing.assert_allclose(
        run(scaled.model, {"x": samples[0]})[0], run(model, {"x": samples[0]})[0], atol=1e-3
    )
    reads = next(n.input[0] for n in scaled.nodes() if n.name == "fc2")
    assert after[reads][0].shape == outputs["r"][0].shape
    assert (after[reads][0] != outputs["r"][0]).any()
    ratios = apply_awq_clip(scaled, {}, pairs, after, 3, 32, "asym")
    (name,) = ratios
    assert name in {n.input[1] for n in scaled.nodes() if n.name == "fc2"}
    assert 0.91 <= ratios[name] <= 1
    assert (
        rtn_quantize(scaled, num_bits=3, ratios=ratios).plan.weights[name].rounding.shrink
        == (ratios[name])
    )


def test_awq_in_steps_says_what_is_missing():
    model = mlp()
    pairs = {"relu": [n for n in model.graph.node if n.name == "fc2"]}
    with pytest.warns(UserWarning, match="output_dicts has no 'r'"):
        assert apply_awq_clip(model, {}, pairs, {}, 4, 32, "asym") == {}
    stray = {"x": [helper.make_node("MatMul", ["a", "b"], ["c"], name="nowhere")]}
    with pytest.raises(ModelError, match="no node 'nowhere'"):
        apply_awq_scale(model, {}, stray, {}, 4, 32, "asym")
