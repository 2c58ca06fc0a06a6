"""What a new user gets wrong: each mistake is told in one sentence, early, and leaves no file."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from support.models import (
    BOOL,
    FLOAT16,
    INT64,
    Reader,
    build,
    constants_of,
    dequantizer_before,
    element_types,
    info,
    make_cnn,
    make_mlp,
    make_samples,
    node,
    nodes_by_name,
    normal,
    ops,
    quality,
    quantize_static_in,
    retype,
    run,
    tensors,
    unchanged,
    weight,
)
from support.peer_runs import PeerReader, peer

import bitwright
from bitwright.compat.onnxruntime import QuantFormat, QuantType, quantize_static
from bitwright.data import RandomData
from bitwright.errors import BitwrightError, DataError, ModelError, OutputError, RecipeError
from bitwright.numerics.types import UINT16
from bitwright.recipe import MSE, Distribution, Entropy, MinMax, MinMSE, NonOverflow, Percentile

EVERY_METHOD = [
    MinMax(),
    MinMax(moving_average=0.1),
    MinMax(symmetric=True),
    MinMax(per_channel=True),
    Percentile(),
    Entropy(),
    Distribution(),
    MSE(),
    NonOverflow(),
    MinMSE(),
]


def recipe_for(method, **more):
    """Return a recipe with this range method and what goes with it."""
    if isinstance(method, NonOverflow | MinMSE):
        more["scales"] = "power-of-two"
    if isinstance(method, MinMax) and method.per_channel:
        more["activation"] = UINT16
    return bitwright.Recipe(name="test", ranges=method, **more)


def assert_one_sentence(error):
    text = str(error.value)
    assert "\n" not in text
    assert text.endswith((".", "?"))
    assert "Traceback" not in text


@pytest.fixture
def job(tmp_path):
    """A folder with a model in it, data for it, and a place to write to."""
    model = make_cnn()
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    return path, make_samples(model), tmp_path / "quantized.onnx"


def refused(kind, said, call, folder):
    """Prove that a call is refused with one sentence, and leaves the folder as it was."""
    with unchanged(folder), pytest.raises(kind, match=said) as error:
        call()
    assert_one_sentence(error)
    assert isinstance(error.value, BitwrightError)


# The file -----------------------------------------------------------------------------------


def test_a_missing_file_is_named(tmp_path):
    refused(
        ModelError,
        r"no file '.*missing\.onnx'; check the path",
        lambda: bitwright.quantize(tmp_path / "missing.onnx", tmp_path / "q.onnx", data=[]),
        tmp_path,
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", r"model\.onnx' is empty \(0 bytes\)"),
        (b"this is a text file, not a model", r"model\.onnx' is not an ONNX model"),
        (b"\x89PNG\r\n\x1a\n" + bytes(64), r"model\.onnx' is not an ONNX model"),
        ("cut", r"model\.onnx' is cut off or damaged"),
    ],
)
@pytest.mark.parametrize("call", [bitwright.quantize, quantize_static])
def test_a_file_that_is_no_whole_model_is_told_so(job, content, said, call):
    path, samples, out = job
    path.write_bytes(path.read_bytes()[:-200] if content == "cut" else content)
    if call is quantize_static:
        refused(ModelError, said, lambda: call(path, out, Reader(samples)), path.parent)
    else:
        refused(ModelError, said, lambda: call(path, out, data=samples), path.parent)


def test_a_folder_without_models_is_no_model(tmp_path):
    refused(
        ModelError,
        "has no ONNX model; give the folder",
        lambda: bitwright.quantize(tmp_path, tmp_path / "q.onnx", data=[]),
        tmp_path,
    )


def test_the_input_file_keeps_its_bytes(job):
    path, samples, out = job
    before = path.read_bytes()
    bitwright.quantize(path, out, data=samples)
    assert path.read_bytes() == before
    assert sorted(p.name for p in path.parent.iterdir()) == ["model.onnx", "quantized.onnx"]


def test_a_model_in_memory_keeps_its_content():
    model = make_cnn()
    before = model.SerializeToString()
    bitwright.quantize(model, data=make_samples(model))
    assert model.SerializeToString() == before


# The output ---------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["native", "compat"])
def test_a_missing_output_folder_is_found_before_any_data_is_read(job, call):
    path, samples, _ = job
    reader = Reader(samples)
    out = path.parent / "nowhere" / "q.onnx"

    def start():
        if call == "native":
            bitwright.quantize(path, out, data=reader)
        else:
            quantize_static(path, out, reader)

    refused(OutputError, "no folder '.*nowhere'", start, path.parent)
    assert reader.asked == 0


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_write_permission_is_found_before_any_data_is_read(job):
    path, samples, _ = job
    locked = path.parent / "locked"
    locked.mkdir()
    locked.chmod(0o500)
    reader = Reader(samples)
    try:
        refused(
            OutputError,
            "locked' cannot be written to",
            lambda: bitwright.quantize(path, locked / "q.onnx", data=reader),
            path.parent,
        )
    finally:
        locked.chmod(0o700)
    assert reader.asked == 0


def test_an_unwritable_folder_is_found_before_any_data_is_read(job, monkeypatch):
    path, samples, out = job
    reader = Reader(samples)
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    refused(
        OutputError,
        "cannot be written to",
        lambda: bitwright.quantize(path, out, data=reader),
        path.parent,
    )
    assert reader.asked == 0


@pytest.mark.parametrize("spelling", ["same", "dotted", "link"])
def test_the_output_may_not_be_the_input(job, spelling):
    path, samples, out = job
    target = {"same": path, "dotted": path.parent / "." / "model.onnx", "link": out}[spelling]
    if spelling == "link":
        out.symlink_to(path)
    reader = Reader(samples)
    refused(
        OutputError,
        "would overwrite the input",
        lambda: bitwright.quantize(path, target, data=reader),
        path.parent,
    )
    assert reader.asked == 0


@pytest.mark.parametrize("external", [False, True])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(job, monkeypatch, external):
    path, samples, out = job
    out.write_bytes(b"what stood here before")

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    refused(
        OutputError,
        r"quantized\.onnx' was not written: the disk is full.*free some space",
        lambda: bitwright.quantize(path, out, data=samples, external_data=external),
        path.parent,
    )


# The opset ----------------------------------------------------------------------------------


def make_old(opset):
    """Conv, BatchNormalization, Relu, Dropout: what opsets 7 to 12 say in their own way."""
    constants = {
        "w": weight(8, 3, 3, 3, seed=1),
        "b": normal(8, seed=2),
        "scale": 1 + normal(8, seed=3, size=0.1),
        "shift": normal(8, seed=4, size=0.1),
        "mean": normal(8, seed=5, size=0.1),
        "var": 1 + np.abs(normal(8, seed=6, size=0.1)),
        "w2": weight(8, 10, seed=7),
        "c2": normal(10, seed=8),
    }
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], name="conv", kernel_shape=[3, 3]),
        node("BatchNormalization", ["c", "scale", "shift", "mean", "var"], ["n"], name="bn"),
        node("Relu", ["n"], ["r"], name="relu"),
        node("GlobalAveragePool", ["r"], ["g"], name="pool"),
        node("Flatten", ["g"], ["f"], name="flatten"),
        node("Dropout", ["f"], ["d"], name="drop"),
        node("Gemm", ["d", "w2", "c2"], ["y"], name="fc"),
    ]
    return build(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 10]}, constants, opset=opset, ir_version=4)


@pytest.mark.parametrize("opset", [7, 9, 10, 11, 12])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.sampled(4)
def test_an_old_opset_is_upgraded_and_runs(tmp_path, opset, per_channel):
    model = make_old(opset)
    samples = make_samples(model)
    native = bitwright.quantize(
        model,
        data=samples,
        recipe={"base": "int8", "per_channel": per_channel},
        holdout=False,
    )
    assert native.model.graph.opset_imports[""] >= 13
    assert any("upgraded opset" in note for note in native.plan.notes)
    assert quality(model, native, samples) > 30
    compatible = quantize_static_in(tmp_path, model, samples, per_channel=per_channel)
    assert quality(model, compatible, samples) > 30


def test_an_opset_that_cannot_be_upgraded_is_refused_with_the_reason(tmp_path):
    model = build(
        [
            node("MatMul", ["x", "w"], ["h"], name="mm"),
            node("ATen", ["h"], ["y"], name="odd"),
        ],
        {"x": [4, 16]},
        {"y": [4, 8]},
        {"w": weight(16, 8)},
        opset=9,
        ir_version=4,
    )
    refused(
        ModelError,
        "ATen|odd",
        lambda: bitwright.quantize(model, tmp_path / "q.onnx", data=make_samples(model)),
        tmp_path,
    )


# The data -----------------------------------------------------------------------------------


@pytest.mark.parametrize("empty", [[], iter(()), Reader([]), np.zeros((0, 3, 12, 12), np.float32)])
def test_no_samples_is_an_error(job, empty):
    path, _, out = job
    refused(
        DataError,
        "at least one",
        lambda: bitwright.quantize(path, out, data=empty),
        path.parent,
    )


def test_an_empty_reader_through_the_peers_names_is_an_error(job):
    path, _, out = job
    refused(DataError, "no samples", lambda: quantize_static(path, out, Reader([])), path.parent)


def test_no_data_at_all_is_an_error(job):
    path, _, out = job
    refused(
        DataError,
        "needs calibration data",
        lambda: bitwright.quantize(path, out),
        path.parent,
    )
    refused(
        DataError,
        "calibration_data_reader",
        lambda: quantize_static(path, out),
        path.parent,
    )


@pytest.mark.parametrize("shape", ["list", "generator", "reader"])
def test_lists_generators_and_readers_give_the_same_model(job, shape):
    path, samples, out = job
    given = {"list": samples, "generator": (s for s in samples), "reader": Reader(samples)}[shape]
    quantize_static(path, out, given)
    expected = out.with_name("expected.onnx")
    quantize_static(path, expected, list(samples))
    assert out.read_bytes() == expected.read_bytes()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: {"image": x}, "input 'x'|'image'"),
        (lambda x: {"X": x, "more": x}, "'X'.*Did you mean 'x'"),
        (lambda x: {"x": x.astype(np.int32)}, "'x'.*int32.*float32"),
        (lambda x: {"x": x.astype(str)}, "'x'"),
        (lambda x: {"x": x[:, :2]}, r"'x' takes shape \[1,3,12,12\].*has shape \[1,2,12,12\]"),
        (lambda x: {"x": x[0, 0]}, "'x'"),
        (lambda x: {}, "x"),
    ],
    ids=["name", "case", "dtype", "text", "shape", "rank", "nothing"],
)
def test_data_that_does_not_fit_is_told_with_the_input_and_the_sample(job, change, said):
    path, samples, out = job
    broken = [*samples[:2], change(samples[2]["x"]), *samples[3:]]
    refused(
        DataError,
        f"(?s)sample 2.*({said})",
        lambda: bitwright.quantize(path, out, data=broken),
        path.parent,
    )


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("method", EVERY_METHOD, ids=repr)
def test_a_broken_pixel_is_told_for_every_range_method(job, method, value):
    path, samples, out = job
    samples[3]["x"][0, 1, 2, 3] = value
    refused(
        DataError,
        "sample 3: input 'x' holds 1 NaN or infinite value",
        lambda: bitwright.quantize(path, out, data=samples, recipe=recipe_for(method)),
        path.parent,
    )


def make_logarithm():
    """Log gives NaN below zero and minus infinity at zero."""
    return build(
        [
            node("MatMul", ["x", "w"], ["h"], name="before"),
            node("Log", ["x"], ["l"], name="log"),
            node("MatMul", ["l", "w"], ["g"], name="after"),
            node("Add", ["h", "g"], ["y"], name="sum"),
        ],
        {"x": [4, 16]},
        {"y": [4, 8]},
        {"w": weight(16, 8)},
    )


@pytest.mark.parametrize(("value", "said"), [(-1.0, "2 NaN and 0 inf"), (0.0, "0 NaN and 2 inf")])
@pytest.mark.parametrize("method", [MinMax(), Entropy(), Percentile(), MSE()], ids=repr)
def test_values_that_break_inside_the_model_are_told_with_tensor_and_count(
    tmp_path, method, value, said
):
    model = make_logarithm()
    samples = [{"x": np.abs(normal(4, 16, seed=i)) + 0.1} for i in range(8)]
    for index in (1, 5):
        samples[index]["x"][0, 0] = value
    refused(
        DataError,
        f"tensor 'l' has {said}inite values among 512.*'after'",
        lambda: bitwright.quantize(
            model, tmp_path / "q.onnx", data=samples, recipe=recipe_for(method), holdout=False
        ),
        tmp_path,
    )


@pytest.mark.parametrize("method", EVERY_METHOD, ids=repr)
def test_the_input_size_may_vary_between_samples_for_every_range_method(method):
    model = make_mlp()
    samples = [{"x": normal(rows, 16, seed=rows)} for rows in (9, 5, 2, 1, 3, 4)]
    result = bitwright.quantize(model, data=samples, recipe=recipe_for(method), holdout=False)
    assert quality(model, result, samples) > 10


def make_open_image():
    return build(
        [
            node("Conv", ["x", "w"], ["c"], name="conv"),
            node("Relu", ["c"], ["y"], name="relu"),
        ],
        {"x": ["n", 3, "height", "width"]},
        {"y": ["n", 8, "h", "w2"]},
        {"w": weight(8, 3, 3, 3)},
    )


def test_random_data_cannot_settle_open_sizes_and_says_how_to(tmp_path):
    refused(
        DataError,
        r"dimension 2 \('height'\) of input 'x'.*shapes=",
        lambda: bitwright.quantize(make_open_image(), tmp_path / "q.onnx", data=RandomData()),
        tmp_path,
    )


def test_random_data_with_sizes_settles_them():
    result = bitwright.quantize(
        make_open_image(), data=RandomData(shapes={"height": 8, "width": 9}), purpose="size"
    )
    assert result.quantized["Conv"] == 1


# Options ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "kind", "said"),
    [
        (
            lambda p, o, r: bitwright.quantize(p, o, data=r, recipe={"per_chanel": True}),
            RecipeError,
            "unknown option 'per_chanel'. Did you mean 'per_channel'",
        ),
        (
            lambda p, o, r: bitwright.quantize(p, o, data=r, recipe="int9"),
            RecipeError,
            "unknown recipe 'int9'. Did you mean 'int8'",
        ),
        (
            lambda p, o, r: bitwright.quantize(p, o, data=r, target="gpux"),
            bitwright.TargetError,
            "unknown target 'gpux'",
        ),
        (
            lambda p, o, r: bitwright.quantize(
                p, o, data=r, recipe={"select": {"op_types": ["Conf"]}}
            ),
            RecipeError,
            "unknown op type 'Conf'. Did you mean 'Conv'",
        ),
        (
            lambda p, o, r: bitwright.quantize(
                p, o, data=r, recipe={"select": {"nodes": ["conv7"]}}
            ),
            RecipeError,
            "no node is called 'conv7'. Did you mean 'conv",
        ),
        (
            lambda p, o, r: bitwright.quantize(
                p, o, data=r, recipe={"select": {"exclude": ["rellu1"]}}
            ),
            RecipeError,
            "no node is called 'rellu1'. Did you mean 'relu1'",
        ),
        (
            lambda p, o, r: bitwright.quantize(
                p, o, data=r, recipe={"select": {"exclude": ["re:block7/.*"]}}
            ),
            RecipeError,
            "no node fits 're:block7",
        ),
        (
            lambda p, o, r: quantize_static(p, o, r, quant_format="QOprator"),
            RecipeError,
            "unknown quantization format 'QOprator'. Did you mean 'QOperator'",
        ),
        (
            lambda p, o, r: quantize_static(
                p, o, r, quant_format="QOperator", activation_type="QUInt16"
            ),
            RecipeError,
            "Only QuantFormat.QDQ supports 16-bit quantization types",
        ),
        (
            lambda p, o, r: quantize_static(p, o, r, activation_type="int7"),
            RecipeError,
            "unknown activation type 'int7'",
        ),
        (
            lambda p, o, r: quantize_static(
                p, o, r, activation_type=QuantType.QInt8, weight_type=QuantType.QUInt8
            ),
            RecipeError,
            "doesn't support data format.*use int8 weights, or uint8 activations",
        ),
        (
            lambda p, o, r: bitwright.quantize(
                p, o, data=r, recipe={"activation": "int8", "weight": "uint8"}
            ),
            RecipeError,
            "int8 activations with uint8 weights",
        ),
        (
            lambda p, o, r: quantize_static(p, o, r, weight_type=QuantType.QFLOAT8E4M3FN),
            RecipeError,
            "Only Distribution calibration method is supported for float quantization",
        ),
        (
            lambda p, o, r: bitwright.quantize(p, o, data=r, recipe={"activation": "int32"}),
            RecipeError,
            "ONNX has no QuantizeLinear to int32; use one of int8",
        ),
        (
            lambda p, o, r: bitwright.quantize(p, o, data=r, recipe={"weight": "bfloat16"}),
            RecipeError,
            "bfloat16; use one of int8",
        ),
        (
            lambda p, o, r: bitwright.quantize(
                p, o, data=r, recipe={"ranges": {"method": "minmax", "per_channel": True}}
            ),
            RecipeError,
            "8-bit kernels take one scale for a whole activation",
        ),
        (
            lambda p, o, r: bitwright.quantize(
                p, o, data=r, recipe={"select": {"op_types": ["LSTM"]}}
            ),
            ModelError,
            "nothing in this model was quantized",
        ),
        (
            lambda p, o, r: bitwright.quantize(
                p, o, data=r, recipe={"overrides": {"c9": {"symmetric": True}}}
            ),
            RecipeError,
            "no tensor is called 'c9'",
        ),
    ],
)
def test_a_wrong_option_is_refused_before_any_data_is_read(job, call, kind, said):
    path, samples, out = job
    reader = Reader(samples)
    refused(kind, said, lambda: call(path, out, reader), path.parent)
    assert reader.asked == 0


def test_names_work_where_the_peer_wants_its_enums(job):
    path, samples, out = job
    quantize_static(
        path,
        out,
        Reader(samples),
        quant_format="QDQ",
        activation_type="QUInt8",
        weight_type="QInt8",
        calibrate_method="Entropy",
    )
    by_name = out.read_bytes()
    quantize_static(
        path,
        out,
        Reader(samples),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        calibrate_method=bitwright.compat.onnxruntime.CalibrationMethod.Entropy,
    )
    assert out.read_bytes() == by_name


def test_the_peers_own_enums_and_reader_class_work(job):
    path, samples, out = job
    quantize_static(
        path,
        out,
        PeerReader(samples),
        quant_format=peer.QuantFormat.QDQ,
        activation_type=peer.QuantType.QUInt8,
        weight_type=peer.QuantType.QInt8,
        calibrate_method=peer.CalibrationMethod.MinMax,
    )
    assert quality(path, out, samples) > 30


# Models of an unusual kind ------------------------------------------------------------------


def test_a_quantized_model_is_not_quantized_again(job):
    path, samples, out = job
    bitwright.quantize(path, out, data=samples, purpose="size")
    again = out.with_name("again.onnx")
    refused(
        ModelError,
        "already quantized.*quantizeLinear.*give the float model",
        lambda: bitwright.quantize(out, again, data=samples),
        path.parent,
    )
    refused(
        ModelError,
        "already quantized",
        lambda: quantize_static(out, again, Reader(samples)),
        path.parent,
    )


def test_a_model_of_another_float_is_refused_with_the_reason(tmp_path):
    model = retype(make_mlp(width=32), np.float64, TensorProto.DOUBLE)
    refused(
        ModelError,
        "computes in float64 throughout.*export it as float32",
        lambda: bitwright.quantize(model, tmp_path / "q.onnx", data=make_samples(make_mlp())),
        tmp_path,
    )


@pytest.mark.parametrize("per_channel", [False, True])
def test_a_float16_model_is_quantized_and_runs(tmp_path, per_channel):
    model = retype(make_cnn(), np.float16, FLOAT16)
    samples = make_samples(model)
    native = bitwright.quantize(
        model,
        data=samples,
        recipe={"base": "int8", "per_channel": per_channel},
        holdout=False,
    )
    assert native.quantized["Conv"] == 2
    # The runtime's kernels take float32 scales only; outside, the model is what it was.
    assert constants_of(native)["w1_scale"].dtype == np.float32
    assert run(native, samples[0])[0].dtype == np.float16
    assert quality(model, native, samples) > 28
    compatible = quantize_static_in(tmp_path, model, samples, per_channel=per_channel)
    assert quality(model, compatible, samples) > 28


def make_with_function():
    """A model whose layer is a model-local function, as torch exports them."""
    function = helper.make_function(
        "local",
        "Linear",
        ["a", "w"],
        ["b"],
        [node("MatMul", ["a", "w"], ["m"], name="mm"), node("Relu", ["m"], ["b"], name="relu")],
        [helper.make_opsetid("", 17)],
    )
    return build(
        [
            node("Linear", ["x", "w1"], ["h"], name="one", domain="local"),
            node("Linear", ["h", "w2"], ["y"], name="two", domain="local"),
        ],
        {"x": [4, 16]},
        {"y": [4, 8]},
        {"w1": weight(16, 16, seed=1), "w2": weight(16, 8, seed=2)},
        domains=["local"],
        functions=[function],
    )


@pytest.mark.parametrize("call", ["native", "compat"])
def test_model_local_functions_are_quantized_inside(tmp_path, call):
    model = make_with_function()
    samples = make_samples(model)
    if call == "native":
        quantized = bitwright.quantize(model, data=samples, recipe="int8", holdout=False)
    else:
        quantized = quantize_static_in(tmp_path, model, samples)
    assert ops(quantized)["MatMul"] == 2
    assert sum(name.endswith("_quantized") for name in constants_of(quantized)) == 2
    assert quality(model, quantized, samples) > 30


@pytest.mark.parametrize("call", ["native", "compat"])
def test_weights_in_constant_nodes_become_integers(tmp_path, call):
    constants = {"w": weight(16, 32, seed=1), "c": normal(32, seed=2)}
    model = build(
        [
            *(
                node("Constant", [], [t.name], name=f"const_{t.name}", value=t)
                for t in tensors(constants)
            ),
            node("Gemm", ["x", "w", "c"], ["y"], name="fc"),
        ],
        {"x": [4, 16]},
        {"y": [4, 32]},
    )
    samples = make_samples(model)
    if call == "native":
        quantized = bitwright.quantize(model, data=samples, holdout=False, purpose="size")
    else:
        quantized = quantize_static_in(tmp_path, model, samples)
    assert element_types(quantized)["w_quantized"] == TensorProto.INT8
    assert element_types(quantized)["c_quantized"] == TensorProto.INT32
    assert not any(
        array.dtype == np.float32 and array.size > 32 for array in constants_of(quantized).values()
    )
    assert quality(model, quantized, samples) > 30


@pytest.mark.parametrize("call", ["native", "compat"])
def test_initializers_that_are_graph_inputs_are_quantized(tmp_path, call):
    model = make_cnn(ir_version=3, opset=10)
    for tensor in model.graph.initializer:
        model.graph.input.append(info(tensor.name, list(tensor.dims)))
    samples = make_samples(model)
    if call == "native":
        quantized = bitwright.quantize(model, data=samples, holdout=False, purpose="size")
    else:
        quantized = quantize_static_in(tmp_path, model, samples)
    assert element_types(quantized)["w1_quantized"] == TensorProto.INT8
    assert quality(model, quantized, samples) > 30


def make_branches():
    """An If whose branches hold a MatMul each, behind and before MatMuls of the main graph."""

    def branch(name, seed):
        return helper.make_graph(
            [
                node("MatMul", ["h", "w"], ["m"], name=f"{name}_mm"),
                node("Relu", ["m"], [f"{name}_out"], name=f"{name}_relu"),
            ],
            name,
            [],
            [info(f"{name}_out", [4, 16])],
            tensors({"w": weight(16, 16, seed=seed)}),
        )

    return build(
        [
            node("MatMul", ["x", "w1"], ["h"], name="before"),
            node(
                "If",
                ["c"],
                ["i"],
                name="choose",
                then_branch=branch("then", 5),
                else_branch=branch("else", 6),
            ),
            node("MatMul", ["i", "w2"], ["y"], name="after"),
        ],
        [info("x", [4, 16]), info("c", [], BOOL)],
        [info("y", [4, 8])],
        {"w1": weight(16, 16, seed=1), "w2": weight(16, 8, seed=2)},
    )


def make_loop():
    """A Loop whose body multiplies its state by a weight, three times."""
    body = helper.make_graph(
        [
            node("Identity", ["keep"], ["keep_out"], name="keep"),
            node("MatMul", ["s", "w"], ["m"], name="body_mm"),
            node("Tanh", ["m"], ["s_out"], name="tanh"),
        ],
        "body",
        [info("i", [], INT64), info("keep", [], BOOL), info("s", [4, 16])],
        [info("keep_out", [], BOOL), info("s_out", [4, 16])],
        tensors({"w": weight(16, 16, seed=5)}),
    )
    return build(
        [
            node("MatMul", ["x", "w1"], ["h"], name="before"),
            node("Loop", ["times", "", "h"], ["l"], name="loop", body=body),
            node("MatMul", ["l", "w2"], ["y"], name="after"),
        ],
        {"x": [4, 16]},
        {"y": [4, 8]},
        {"w1": weight(16, 16, seed=1), "w2": weight(16, 8, seed=2), "times": np.array(3)},
    )


def body_ops(model):
    return [
        item.op_type
        for outer in model.graph.node
        for attribute in outer.attribute
        if attribute.HasField("g")
        for item in attribute.g.node
    ]


def branch_samples(model):
    samples = make_samples(model, 8)
    for index, sample in enumerate(samples):
        if "c" in sample:
            sample["c"] = np.array(bool(index % 2))
    return samples


@pytest.mark.parametrize("make", [make_branches, make_loop])
@pytest.mark.parametrize("inside", [False, True])
def test_bodies_of_if_and_loop_are_kept_or_quantized_as_asked(make, inside):
    model = make()
    samples = branch_samples(model)
    recipe = {"base": "int8", "select": {"subgraphs": inside}}
    result = bitwright.quantize(model, data=samples, recipe=recipe, holdout=False)
    quantized = result.to_proto()
    assert ("DequantizeLinear" in body_ops(quantized)) == inside
    assert dequantizer_before(quantized, "before", 1) is not None
    assert quality(model, quantized, samples) > 25


def test_a_branch_that_never_ran_stays_float_and_is_told():
    model = make_branches()
    samples = [{**sample, "c": np.array(True)} for sample in branch_samples(model)]
    recipe = {"base": "int8", "select": {"subgraphs": True}}
    result = bitwright.quantize(model, data=samples, recipe=recipe, holdout=False)
    assert any(
        "that no sample of the calibration data reached" in note for note in result.plan.notes
    )
    reasons = {name: node.reason for name, node in result.plan.nodes.items()}
    assert "it never ran during calibration" in reasons.values()
    both_ways = branch_samples(model)
    assert quality(model, result.to_proto(), both_ways) > 25


def test_nothing_quantized_points_at_the_bodies(tmp_path):
    model = make_branches()
    recipe = {"base": "int8", "select": {"op_types": ["ConvTranspose"]}}
    with pytest.raises(ModelError, match=r"nothing .*select\.subgraphs"):
        bitwright.quantize(model, data=branch_samples(model), recipe=recipe)


def test_enable_subgraph_through_the_peers_names_works(tmp_path):
    model = make_branches()
    samples = branch_samples(model)
    quantized = quantize_static_in(tmp_path, model, samples, extra_options={"EnableSubgraph": True})
    assert "DequantizeLinear" in body_ops(quantized)
    assert quality(model, quantized, samples) > 25


@pytest.mark.parametrize("name", ["same", ""])
def test_nodes_of_one_name_or_none_are_quantized_each(tmp_path, name):
    model = make_cnn()
    for item in model.graph.node:
        item.name = name
    samples = make_samples(model)
    native = bitwright.quantize(model, data=samples, holdout=False, purpose="size")
    assert native.quantized["Conv"] == 2
    assert len({item.name for item in native.to_proto().graph.node}) == len(native.model.graph)
    # The runtime itself refuses two nodes of one name; the plain model computes the same.
    plain = make_cnn()
    assert quality(plain, native, samples) > 30
    assert quality(plain, quantize_static_in(tmp_path, model, samples), samples) > 30


GENERATED = [
    "x_scale",
    "x_zero_point",
    "x_quantized",
    "w1_quantized",
    "w1_scale",
    "x_QuantizeLinear",
]


@pytest.mark.parametrize("name", GENERATED)
def test_a_weight_named_like_a_generated_name_is_no_trouble(tmp_path, name):
    model = make_mlp()
    for tensor in model.graph.initializer:
        if tensor.name == "w2":
            tensor.name = name
    model.graph.node[-1].input[1] = name
    samples = make_samples(model)
    native = bitwright.quantize(model, data=samples, holdout=False, purpose="size")
    assert quality(model, native, samples) > 30
    assert quality(model, quantize_static_in(tmp_path, model, samples), samples) > 30


def test_a_tensor_named_like_a_generated_name_is_no_trouble(tmp_path):
    model = make_mlp()
    for item in model.graph.node:
        for side in (item.input, item.output):
            for index, value in enumerate(side):
                if value == "h":
                    side[index] = "x_DequantizeLinear_Output"
                if value == "r":
                    side[index] = "y_QuantizeLinear_Input"
    samples = make_samples(model)
    native = bitwright.quantize(model, data=samples, holdout=False, purpose="size")
    assert quality(model, native, samples) > 30
    assert quality(model, quantize_static_in(tmp_path, model, samples), samples) > 30


def test_a_custom_op_is_refused_with_its_name(tmp_path):
    model = build(
        [
            node("MatMul", ["x", "w"], ["h"], name="mm"),
            node("Shiny", ["h"], ["y"], name="custom", domain="acme"),
        ],
        {"x": [4, 16]},
        {"y": [4, 8]},
        {"w": weight(16, 8)},
        domains=["acme"],
    )
    refused(
        ModelError,
        "Shiny|custom",
        lambda: bitwright.quantize(model, tmp_path / "q.onnx", data=[{"x": normal(4, 16)}]),
        tmp_path,
    )


def test_weights_that_are_not_finite_are_told_with_their_name(tmp_path):
    model = make_mlp()
    broken = constants_of(model)["w2"].copy()
    broken[0, 0] = np.nan
    tensor = next(t for t in model.graph.initializer if t.name == "w2")
    tensor.CopyFrom(tensors({"w2": broken})[0])
    refused(
        (ModelError, DataError),
        "'w2'|'y'",
        lambda: bitwright.quantize(
            model, tmp_path / "q.onnx", data=make_samples(model), purpose="size"
        ),
        tmp_path,
    )


def test_a_model_without_anything_to_quantize_is_an_error(tmp_path):
    model = build([node("Erf", ["x"], ["y"], name="erf")], {"x": [4]}, {"y": [4]})
    refused(
        ModelError,
        "nothing in this model was quantized.*Erf.*widen the selection",
        lambda: bitwright.quantize(model, tmp_path / "q.onnx", data=make_samples(model)),
        tmp_path,
    )


def test_the_reader_is_asked_once_more_than_it_has_samples(job):
    path, samples, out = job
    reader = Reader(samples)
    quantize_static(path, out, reader)
    assert reader.asked == len(samples) + 1


def test_a_failing_reader_keeps_its_own_error_and_leaves_no_file(job):
    path, samples, out = job

    def broken():
        yield samples[0]
        raise ZeroDivisionError("the user's own bug")

    with unchanged(path.parent), pytest.raises(ZeroDivisionError, match="own bug"):
        bitwright.quantize(path, out, data=broken())


def test_nodes_keep_their_names(job):
    path, samples, out = job
    bitwright.quantize(path, out, data=samples)
    kept = set(nodes_by_name(path)) - {"relu1", "relu2"}
    assert kept <= set(nodes_by_name(out))
    assert Path(out).stat().st_size > 0
    assert run(out, samples[0])[0].shape == (1, 10)


@pytest.mark.parametrize("recipe", ["int8-dynamic", "int4-hqq", "int4"])
def test_a_weight_without_numbers_is_left(tmp_path, recipe):
    model = build(
        [node("MatMul", ["x", "w"], ["y"])],
        [info("x", [1, 4])],
        {"y": None},
        {"w": np.zeros((4, 0), np.float32)},
    )
    refused(
        ModelError,
        "was quantized|has no numbers",
        lambda: bitwright.quantize(model, recipe=recipe, data=RandomData(count=2)),
        tmp_path,
    )


@pytest.mark.parametrize("size", [2**40, 2**61])
def test_random_samples_are_not_made_above_the_limit(tmp_path, size):
    model = build(
        [node("MatMul", ["x", "w"], ["y"])],
        [info("x", [size, 4])],
        {"y": None},
        {"w": weight(4, 4)},
    )
    refused(
        BitwrightError,
        "has the impossible shape|--limits elements=",
        lambda: bitwright.quantize(model, data=RandomData(count=2)),
        tmp_path,
    )
