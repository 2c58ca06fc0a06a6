"""Layer norms are found where the peer finds them, and only over the last axis."""

from __future__ import annotations

import numpy as np
import pytest
from support.fusion_models import content, fused_by_both, make_layer_norm
from support.models import normal, ops, run

FUSION = "fusions", "FusionLayerNormalization"


@pytest.mark.parametrize("form", ["Pow", "Mul"])
@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("axis", [-1, 2])
def test_every_form_becomes_the_peers_node_and_computes_the_same(form, twice, axis):
    model = make_layer_norm(form, twice=twice, axis=axis)
    (mine, made), (theirs, wanted) = fused_by_both(*FUSION, model)
    assert mine is theirs is True
    assert content(made) == content(wanted)
    assert ops(made) == {"LayerNormalization": 1}
    x = normal(2, 8, 8, size=3)
    np.testing.assert_allclose(run(made, {"x": x})[0], run(model, {"x": x})[0], atol=1e-4)


@pytest.mark.parametrize("epsilon", [0.0, 1e-3])
def test_an_unlikely_epsilon_is_left_alone_as_the_peer_does(epsilon):
    (mine, _), (theirs, _) = fused_by_both(*FUSION, make_layer_norm(epsilon=epsilon))
    assert mine is theirs is False


def test_a_mean_over_another_axis_stays():
    # The peer makes a LayerNormalization over the last axis of it, which is another function.
    (mine, made), (theirs, _) = fused_by_both(*FUSION, make_layer_norm(axis=1))
    assert (mine, theirs) == (False, True)
    assert ops(made)["ReduceMean"] == 2
