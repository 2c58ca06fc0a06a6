"""The command quantizes to as many nodes as the peer's, by the same flags."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import onnx
import pytest
from support.models import build, info, node, normal, weight

from bitwright.compat.onnxruntime.enums import QuantType
from bitwright.compat.onnxruntime.static_quantize_runner import (
    OnnxModelCalibrationDataReader,
    get_tensor_quant_overrides,
    main,
    parse_arguments,
)
from bitwright.errors import DataError, RecipeError

peer = pytest.importorskip("onnxruntime.quantization.static_quantize_runner")


def at_opset_21(nodes, inputs, outputs, constants=None):
    return build(nodes, inputs, outputs, constants, opset=21, ir_version=10)


def make_add():
    nodes = [node("Add", ["a", "b"], ["y"], name="add")]
    return at_opset_21(nodes, {"a": [1, 4], "b": [1, 4]}, {"y": [1, 4]})


def make_product(constant=True):
    nodes = [node("MatMul", ["a", "b"], ["y"], name="product")]
    inputs = {"a": [3, 4]} if constant else {"a": [3, 4], "b": [4, 5]}
    return at_opset_21(nodes, inputs, {"y": [3, 5]}, {"b": weight(4, 5)} if constant else {})


def make_conv(relu=False):
    nodes = [node("Conv", ["a", "w", "bias"], ["c" if relu else "y"], name="conv")]
    if relu:
        nodes.append(node("Relu", ["c"], ["y"], name="relu"))
    constants = {"w": weight(2, 3, 3, 3), "bias": normal(2)}
    return at_opset_21(nodes, {"a": [1, 3, 6, 6]}, {"y": [1, 2, 4, 4]}, constants)


def make_shared():
    nodes = [
        node("Add", ["a", "b"], ["y"], name="first"),
        node("Add", ["a", "c"], ["z"], name="second"),
    ]
    inputs = {"a": [1, 4], "b": [1, 4], "c": [1, 4]}
    return at_opset_21(nodes, inputs, {"y": [1, 4], "z": [1, 4]})


def make_where():
    nodes = [
        node("Add", ["a", "b"], ["sum"], name="add"),
        node("Mul", ["a", "b"], ["product"], name="mul"),
        node("Where", ["flag", "sum", "product"], ["y"], name="where"),
    ]
    inputs = [info("a", [1, 4]), info("b", [1, 4]), info("flag", [1, 4], onnx.TensorProto.BOOL)]
    return at_opset_21(nodes, inputs, [info("y", [1, 4])])


def save(folder, model, samples=3):
    """Write a model and its test data, and return its path."""
    path = folder / "model.onnx"
    onnx.save(model, path)
    rng = np.random.default_rng(0)
    for number in range(samples):
        data = folder / f"test_data_set_{number}"
        data.mkdir()
        for index, value in enumerate(model.graph.input):
            kind = value.type.tensor_type
            shape = [dim.dim_value for dim in kind.shape.dim]
            array = rng.standard_normal(shape).astype(np.float32)
            if kind.elem_type == onnx.TensorProto.BOOL:
                array = array > 0
            tensor = onnx.numpy_helper.from_array(array, value.name)
            (data / f"input_{index}.pb").write_bytes(tensor.SerializeToString())
    return path


@pytest.mark.parametrize(
    ("make", "flags", "count"),
    [
        (make_add, [], 7),
        (make_product, [], 6),
        (make_product, ["--add_qdq_pair_to_weight"], 7),
        (make_product, ["--op_types_to_exclude_output_quantization", "MatMul"], 4),
        (make_product, ["--per_channel", "--op_per_channel_axis", "MatMul", "1"], 6),
        (make_conv, [], 7),
        (make_conv, ["--per_channel"], 7),
        (make_conv, ["--disable_quantize_bias"], 6),
        (lambda: make_conv(relu=True), [], 7),
        (lambda: make_conv(relu=True), ["--qdq_keep_removable_activations"], 10),
        (make_shared, [], 12),
        (make_shared, ["--dedicated_qdq_pair"], 14),
        (make_shared, ["--nodes_to_exclude", "first"], 8),
        (make_shared, ["--nodes_to_quantize", "first"], 8),
        (make_shared, ["--nodes_to_exclude", "first", "second"], 2),
        (lambda: make_product(constant=False), ["--quant_format", "qoperator"], 4),
        (
            lambda: make_product(constant=False),
            ["--quant_format", "qoperator", "--matmul_const_b_only"],
            1,
        ),
        (make_where, ["--nodes_to_exclude", "add", "mul"], 3),
        (
            make_where,
            ["--nodes_to_exclude", "add", "mul", "--force_quantize_no_input_check"],
            9,
        ),
        (make_add, ["--activation_type", "quint16", "--weight_type", "qint16"], 7),
        (make_add, ["--calibration_method", "percentile", "--calib_tensor_range_symmetric"], 7),
        (make_add, ["--calibration_method", "entropy", "--minimum_real_range", "0.5"], 7),
        (make_add, ["--calib_moving_average", "--use_qdq_contrib_ops"], 7),
        (make_conv, ["--qdq_disable_weight_adjust_for_int32_bias", "--enable_subgraph"], 7),
    ],
)
@pytest.mark.filterwarnings("ignore:the model is written as it was")
def test_as_many_nodes_as_the_peer(make, flags, count, tmp_path, monkeypatch):
    path = save(tmp_path, make())
    mine, theirs = tmp_path / "mine.onnx", tmp_path / "theirs.onnx"
    main(["-i", str(path), "-o", str(mine), *flags])
    assert len(onnx.load(mine).graph.node) == count
    if "--op_per_channel_axis" in flags:
        return  # the peer leaves the axis a string and fails
    monkeypatch.setattr(sys, "argv", ["runner", "-i", str(path), "-o", str(theirs), *flags])
    peer.main()
    assert len(onnx.load(theirs).graph.node) == count


def test_the_same_flags_with_the_same_defaults(monkeypatch):
    needed = ["-i", "m.onnx", "-o", "q.onnx"]
    monkeypatch.setattr(sys, "argv", ["runner", *needed])
    assert vars(parse_arguments()) == vars(peer.parse_arguments())


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["-i", "m.onnx", "-o", "q.onnx", "--activation_type", "int8"],
        ["-i", "m.onnx", "-o", "q.onnx", "--op_per_channel_axis", "MatMul", "one"],
    ],
)
def test_bad_flags_end_with_status_2(flags):
    with pytest.raises(SystemExit) as caught:
        main(flags)
    assert caught.value.code == 2


def test_help_lists_every_flag_of_the_peer(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["runner", "-i", "m", "-o", "q"])
    names = vars(peer.parse_arguments())
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert all(f"--{name}" in shown for name in names)


def test_overrides_from_a_file_are_used(tmp_path):
    path = save(tmp_path, make_add())
    content = {"a": [{"scale": 0.25, "zero_point": 7, "quant_type": "QUInt8"}]}
    (tmp_path / "o.json").write_text(json.dumps(content))
    flags = ["--tensor_quant_overrides", str(tmp_path / "o.json")]
    main(["-i", str(path), "-o", str(tmp_path / "q.onnx"), *flags])
    written = {t.name: t for t in onnx.load(tmp_path / "q.onnx").graph.initializer}
    assert onnx.numpy_helper.to_array(written["a_scale"]) == np.float32(0.25)
    assert onnx.numpy_helper.to_array(written["a_zero_point"]) == 7
    (entry,) = get_tensor_quant_overrides(tmp_path / "o.json")["a"]
    assert entry["quant_type"] is QuantType.QUInt8
    del content["a"][0]["quant_type"]
    (tmp_path / "o.json").write_text(json.dumps(content))
    for read in (get_tensor_quant_overrides, peer.get_tensor_quant_overrides):
        (entry,) = read(tmp_path / "o.json")["a"]
        assert entry["scale"].dtype == np.float32
        assert entry["zero_point"].dtype == np.int64


@pytest.mark.parametrize(
    ("content", "words"),
    [("[1]", "is not a JSON file"), ("{", "is not a JSON file"), ('{"a": [{}]}', "has no 'scale'")],
)
def test_a_bad_file_of_overrides_is_refused(content, words, tmp_path):
    (tmp_path / "o.json").write_text(content)
    with pytest.raises(RecipeError, match=words):
        get_tensor_quant_overrides(tmp_path / "o.json")


def test_samples_are_read_in_order_of_number_and_a_path_without_folder_will_do(
    tmp_path, monkeypatch
):
    save(tmp_path, make_add(), samples=11)
    monkeypatch.chdir(tmp_path)
    samples = list(OnnxModelCalibrationDataReader("model.onnx"))
    assert len(samples) == 11
    last = (tmp_path / "test_data_set_10" / "input_1.pb").read_bytes()
    wanted = onnx.numpy_helper.to_array(onnx.TensorProto.FromString(last))
    np.testing.assert_array_equal(samples[-1]["b"], wanted)


def test_missing_data_is_an_error_of_one_sentence(tmp_path):
    path = save(tmp_path, make_add(), samples=1)
    (tmp_path / "test_data_set_0" / "input_1.pb").unlink()
    with pytest.raises(DataError, match=r"no 'input_1\.pb'"):
        OnnxModelCalibrationDataReader(path)
    (tmp_path / "test_data_set_0" / "input_1.pb").write_bytes(b"\xff")
    with pytest.raises(ValueError, match="is not a serialized TensorProto"):
        main(["-i", str(path), "-o", str(tmp_path / "q.onnx")])


@pytest.mark.parametrize(
    ("flags", "status"), [(["-i", "no.onnx", "-o", "q.onnx"], 1), (["-i", "no.onnx"], 2)]
)
@pytest.mark.sampled(1)
def test_as_a_command_it_ends_with_the_peers_status(tmp_path, flags, status):
    name = "bitwright.compat.onnxruntime.static_quantize_runner"
    made = [
        subprocess.run(
            [sys.executable, "-m", module, *flags], cwd=tmp_path, capture_output=True, text=True
        )
        for module in (name, peer.__name__)
    ]
    assert [one.returncode for one in made] == [status, status]
    assert "Traceback" not in made[0].stderr
    assert "no.onnx" in made[0].stderr if status == 1 else "usage" in made[0].stderr


def test_flags_that_are_off_are_no_warning(tmp_path, recwarn):
    path = save(tmp_path, make_add())
    main(["-i", str(path), "-o", str(tmp_path / "q.onnx")])
    assert [str(one.message) for one in recwarn if "is ignored" in str(one.message)] == []
