"""Graphs of exporters, filled with the weights of GGUF files."""

import numpy as np
import onnx
import onnxruntime
import pytest
from support.checkpoints import make_graph, make_ids, make_tensors, write_gguf
from support.models import make_mlp

import bitwright
from bitwright import graph
from bitwright.errors import MissingPackageError, ModelError, OutputError
from bitwright.graph.checkpoint import GGUFFile
from bitwright.graph.cloning import to_message

gguf = pytest.importorskip("gguf")


def logits_of(model):
    proto = model if isinstance(model, onnx.ModelProto) else to_message(model)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    return session.run(None, {"ids": make_ids()})[0]


@pytest.fixture
def write(tmp_path):
    return lambda tensors, **options: write_gguf(tmp_path / "file.gguf", tensors, **options)


@pytest.mark.parametrize("exporter", ["torch", "torchscript", "builder"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_filled_graph_computes_what_the_file_holds(write, exporter, tied):
    wanted, others = make_tensors(tied=tied), make_tensors(tied=tied, seed=1)
    filled = graph.fill_weights(make_graph(others, exporter=exporter), write(wanted))
    expected = logits_of(make_graph(wanted, exporter=exporter))
    np.testing.assert_array_equal(logits_of(filled), expected)
    assert np.abs(logits_of(make_graph(others, exporter=exporter)) - expected).max() > 0.1


def test_quantized_tensors_are_read_as_their_package_reads_them(write):
    tensors = make_tensors()
    types = {
        "blk.0.attn_q.weight": gguf.GGMLQuantizationType.Q8_0,
        "blk.1.ffn_up.weight": gguf.GGMLQuantizationType.Q4_0,
        "token_embd.weight": gguf.GGMLQuantizationType.F16,
    }
    filled = graph.fill_weights(make_graph(make_tensors(seed=1)), write(tensors, types=types))
    lost = np.abs(logits_of(filled) - logits_of(make_graph(tensors))).max()
    assert 0 < lost < 0.05
    stored = filled.graph.initializers["model.embed_tokens.weight"].const_value.numpy()
    wanted = tensors["token_embd.weight"].astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(stored, wanted)


def test_constants_that_an_exporter_stored_once_get_what_each_reader_needs(write):
    """An untrained model has gains of one everywhere, which exporters share."""
    tensors = make_tensors()
    equal = {n: np.ones_like(a) if "norm" in n else a for n, a in make_tensors(seed=1).items()}
    model = make_graph(equal, exporter="torchscript")
    gains = [i.name for i in model.graph.initializer if list(i.dims) == [32]]
    for each in model.graph.node:
        each.input[:] = [gains[0] if name in gains else name for name in each.input]
    filled = graph.fill_weights(model, write(tensors))
    np.testing.assert_array_equal(logits_of(filled), logits_of(make_graph(tensors)))


def test_what_something_else_reads_too_stays_what_it_is(write):
    tensors = make_tensors()
    model = make_graph(make_tensors(seed=1), exporter="torchscript")
    (gain,) = (n.input[1] for n in model.graph.node if n.name.startswith("/model/norm"))
    model.graph.node.append(onnx.helper.make_node("Identity", [gain], ["copy"]))
    model.graph.node.append(onnx.helper.make_node("Abs", ["copy"], ["size"], name="abs"))
    model.graph.output.append(onnx.helper.make_tensor_value_info("size", 1, [32]))
    filled = graph.fill_weights(model, write(tensors))
    np.testing.assert_array_equal(logits_of(filled), logits_of(make_graph(tensors)))
    before = np.abs(make_tensors(seed=1)["output_norm.weight"])
    session = onnxruntime.InferenceSession(to_message(filled).SerializeToString())
    np.testing.assert_array_equal(session.run(["size"], {"ids": make_ids()})[0], before)


@pytest.mark.parametrize("offset", [True, False], ids=["the graph adds one", "it has it already"])
def test_gains_of_gemma_are_one_more_in_the_file(write, offset):
    tensors = make_tensors()
    file = write(tensors, architecture="gemma2")
    shift = {n: a if offset or "norm" not in n else a + 1 for n, a in tensors.items()}
    filled = graph.fill_weights(make_graph(make_tensors(seed=1), offset=offset), file)
    expected = logits_of(make_graph(shift, offset=offset))
    np.testing.assert_allclose(logits_of(filled), expected, rtol=1e-4, atol=1e-5)


def test_float16_graphs_get_float16_weights(write):
    tensors = make_tensors()
    filled = graph.fill_weights(make_graph(make_tensors(seed=1), dtype=np.float16), write(tensors))
    expected = logits_of(make_graph(tensors, dtype=np.float16))
    np.testing.assert_array_equal(logits_of(filled), expected)


def test_a_head_of_its_own_takes_the_place_of_a_shared_one(write):
    tensors = make_tensors(tied=False)
    shared = make_graph(make_tensors(seed=1), exporter="torchscript")
    filled = graph.fill_weights(shared, write(tensors))
    np.testing.assert_allclose(logits_of(filled), logits_of(make_graph(tensors)), atol=1e-6)
    with pytest.raises(ModelError, match=r"no place for 'output.weight'"):
        graph.fill_weights(make_graph(make_tensors(seed=1)), write(tensors))  # nothing names it


def test_it_is_quantized_as_the_model_with_these_weights_is(write, tmp_path):
    tensors = make_tensors()
    file, other = write(tensors), make_graph(make_tensors(seed=1))
    result = bitwright.quantize(other, weights=file, recipe="int4-rtn")
    expected = bitwright.quantize(make_graph(tensors), recipe="int4-rtn")
    np.testing.assert_array_equal(logits_of(result.to_proto()), logits_of(expected.to_proto()))
    plan = bitwright.make_plan(other, weights=file, recipe="int4-rtn")
    applied = bitwright.apply_plan(plan, other, weights=file)
    assert applied.to_proto().SerializeToString() == result.to_proto().SerializeToString()
    clean = bitwright.preprocess(other, weights=file).model
    np.testing.assert_array_equal(logits_of(clean), logits_of(make_graph(tensors)))
    with pytest.raises(OutputError, match="would overwrite the weights"):
        bitwright.quantize(other, file, weights=file, recipe="int4-rtn")


def test_a_graph_with_other_rotary_angles_is_refused(write):
    angles = np.outer(np.arange(40), 100.0 ** (-np.arange(4) / 4))
    model = make_graph(make_tensors(seed=1))
    cache = onnx.numpy_helper.from_array(np.cos(angles).astype(np.float32), "cos_cache")
    model.graph.initializer.append(cache)
    model.graph.node.append(
        onnx.helper.make_node("Gather", ["cos_cache", "ids"], ["turns"], "turn")
    )
    model.graph.output.append(onnx.helper.make_tensor_value_info("turns", 1, [1, "n", 4]))
    filled = graph.fill_weights(model, write(make_tensors(), base=100.0))
    kept = filled.graph.initializers["cos_cache"].const_value.numpy()
    np.testing.assert_array_equal(kept, onnx.numpy_helper.to_array(cache))
    with pytest.raises(ModelError, match=r"rotary angles .* whose base is 10000; export the graph"):
        graph.fill_weights(model, write(make_tensors(), base=10000.0))


def test_a_graph_with_other_heads_is_refused(write):
    model = make_graph(make_tensors(seed=1))
    attention = {"domain": "com.microsoft", "name": "attention", "num_heads": 2}
    added = onnx.helper.make_node("MultiHeadAttention", ["t0", "t0", "t0"], ["mix"], **attention)
    model.graph.node.append(added)
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    with pytest.raises(ModelError, match=r"'attention' has 2 heads, and the model of .* 4;"):
        graph.fill_weights(model, write(make_tensors()))


def without(tensors, *names):
    return {name: array for name, array in tensors.items() if name not in names}


@pytest.mark.parametrize(
    ("tensors", "model", "message"),
    [
        (make_tensors(), make_mlp(), "in the graph cannot be matched with tensors"),
        (
            without(make_tensors(), "blk.1.ffn_up.weight"),
            make_graph(make_tensors()),
            r"'model.layers.1.mlp.up_proj.weight' of .* cannot be matched",
        ),
        (
            make_tensors(layers=3),
            make_graph(make_tensors(layers=2)),
            r"the graph has no place for 'blk.2.attn_q.weight', .* and 6 more of",
        ),
        (
            make_tensors() | {"token_embd.weight": np.zeros((41, 32), np.float32)},
            make_graph(make_tensors()),
            r"has shape \[40, 32\], and token_embd.weight of .* \[41, 32\]: it is of another model",
        ),
    ],
    ids=["another graph", "a tensor less", "a layer more", "another vocabulary"],
)
def test_what_does_not_fit_is_named(write, tensors, model, message):
    with pytest.raises(ModelError, match=message) as raised:
        graph.fill_weights(model, write(tensors))
    assert "\n" not in str(raised.value)


def test_rows_come_back_in_the_order_of_hugging_face(tmp_path):
    pytest.importorskip("gguf")
    tensors = make_tensors(layers=1)
    for architecture in ("llama", "qwen2"):
        file = GGUFFile(write_gguf(tmp_path / "a.gguf", tensors, architecture=architecture))
        for name, array in tensors.items():
            np.testing.assert_array_equal(file.read(name), array)
            assert file.shape(name) == array.shape and name in file
    assert file.architecture == "qwen2" and not file.gains_with_offset


def test_an_unknown_architecture_is_refused_with_those_that_are_known(tmp_path):
    pytest.importorskip("gguf")
    path = write_gguf(tmp_path / "a.gguf", make_tensors(layers=1), architecture="mamba")
    with pytest.raises(ModelError, match=r"architecture 'mamba'; those .* gemma2, .* llama, qwen2"):
        GGUFFile(path)


def test_an_unknown_type_of_tensor_is_refused(tmp_path, monkeypatch):
    gguf = pytest.importorskip("gguf")
    file = GGUFFile(write_gguf(tmp_path / "a.gguf", make_tensors(layers=1)))

    def refuse(data, kind):
        raise NotImplementedError

    monkeypatch.setattr(gguf, "dequantize", refuse)
    with pytest.raises(ModelError, match=r"'token_embd.weight' of .* has type F32"):
        file.read("token_embd.weight")


def test_what_is_no_such_file_is_refused(tmp_path):
    with pytest.raises(ModelError, match="there is no file"):
        GGUFFile(tmp_path / "none.gguf")
    pytest.importorskip("gguf")
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF and nothing else")
    with pytest.raises(ModelError, match="is no GGUF file, or a damaged one"):
        GGUFFile(path)


def test_without_the_package_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    path = tmp_path / "a.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(MissingPackageError, match=r"pip install 'bitwright\[gguf\]'"):
        GGUFFile(path)
