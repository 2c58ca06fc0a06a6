"""What is read from a quantized model is what its plan says."""

import numpy as np
import pytest

import bitwright
from bitwright.assess.comparison.side_by_side import open_units
from bitwright.assess.report.encodings import planned_weights, read_encodings
from bitwright.graph import load_model
from bitwright.graph.constants import float_constant_of
from bitwright.jobs.opening import open_model


def jobs(recipe):
    demo = bitwright.load_demo()
    result = bitwright.quantize(demo.model_path, data=demo.calibration[:8], recipe=recipe)
    plain = open_model(demo.model_path, result.plan.recipe).model
    return plain, result


@pytest.mark.parametrize(
    "recipe",
    ["int8", "int8-per-channel", "a16w8", "npu-cnn", {"base": "int8", "format": "qoperator"}],
    ids=str,
)
def test_every_activation_and_weight_has_the_scale_of_the_plan(recipe):
    plain, result = jobs(recipe)
    found = read_encodings(open_units(plain, result.model))
    planned = {}
    for key, entry in result.plan.tensors.items():
        planned.setdefault(entry.tensor, []).append(result.plan.parameters(key))
    checked = set()
    for encodings in found.values():
        for one in encodings:
            if one.label == "bias":
                continue
            wanted = planned[one.tensor]
            assert any(
                one.qtype == each.qtype.name
                and np.allclose(one.scale, each.scale, rtol=1e-6)
                and np.array_equal(one.zero_point.ravel(), np.ravel(each.zero_point))
                for each in wanted
            ), one
            checked.add(one.tensor)
    weights = {e.tensor for e in result.plan.tensors.values() if e.role == "weight"}
    assert weights - {t for t in weights if t.endswith("bias")} <= checked
    assert len(checked) > 15


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_stored_weights_are_the_float_ones_rounded(form):
    plain, result = jobs({"base": "int8-per-channel", "format": form})
    for encodings in read_encodings(open_units(plain, result.model)).values():
        for one in encodings:
            if one.label == "weight":
                original = float_constant_of(plain.graph.initializers[one.tensor])
                assert one.axis is not None and one.scale.size == original.shape[one.axis]
                assert np.abs(one.stored - original).max() < one.scale.max()


def test_a_float_model_has_none():
    model = load_model(bitwright.load_demo().model_path)
    assert not any(read_encodings(open_units(model, model)).values())


def test_weights_of_dynamic_models_come_from_the_plan():
    demo = bitwright.load_demo()
    result = bitwright.quantize(demo.model_path, recipe="int8-dynamic", force_dynamic=True)
    plain = open_model(demo.model_path, result.plan.recipe).model
    known = plain.graph.initializers
    found = planned_weights(result.plan, lambda name: float_constant_of(known.get(name)))
    quantized = {name for name, node in result.plan.nodes.items() if node.quantized}
    assert set(found) == quantized
