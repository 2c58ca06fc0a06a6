"""int8 activations written as uint8, where the runtime refuses them."""

from __future__ import annotations

import numpy as np
from support.models import make_cnn, make_samples, run

import bitwright
from bitwright.decide.scales.unsigned import shift_to_unsigned
from bitwright.errors import ModelError
from bitwright.jobs import output
from bitwright.numerics.types import INT8, UINT8
from bitwright.recipe import Placement, Recipe


def test_a_refused_int8_model_is_written_in_uint8_with_the_same_values(monkeypatch):
    model = make_cnn()
    samples = make_samples(model)
    recipe = Recipe(activation=INT8, weight=INT8, place=Placement(unsigned_activations=False))
    plain = bitwright.quantize(model, data=samples, recipe=recipe, holdout=False)
    opened = output.Session
    refused = []

    def refuse_int8(given, **options):
        # What onnxruntime issue 25526 does on x86: int8 activations do not load.
        types = {
            value.dtype
            for node in getattr(given, "graph", ())
            if node.op_type == "QuantizeLinear"
            for value in node.outputs
        }
        if types and INT8.onnx_type in types:
            refused.append(types)
            raise ModelError("ONNX Runtime refuses the model.")
        return opened(given, **options)

    monkeypatch.setattr(output, "Session", refuse_int8)
    shifted = bitwright.quantize(model, data=samples, recipe=recipe, holdout=False)
    assert refused
    assert any("as uint8" in note for note in shifted.plan.notes)
    kinds = {e.qtype for e in shifted.plan.tensors.values() if e.role == "activation"}
    assert kinds == {UINT8}
    for sample in samples[:2]:
        np.testing.assert_allclose(
            run(shifted.to_proto(), sample), run(plain.to_proto(), sample), atol=1e-5
        )


def test_a_plan_without_int8_activations_has_nothing_to_shift():
    plan = bitwright.make_plan(make_cnn(), data=make_samples(make_cnn()), recipe=Recipe())
    assert shift_to_unsigned(plan) is None
