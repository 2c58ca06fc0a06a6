"""The figure that candidates are chosen by."""

import numpy as np
import onnx_ir as ir
import pytest
from support.models import build, node, normal, weight

from bitwright.assess.judge.noise import PLACES, Noise
from bitwright.graph import infer_shapes


def plain(shape):
    return ir.from_proto(build([node("Relu", ["x"], ["y"])], {"x": shape}, {"y": shape}, {}))


def detector():
    """Boxes of hundreds beside scores of 16 classes, for 100 anchors."""
    nodes = [
        node("Conv", ["x", "w"], ["small"]),
        node("Sigmoid", ["small"], ["scores"]),
        node("Conv", ["x", "v"], ["boxes"]),
        node("Concat", ["boxes", "scores"], ["y"], axis=1),
    ]
    constants = {"w": weight(16, 8, 1), "v": weight(4, 8, 1)}
    model = ir.from_proto(build(nodes, {"x": [1, 8, 100]}, {"y": [1, 20, 100]}, constants))
    infer_shapes(model)
    return model


def decibels(model, expected, actual):
    noise = Noise(model)
    kept = noise.keep({"x": np.zeros(1, np.float32)}, {"y": expected})
    return noise.decibels(kept, {"y": actual})


def detections(sure):
    """Float's answer: anchors with a box each, of which some have a high score."""
    rng = np.random.default_rng(0)
    found = np.empty((1, 20, 100), np.float32)
    found[0, :2] = rng.uniform(50, 250, (2, 100))
    found[0, 2:4] = rng.uniform(10, 40, (2, 100))
    found[0, 4:] = rng.uniform(0, 0.1, (16, 100))
    found[0, 7, sure] = 0.9
    return found


@pytest.mark.parametrize("ratio", [0.1, 0.01])
def test_it_is_noise_over_signal_in_decibels(ratio):
    values, other = normal(1, 4, 8, 8, seed=1), normal(1, 4, 8, 8, seed=2)
    found = decibels(plain([1, 4, 8, 8]), values, values + ratio * other)
    wanted = 10 * np.log10(np.sum((ratio * other) ** 2) / np.sum(values**2))
    assert found == pytest.approx(wanted, abs=1e-3)


def test_of_a_large_output_some_places_stand_for_all():
    model, values = plain([1, 4, 200, 200]), normal(1, 4, 200, 200)
    kept = Noise(model).keep({"x": values}, {"y": values})["y"]
    assert kept.values.size <= 4 * PLACES
    assert decibels(model, values, values + 0.1) == pytest.approx(-20, abs=1)


def test_what_is_lost_is_far_worse_than_any_noise():
    values = normal(1, 4, 8, 8)
    model = plain([1, 4, 8, 8])
    broken = values.copy()
    broken[0, 0, 0, 0] = np.nan
    for other in (broken, values[:, :2]):
        assert decibels(model, values, other) == 20


def test_anchors_in_the_background_do_not_vote():
    wanted = detections(sure=[3, 5])
    model = detector()
    background, found = wanted.copy(), wanted.copy()
    background[0, :4, 50:] += 30
    found[0, :4, 3] += 5
    assert decibels(model, wanted, background) == decibels(model, wanted, wanted)
    assert decibels(model, wanted, found) > decibels(model, wanted, wanted) + 10


def test_boxes_count_by_what_they_share():
    wanted = detections(sure=[3])
    half = wanted.copy()
    half[0, 0, 3] += half[0, 2, 3] / 3  # by a third of its width: half of both is shared
    far, model = wanted.copy(), detector()
    far[0, 0, 3] += 100
    scores = -60
    assert decibels(model, wanted, half) == pytest.approx(
        (10 * np.log10(0.5) + scores) / 2, abs=0.1
    )
    assert decibels(model, wanted, far) == pytest.approx(scores / 2, abs=0.1)


def test_scores_are_compared_where_a_decision_is_at_stake():
    model = ir.from_proto(build([node("Softmax", ["x"], ["y"])], {"x": [1, 2]}, {"y": [1, 2]}, {}))
    sure, sure_too = np.float32([[1 - 1e-6, 1e-6]]), np.float32([[1 - 1e-7, 1e-7]])
    unsure, turned = np.float32([[0.55, 0.45]]), np.float32([[0.45, 0.55]])
    assert decibels(model, sure, sure_too) == -60
    assert decibels(model, unsure, turned) > 0
