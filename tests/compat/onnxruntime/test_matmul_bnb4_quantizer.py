"""`MatMulBnb4Quantizer`: the bytes, names and attributes of ONNX Runtime's, and its command."""

import logging
import subprocess
import sys

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from support.models import (
    FLOAT16,
    build,
    constants_of,
    info,
    make_mlp,
    make_samples,
    make_transformer,
    node,
    normal,
    ops,
    quality,
    retype,
    run,
    weight,
)

from bitwright.compat.onnxruntime.matmul_bnb4_quantizer import MatMulBnb4Quantizer, main
from bitwright.errors import OutputError, RecipeError

peer = pytest.importorskip("onnxruntime.quantization.matmul_bnb4_quantizer")
FP4, NF4 = MatMulBnb4Quantizer.FP4, MatMulBnb4Quantizer.NF4


def copy_of(model):
    twin = onnx.ModelProto()
    twin.CopyFrom(model)
    return twin


def quantize_both(model, *arguments, **options):
    results = []
    for kind in (MatMulBnb4Quantizer, peer.MatMulBnb4Quantizer):
        quantizer = kind(copy_of(model), *arguments, **options)
        quantizer.process()
        results.append(quantizer.model.model)
    return results


def test_the_constants_and_attributes_are_those_of_the_runtime():
    theirs = peer.MatMulBnb4Quantizer
    assert (FP4, NF4) == (theirs.FP4, theirs.NF4) == (0, 1)
    ours, theirs = (kind(make_mlp(), NF4, 32, ["second"]) for kind in (MatMulBnb4Quantizer, theirs))
    for name in ("quant_type", "block_size", "nodes_to_exclude"):
        assert getattr(ours, name) == getattr(theirs, name)
    for name in ("model", "graph", "nodes", "initializer", "opset_import", "save_model_to_file"):
        assert hasattr(ours.model, name) and hasattr(theirs.model, name)


@pytest.mark.parametrize("quant_type", [FP4, NF4])
@pytest.mark.parametrize("block_size", [16, 64, 256])
@pytest.mark.parametrize("half", [False, True])
def test_nodes_and_constants_are_those_of_the_runtime(quant_type, block_size, half):
    model = make_mlp(width=24)
    if half:
        model = retype(model, np.float16, FLOAT16)
    ours, theirs = quantize_both(model, quant_type, block_size)
    assert [n.SerializeToString(deterministic=True) for n in ours.graph.node] == [
        n.SerializeToString(deterministic=True) for n in theirs.graph.node
    ]
    mine, others = constants_of(ours), constants_of(theirs)
    assert mine.keys() == others.keys()
    for name, array in mine.items():
        np.testing.assert_array_equal(array, others[name])
        assert array.dtype == others[name].dtype


@settings(max_examples=60, deadline=None)
@given(
    k=st.integers(1, 70),
    n=st.integers(1, 20),
    quant_type=st.sampled_from([FP4, NF4]),
    block_size=st.sampled_from([16, 32, 64, 128, 256]),
    dtype=st.sampled_from([np.float32, np.float16]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_weight_has_the_bytes_of_the_runtime(k, n, quant_type, block_size, dtype, seed):
    ours, theirs = (
        kind(make_mlp(), quant_type, block_size)
        for kind in (MatMulBnb4Quantizer, peer.MatMulBnb4Quantizer)
    )
    floats = normal(k, n, seed=seed, dtype=dtype)
    for a, b in zip(ours.bnb4_block_quant(floats), theirs.bnb4_block_quant(floats), strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype


@pytest.mark.parametrize("quant_type", [FP4, NF4])
def test_a_transformer_comes_out_as_from_the_runtime(quant_type):
    model = make_transformer()
    samples = make_samples(model, 2)
    ours, theirs = quantize_both(model, quant_type, 16)
    assert ops(ours)["MatMulBnb4"] == ops(theirs)["MatMulBnb4"] > 1
    assert quality(theirs, ours, samples) > 100
    assert quality(model, ours, samples) > 10


def test_the_given_message_becomes_the_quantized_model_and_a_path_will_do(tmp_path):
    model, original = make_mlp(), make_mlp()
    quantizer = MatMulBnb4Quantizer(model, FP4, 64)
    assert ops(quantizer.model.model)["MatMul"] == 2
    quantizer.process()
    assert quantizer.model.model is model
    assert ops(model)["MatMulBnb4"] == 2
    onnx.save(original, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0)
    other = MatMulBnb4Quantizer(tmp_path / "m.onnx", FP4, 64)
    other.process()
    assert other.model.model.graph == quantizer.model.model.graph
    with pytest.raises(OutputError):
        other.model.save_model_to_file(tmp_path / "no_such_folder" / "q.onnx")


def test_a_model_from_a_file_is_not_written_over_it(tmp_path):
    onnx.save(make_mlp(), tmp_path / "m.onnx")
    quantizer = MatMulBnb4Quantizer(tmp_path / "m.onnx", NF4, 64)
    quantizer.process()
    with pytest.raises(OutputError):
        quantizer.model.save_model_to_file(tmp_path / "m.onnx")


@pytest.mark.parametrize("looked_at", [False, True])
def test_models_are_saved_with_and_without_external_data(tmp_path, looked_at):
    model = make_mlp(width=64)
    x = make_samples(model, 1)[0]
    quantizer = MatMulBnb4Quantizer(model, NF4, 64)
    quantizer.process()
    if looked_at:
        quantizer.model.model.doc_string = "edited"
    quantizer.model.save_model_to_file(tmp_path / "one.onnx")
    quantizer.model.save_model_to_file(tmp_path / "two.onnx", True)
    assert (tmp_path / "two.onnx.data").exists() and not (tmp_path / "one.onnx.data").exists()
    for name in ("one.onnx", "two.onnx"):
        saved = onnx.load(tmp_path / name)
        assert saved.doc_string == ("edited" if looked_at else "")
        np.testing.assert_array_equal(run(saved, x)[0], run(quantizer.model.model, x)[0])


def test_a_shared_weight_comes_out_as_from_the_runtime():
    nodes = [
        node("MatMul", ["x", "w"], ["a"], name="one"),
        node("MatMul", ["a", "w"], ["y"], name="two"),
    ]
    model = build(nodes, {"x": [2, 16]}, {"y": [2, 16]}, {"w": weight(16, 16)})
    ours, theirs = quantize_both(model, NF4, 16)
    x = normal(2, 16)
    assert len(ours.graph.initializer) == len(theirs.graph.initializer) == 2
    np.testing.assert_array_equal(run(ours, {"x": x})[0], run(theirs, {"x": x})[0])


def test_nodes_of_other_domains_that_hold_graphs_keep_their_domain():
    """The runtime's tool makes standard nodes of them."""
    body = helper.make_graph(
        [node("MatMul", ["x", "w"], ["t"], name="mm")], "body", [], [info("t", [2, 8])]
    )
    holder = node("Holder", ["x"], ["y"], name="holder", domain="vendor", body=body)
    model = build([holder], {"x": [2, 16]}, {"y": [2, 8]}, {"w": weight(16, 8)}, domains=["vendor"])
    with pytest.warns(UserWarning, match="could be tried out"):
        ours, theirs = quantize_both(model, NF4, 16)
    assert (ours.graph.node[0].domain, theirs.graph.node[0].domain) == ("vendor", "")
    assert ours.graph.node[0].attribute[0].g.node[0].op_type == "MatMulBnb4"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"quant_type": 2}, "0 .FP4. or 1 .NF4."),
        ({"quant_type": "nf4"}, "0 .FP4. or 1 .NF4."),
        ({"block_size": 20}, "16, 32, 64, 128 or 256"),
        ({"nodes_to_exclude": "second"}, "a list of names"),
    ],
)
def test_bad_arguments_are_refused_before_any_work(arguments, message):
    with pytest.raises(RecipeError, match=message):
        MatMulBnb4Quantizer(make_mlp(), **arguments)


def test_weights_of_other_types_and_ranks_are_refused():
    quantizer = MatMulBnb4Quantizer(make_mlp())
    with pytest.raises(RecipeError, match="3 axes"):
        quantizer.bnb4_block_quant(np.zeros((2, 2, 2), np.float32))
    # The runtime's tool gives it magnitudes of zero.
    with pytest.raises(RecipeError, match="float64"):
        quantizer.bnb4_block_quant(np.ones((2, 2)))


def test_nothing_quantized_is_a_warning_and_leaves_the_model():
    quantizer = MatMulBnb4Quantizer(make_mlp(), NF4, 64, ["first", "second", "third"])
    with pytest.warns(UserWarning, match="nothing in the model") as caught:
        quantizer.process()
    assert any("no node is called 'third'" in str(item.message) for item in caught)
    assert ops(quantizer.model.model)["MatMul"] == 2


def test_a_model_that_only_another_provider_runs_is_written_with_a_warning():
    nodes = [
        node("MatMul", ["x", "w"], ["a"], name="mm"),
        node("Special", ["a"], ["y"], name="special", domain="vendor"),
    ]
    model = build(nodes, {"x": [2, 16]}, {"y": [2, 4]}, {"w": weight(16, 4)}, domains=["vendor"])
    quantizer = MatMulBnb4Quantizer(model)
    with pytest.warns(UserWarning, match="could be tried out"):
        quantizer.process()
    assert ops(quantizer.model.model) == {"MatMulBnb4": 1, "Special": 1}


def test_the_command_takes_the_flags_of_the_runtimes(tmp_path, caplog):
    onnx.save(make_mlp(width=64), tmp_path / "m.onnx")
    arguments = ["--input_model", str(tmp_path / "m.onnx")]
    target = tmp_path / "q.onnx"
    flags = ["--quant_type", "0", "--block_size", "32", "--nodes_to_exclude", "second", "-v"]
    with caplog.at_level(logging.DEBUG):
        assert main([*arguments, "--output_model", str(target), *flags]) == 0
    assert "'second' stays float because it is excluded by name" in caplog.text
    saved = onnx.load(target)
    (made,) = (n for n in saved.graph.node if n.op_type == "MatMulBnb4")
    assert {a.name: a.i for a in made.attribute} == {
        "K": 64,
        "N": 64,
        "block_size": 32,
        "quant_type": 0,
    }
    assert ops(saved)["MatMul"] == 1


def test_the_command_refuses_to_write_over_a_file(tmp_path, capsys):
    onnx.save(make_mlp(), tmp_path / "m.onnx")
    (tmp_path / "q.onnx").write_bytes(b"mine")
    arguments = ["--input_model", tmp_path / "m.onnx", "--output_model", tmp_path / "q.onnx"]
    assert main([str(a) for a in arguments]) == 1
    assert "exists already" in capsys.readouterr().err
    assert (tmp_path / "q.onnx").read_bytes() == b"mine"


@pytest.mark.slow
def test_the_module_runs_as_a_command(tmp_path):
    onnx.save(make_mlp(), tmp_path / "m.onnx")
    command = [sys.executable, "-m", "bitwright.compat.onnxruntime.matmul_bnb4_quantizer"]
    command += ["--input_model", str(tmp_path / "m.onnx")]
    command += ["--output_model", str(tmp_path / "q.onnx")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert ops(onnx.load(tmp_path / "q.onnx"))["MatMulBnb4"] == 2
