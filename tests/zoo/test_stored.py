"""Graphs stored small come back with the same nodes and numbers like those they had."""

from __future__ import annotations

import numpy as np
import onnx
from support.models import constants_of, make_transformer, ops

from zoo.case import save_samples
from zoo.stored import restore, store


def test_a_stored_graph_is_small_and_comes_back_alike(tmp_path):
    model = make_transformer(width=64)
    onnx.save(model, tmp_path / "model.onnx")
    samples = [{"x": np.full((1, 6, 64), i, np.float32)} for i in range(3)]
    save_samples(tmp_path / "model.npz", samples)
    store(tmp_path / "model.onnx", tmp_path / "kept" / "model.onnx.gz")
    kept = tmp_path / "kept" / "model.onnx.gz"
    assert kept.stat().st_size < (tmp_path / "model.onnx").stat().st_size / 20
    case = restore(kept, tmp_path / "kept")
    back = onnx.load(case.path)
    assert ops(back) == ops(model)
    before, after = constants_of(model)["w_q"], constants_of(back)["w_q"]
    assert after.shape == before.shape
    assert np.isclose(after.std(), before.std(), rtol=0.1)
    assert case.calibration[0]["x"].shape == (1, 6, 64)
    assert case.is_finite
    again = restore(kept, tmp_path)
    assert (constants_of(onnx.load(again.path))["w_q"] == after).all()
