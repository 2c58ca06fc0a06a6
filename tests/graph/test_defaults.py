"""Inputs with a default: hidden from every pass, and shown again when the model is written."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
from support.models import info, make_cnn, make_samples

import bitwright
from bitwright import graph


def make_overridable():
    """The weight of conv1 and the bias of conv2 are inputs, listed before the image."""
    model = make_cnn()
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    for name in ("w1", "b2"):
        model.graph.input.insert(0, info(name, list(stored[name].dims)))
    return model


def test_hidden_defaults_come_back_in_their_order():
    given = make_overridable()
    model = graph.load_model(given)
    hidden = graph.hide_defaults(model)
    assert [value.name for value in model.graph.inputs] == ["x"]
    assert len(hidden.nodes) == 2
    hidden.show(model)
    assert [value.name for value in model.graph.inputs] == [v.name for v in given.graph.input]
    assert "bitwright.internal" not in model.opset_imports and not model.functions


def test_a_model_without_such_inputs_is_left_alone():
    model = graph.load_model(make_cnn())
    before = graph.fingerprint(model, weights=True)
    graph.hide_defaults(model).show(model)
    assert graph.fingerprint(model, weights=True) == before


def test_callers_can_replace_what_they_could_replace_before(tmp_path):
    given = make_overridable()
    samples = make_samples(make_cnn())
    recipe = {"base": "int8", "keep_defaults": True}
    result = bitwright.quantize(given, tmp_path / "q.onnx", data=samples, recipe=recipe)
    assert result.outputs[0].sqnr > 20
    assert result.plan.nodes["conv1"].reason == "its weight is computed at run time"
    made = onnx.load(tmp_path / "q.onnx")
    onnx.checker.check_model(made, full_check=True)
    assert [v.name for v in made.graph.input] == [v.name for v in given.graph.input]
    float_session = ort.InferenceSession(given.SerializeToString())
    session = ort.InferenceSession(tmp_path / "q.onnx")
    other = {"w1": np.zeros([8, 3, 3, 3], np.float32), **samples[0]}
    expected, found = float_session.run(None, other)[0], session.run(None, other)[0]
    assert not np.allclose(found, session.run(None, samples[0])[0], atol=1e-2)
    assert np.abs(found - expected).max() < 0.2


def test_without_being_asked_they_become_constants():
    result = bitwright.quantize(make_overridable(), data=make_samples(make_cnn()), recipe="int8")
    assert [value.name for value in result.model.graph.inputs] == ["x"]
    assert any("could be overridden" in note for note in result.plan.notes)
