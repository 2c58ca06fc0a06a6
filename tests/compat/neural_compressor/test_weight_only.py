"""Whole models, rounded by the functions of `weight_only`."""

import inspect

import numpy as np
import onnx
import pytest
from support.language_models import make_block, make_samples
from support.models import (
    FLOAT16,
    build,
    constants_of,
    node,
    normal,
    ops,
    retype,
    run,
    weight,
)
from support.neural_compressor import CPU, Loader, attributes, error, mlp, rows

import bitwright.compat.neural_compressor.weight_only as weight_only
from bitwright.compat.neural_compressor import ONNXModel
from bitwright.compat.neural_compressor.weight_only import (
    awq_quantize,
    gptq_quantize,
    qdq_tensor,
    rtn_quantize,
)
from bitwright.errors import DataError

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
    scales = [a for name, a in constants_of(found.model).items() if name.endswith("_scale")]
    assert {array.dtype for array in scales} == {np.dtype(np.float16)}
    run(found.model, {"x": rows(1)[0].astype(np.float16)})


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
    held = [constants_of(m.model)["w2_Q4G32"] for m in (one, plain)]
    np.testing.assert_array_equal(*held)
    assert (constants_of(one.model)["w1_Q4G32"] != constants_of(plain.model)["w1_Q4G32"]).any()


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
