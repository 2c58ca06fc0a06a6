"""Ranges in the numbers of ONNX Runtime's calibrators, and the cache that both tools read."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from support.models import constants_of, make_cnn, make_mlp, make_samples
from support.peer_runs import PeerReader, members, peer, quantize_both, quiet  # noqa: F401

from bitwright.compat import onnxruntime as ours
from bitwright.errors import DataError

METHODS = {
    "entropy": ("Entropy", {}),
    "percentile": ("Percentile", {"CalibPercentile": 99.0}),
    "percentile of each side": (
        "Percentile",
        {"CalibPercentile": 99.0, "CalibTensorRangeSymmetric": False},
    ),
    "distribution": ("Distribution", {}),
    "mean of batches": ("MinMax", {"CalibMovingAverage": True, "CalibMovingAverageConstant": 0.3}),
    "symmetric": ("MinMax", {"CalibTensorRangeSymmetric": True}),
}


def scales(model):
    return {
        name: array
        for name, array in constants_of(model).items()
        if name.endswith(("_scale", "_zero_point"))
    }


@pytest.mark.parametrize("kind", METHODS)
def test_scales_are_the_peers(tmp_path, kind):
    method, options = METHODS[kind]
    model = make_cnn()
    mine, theirs = quantize_both(
        tmp_path,
        model,
        make_samples(model),
        activation_type="QUInt8",
        calibrate_method=method,
        extra_options=options,
    )
    found, wanted = scales(mine), scales(theirs)
    # Behind a symmetric range the other tool lets a Relu go that nothing does the work of.
    assert found.keys() == wanted.keys() or kind in ("symmetric", "distribution")
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-6, err_msg=name)


def quantize(module, folder, cache, samples=None, **options):
    path = folder / "q.onnx"
    reader = None if samples is None else PeerReader(samples)
    module.quantize_static(
        make_cnn(), path, reader, calibration_cache_path=cache, **members(module, options)
    )
    return scales(onnx.load(path))


@pytest.mark.parametrize("method", ["MinMax", "Percentile"])
@pytest.mark.parametrize("writer", [ours, peer])
def test_a_cache_serves_both_tools_without_data(tmp_path, writer, method):
    cache = tmp_path / "made" / "cache.json"
    samples = make_samples(make_cnn())
    if writer is peer:
        cache.parent.mkdir()
    first = quantize(writer, tmp_path, cache, samples, calibrate_method=method)
    for module in (ours, peer):
        again = quantize(module, tmp_path, cache, calibrate_method=method)
        assert again.keys() == first.keys()
        for name, array in first.items():
            np.testing.assert_allclose(again[name], array, rtol=1e-6)


def test_a_cache_that_does_not_fit_is_refused(tmp_path):
    cache = tmp_path / "cache.json"
    quantize(ours, tmp_path, cache, make_samples(make_cnn()))
    with pytest.raises(ValueError, match="Percentile"):
        quantize(ours, tmp_path, cache, calibrate_method="Percentile")
    content = json.loads(cache.read_text())
    del content["data"]["x"]
    cache.write_text(json.dumps(content))
    with pytest.raises(DataError, match="Quantization parameters are not specified for param x"):
        quantize(ours, tmp_path, cache)
    cache.write_text("{")
    with pytest.raises(ValueError, match="Expecting"):
        quantize(ours, tmp_path, cache)
    with pytest.raises(ValueError, match="is not a file"):
        quantize(ours, tmp_path, tmp_path, make_samples(make_cnn()))
    with pytest.raises(ValueError, match="Either calibration_data_reader or an existing"):
        quantize(ours, tmp_path, tmp_path / "none.json")


def test_a_cache_of_a_smoothed_model_is_made_anew_for_another(tmp_path, caplog):
    cache, model = tmp_path / "cache.json", make_mlp()
    samples = make_samples(model)
    smooth = {"extra_options": {"SmoothQuant": True}, "calibration_cache_path": cache}
    ours.quantize_static(model, tmp_path / "q.onnx", samples, **smooth)
    assert json.loads(cache.read_text())["smooth_quant"] is True
    ours.quantize_static(model, tmp_path / "q.onnx", samples, calibration_cache_path=cache)
    assert json.loads(cache.read_text())["smooth_quant"] is False
    with pytest.raises(ValueError, match="SmoothQuant requires"):
        ours.quantize_static(model, tmp_path / "q.onnx", None, **smooth)
