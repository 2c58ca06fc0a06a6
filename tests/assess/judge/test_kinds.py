"""What an output holds is told from its name, its values and its maker."""

from __future__ import annotations

import numpy as np
import pytest
from support.models import normal

from bitwright.assess.judge.kinds import channel_axis, choose_kind, class_axis

IMAGE = np.zeros((1, 3, 64, 48), np.float32)
TOKENS = np.zeros((2, 7), np.int64)


@pytest.mark.parametrize(
    ("name", "shape", "given", "axis"),
    [
        ("output", (8, 1000), IMAGE, 1),
        ("pooler_output", (2, 768), TOKENS, None),
        ("pred_boxes", (1, 4), IMAGE, None),
        ("logits", (2, 7, 32000), TOKENS, 2),
        ("y", (2, 7, 9), TOKENS, 2),
        ("last_hidden_state", (2, 7, 768), TOKENS, None),
        ("present.0.key", (2, 7, 4, 16), TOKENS, None),
        ("output0", (1, 84, 8400), IMAGE, None),
        ("boxes", (1, 8400, 4), IMAGE, None),
        ("pred_logits", (1, 100, 91), IMAGE, 2),
        ("wave", (1, 2, 16000), np.zeros((1, 2, 16000), np.float32), None),
        ("out", (1, 21, 64, 48), IMAGE, 1),
        ("out", (1, 3, 64, 48), IMAGE, None),
        ("out", (1, 255, 8, 6), IMAGE, None),
        ("logits", (1, 2, 16, 12), IMAGE, 1),
        ("y", (1000,), IMAGE, None),
        ("y", (1, 2, 3, 4, 5), IMAGE, None),
    ],
)
def test_only_scores_of_classes_have_an_axis_of_classes(name, shape, given, axis):
    assert class_axis(name, shape, [given]) == axis


SHARES = np.array([[0.1, 0.7, 0.2], [0.5, 0.25, 0.25]])
SCORES = np.array([[0.9, 0.7, 0.2], [0.5, 0.05, 0.25]])
UNIT = normal(2, 8) / np.linalg.norm(normal(2, 8), axis=1, keepdims=True)


@pytest.mark.parametrize(
    ("name", "values", "made_by", "kind", "axis"),
    [
        ("y", normal(2, 10), "Gemm", "logits", 1),
        ("y", SHARES, None, "probabilities", 1),
        ("y", SCORES, None, "sigmoid", 1),
        ("y", np.array([[1.0, 0.0, 0.0]]), None, "probabilities", 1),
        ("y", UNIT, None, "embedding", 1),
        ("sentence_embedding", normal(2, 8), None, "embedding", 1),
        ("461", normal(2, 8), "Div", "embedding", 1),
        ("422", normal(2, 7, 8), "LayerNormalization", "embedding", 2),
        ("logits", normal(2, 8), "Div", "logits", 1),
        ("last_hidden_state", normal(2, 7, 8), None, "embedding", 2),
        ("features", normal(1, 8, 4, 4), None, "sqnr", 2),
        ("mask", np.abs(normal(1, 1, 4, 4)), "Sigmoid", "sigmoid", 2),
        ("boxes", SCORES, "Sigmoid", "sqnr", 1),
        ("output0", normal(1, 84, 100), "Concat", "sqnr", 1),
        ("y", np.float64(3), None, "sqnr", None),
    ],
)
def test_the_kind_of_an_output(name, values, made_by, kind, axis):
    found = choose_kind(name, values, [IMAGE], made_by=made_by)
    assert (found.kind, found.axis) == (kind, axis)
    assert found.reason


def test_only_classes_that_compete_have_a_best_one():
    assert choose_kind("y", SHARES).top1
    assert not choose_kind("mask", np.abs(normal(1, 1, 4, 4)), made_by="Sigmoid").top1


def test_channels_lie_along_the_smallest_axis_but_the_batch():
    assert channel_axis((2, 100, 6)) == 2
    assert channel_axis((2,)) is None
    assert channel_axis((1, 1, 1)) is None


def test_kinds_have_a_reason():
    values = np.array([[2.0, -1.0, 0.5]])
    assert choose_kind("logits", values).reason == "class scores along axis 1"
    assert choose_kind("sentence_embedding", values).kind == "embedding"


def test_channels_lie_along_the_smallest_axis_behind_the_batch():
    shapes = (1, 84, 8400), (1, 100, 4), (1, 1, 5), (7,)
    assert [channel_axis(shape) for shape in shapes] == [1, 2, 2, None]
