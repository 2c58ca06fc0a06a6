"""Real models from PyPI packages: a text detector, classifier and recognizer, and a voice detector.

Small inputs keep these quick; the accuracy figures stand in benchmarks/.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from support.equalization_models import difference
from support.models import ops, quality, run
from support.ocr_models import OCR, ocr_case, real_model, render_lines
from support.peer_runs import PeerReader, peer, quantize_both

import bitwright
from bitwright.equalize.cle import equalize_layers
from bitwright.graph import clone_model, infer_shapes, load_model
from bitwright.prepare import prepare_exactly
from bitwright.recipe import (
    AWQ,
    GPTQ,
    MSE,
    CrossLayerEqualization,
    Nearest,
    Percentile,
    Recipe,
    Selection,
    WeightOnly,
)

DEEPER = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("det", "rec")]
BEST = Recipe(name="best", per_channel=True, ranges=MSE(), weight_ranges=MSE())


@pytest.mark.parametrize("kind", ["cls", *DEEPER])
@pytest.mark.slow
def test_a_text_model_is_quantized_smaller_and_stays_close_to_float(tmp_path, kind):
    path, samples, bound = ocr_case(kind)
    out = tmp_path / "q.onnx"
    result = bitwright.quantize(path, out, data=samples, recipe=BEST, holdout=False)
    assert result.quantized["Conv"] > 30
    assert out.stat().st_size < 0.6 * path.stat().st_size
    assert quality(onnx.load(path), out, samples) > bound


@pytest.mark.parametrize("kind", ["cls", DEEPER[0]])
@pytest.mark.slow
def test_accuracy_is_not_below_the_peers_at_the_same_settings(tmp_path, kind):
    path, samples, _ = ocr_case(kind)
    model = onnx.load(path)
    # Per channel the peer needs opset 13, and does not see to it.
    upgraded = onnx.version_converter.convert_version(model, 13)
    theirs = tmp_path / "peers.onnx"
    peer.quantize_static(
        upgraded,
        theirs,
        PeerReader(samples),
        per_channel=True,
        activation_type=peer.QuantType.QUInt8,
    )
    ours = bitwright.quantize(path, data=samples, recipe="int8-per-channel", holdout=False)
    assert quality(model, ours, samples) > quality(model, theirs, samples) - 0.5


@pytest.mark.parametrize("kind", ["cls", DEEPER[0]])
@pytest.mark.slow
def test_integer_operators_are_not_below_the_peers_at_the_same_settings(tmp_path, kind):
    path, samples, _ = ocr_case(kind)
    # Without these two steps the peer fails, or quantizes weights at run time.
    upgraded, ready = str(tmp_path / "upgraded.onnx"), str(tmp_path / "ready.onnx")
    onnx.save(onnx.version_converter.convert_version(onnx.load(path), 13), upgraded)
    peer.quant_pre_process(upgraded, ready, skip_symbolic_shape=True)
    model = onnx.load(ready)
    options = {"per_channel": True, "activation_type": "QUInt8", "quant_format": "QOperator"}
    mine, theirs = quantize_both(tmp_path, model, samples, **options)
    assert quality(model, mine, samples) > quality(model, theirs, samples) - 0.5
    # They differ in the averages that follow a float op: the peer leaves those float.
    averages = ("QLinearGlobalAveragePool", "GlobalAveragePool")
    for op_type, count in ops(theirs).items():
        if op_type not in (*averages, "QuantizeLinear", "DequantizeLinear"):
            assert ops(mine)[op_type] == count
    assert sum(ops(mine)[a] for a in averages) == sum(ops(theirs)[a] for a in averages)


@pytest.mark.parametrize("kind", ["cls", DEEPER[0]])
@pytest.mark.slow
def test_both_formats_are_equally_close_to_float(kind):
    path, samples, bound = ocr_case(kind)
    found = {}
    for written in ("qdq", "qoperator"):
        recipe = BEST.replace(format=written)
        result = bitwright.quantize(path, data=samples, recipe=recipe, holdout=False)
        found[written] = quality(onnx.load(path), result, samples)
        assert ops(result)["Conv"] == (0 if written == "qoperator" else ops(path)["Conv"])
    assert found["qoperator"] > max(bound, found["qdq"] - 0.5)


@pytest.mark.parametrize(
    "recipe",
    ["int8", *(pytest.param(r, marks=pytest.mark.slow) for r in ("int8-symmetric", "a16w8"))],
)
@pytest.mark.slow
def test_the_classifier_runs_under_every_usual_recipe(recipe):
    path, samples, _ = ocr_case("cls", 4)
    result = bitwright.quantize(path, data=samples, recipe=recipe, holdout=False)
    assert quality(onnx.load(path), result, samples) > (20 if recipe == "a16w8" else 5)


@pytest.mark.slow
def test_the_classifier_keeps_its_answer():
    path, samples, _ = ocr_case("cls", 16)
    result = bitwright.quantize(path, data=samples, recipe=BEST)
    assert result.samples_are_unseen
    assert result.outputs[0].agreement == 1.0
    assert "holdout" in result.summary()


@pytest.mark.slow
def test_pictures_of_varying_size_calibrate_the_detector():
    path = real_model("rapidocr_onnxruntime", OCR["det"][0])
    samples = [*render_lines(2, 96, 160), *render_lines(2, 160, 96), *render_lines(2, 128, 128)]
    recipe = Recipe(name="p", per_channel=True, ranges=Percentile(percentile=99.99))
    result = bitwright.quantize(path, data=samples, recipe=recipe, holdout=False)
    assert quality(onnx.load(path), result, samples) > 8


@pytest.mark.slow
def test_a_model_of_dynamic_shapes_needs_shapes_for_random_data():
    path = real_model("rapidocr_onnxruntime", OCR["cls"][0])
    with pytest.raises(bitwright.DataError, match="random data cannot choose it"):
        bitwright.quantize(path, data=bitwright.RandomData(count=2))
    shapes = {"x": (1, 3, 48, 192)}
    data = bitwright.RandomData(count=2, shapes=shapes)
    result = bitwright.quantize(path, data=data, purpose="size")
    assert result.quantized["Conv"] > 30


def voice_samples(count):
    """Tones with noise, a state, and the sampling rate."""
    rng = np.random.default_rng(0)
    time = np.arange(512, dtype=np.float32) / 16000
    return [
        {
            "input": (
                np.sin(2 * np.pi * rng.uniform(80, 400) * time)[None] * 0.3
                + rng.standard_normal((1, 512)) * 0.05
            ).astype(np.float32),
            "state": (rng.standard_normal((2, 1, 128)) * 0.1).astype(np.float32),
            "sr": np.array(16000),
        }
        for _ in range(count)
    ]


@pytest.mark.parametrize(
    ("inside", "written"), [(False, "qdq"), (True, "qdq"), (True, "qoperator")]
)
@pytest.mark.sampled(1)
def test_a_voice_model_made_of_ifs_is_quantized_inside_or_refused(tmp_path, inside, written):
    path = real_model("silero_vad", "data/silero_vad.onnx")
    samples = voice_samples(8)
    out = tmp_path / "q.onnx"
    recipe = Recipe(
        name="vad",
        format=written,
        per_channel=True,
        # The other branch is for 8 kHz, which these samples do not reach.
        select=Selection(subgraphs=inside, op_types=("Conv",)),
    )
    if not inside:
        with pytest.raises(bitwright.ModelError, match="nothing in this model was quantized"):
            bitwright.quantize(path, out, data=samples, recipe=recipe, holdout=False)
        assert not out.exists()
        return
    for index in range(4):
        # The model was trained for both rates; 256 samples make a chunk at 8 kHz.
        samples.append(
            {**samples[index], "input": samples[index]["input"][:, :256], "sr": np.array(8000)}
        )
    bitwright.quantize(path, out, data=samples, recipe=recipe, holdout=False)
    assert quality(onnx.load(path), out, samples) > 15


def test_outputs_of_real_models_keep_names_and_types(tmp_path):
    path, samples, _ = ocr_case("cls", 2)
    out = tmp_path / "q.onnx"
    bitwright.quantize(path, out, data=samples, recipe="int8", holdout=False)
    before, after = onnx.load(path).graph, onnx.load(out).graph
    assert [v.name for v in after.output] == [v.name for v in before.output]
    assert [v.name for v in after.input] == [v.name for v in before.input]
    for a, b in zip(run(path, samples[0]), run(out, samples[0]), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)


@pytest.mark.parametrize("kind", ["cls", *DEEPER])
@pytest.mark.parametrize("steps", [1, -1])
def test_equalized_text_models_compute_what_they_did(kind, steps):
    path, samples, _ = ocr_case(kind, count=2)
    model = load_model(path)
    prepare_exactly(model)
    infer_shapes(model)
    twin = clone_model(model)
    options = CrossLayerEqualization(steps=steps, weight_threshold=None)
    found = equalize_layers(twin, options).chains
    assert len(found.links) + len(found.triples) >= 3
    assert difference(model, twin, samples) < 1e-5


@pytest.mark.slow
def test_four_bit_methods_together_are_not_worse_than_each_alone_on_a_text_recognizer():
    path, samples, _ = ocr_case("rec", count=12)
    wanted = run(onnx.load(path), samples[8:])

    def logits(results):
        logs = [np.log(np.maximum(chances, 1e-20)) for (chances,) in results]
        return [log - log.mean(axis=-1, keepdims=True) for log in logs]

    errors = {}
    for name, weights in {
        "plain": WeightOnly(rounding=Nearest(clip=False)),
        "awq": WeightOnly(awq=AWQ()),
        "gptq": WeightOnly(rounding=GPTQ()),
        "refined": WeightOnly(refine=2),
        "all": WeightOnly(rounding=GPTQ(), awq=AWQ(), refine=2),
    }.items():
        recipe = Recipe(mode="weight-only", weights=weights)
        result = bitwright.quantize(path, data=samples[:8], recipe=recipe, holdout=False)
        assert result.quantized == {"MatMul": 9}
        found = run(result.to_proto(), samples[8:])
        # Of what is behind the softmax only a few doubtful letters would decide.
        pairs = zip(logits(wanted), logits(found), strict=True)
        errors[name] = sum(float(((a - b) ** 2).sum()) for a, b in pairs)
    # Beside GPTQ alone the others add nothing here that eight samples could show.
    assert errors["all"] < 1.2 * min(errors["awq"], errors["gptq"], errors["refined"])
    assert errors["all"] < min(errors["awq"], errors["refined"])
    assert max(errors["awq"], errors["gptq"], errors["refined"]) < errors["plain"]
