"""Gelu is found where the peer finds it, and nothing that is read outside is removed."""

from __future__ import annotations

import numpy as np
import pytest
from support.fusion_models import content, fused_by_both, make_gelu
from support.models import normal, ops, run

FORMS = ["half-x", "half-last", "x-last", "root", "product"]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_becomes_the_peers_node_and_computes_the_same(form):
    model = make_gelu(form)
    (mine, made), (theirs, wanted) = fused_by_both("fusions", "FusionGelu", model)
    assert mine is theirs is True
    assert content(made) == content(wanted)
    assert ops(made) == {"Gelu": 1}
    x = normal(2, 8, size=3)
    np.testing.assert_allclose(run(made, {"x": x})[0], run(model, {"x": x})[0], atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("constant", ["one", "half", "root", "inverse", "two"])
def test_another_constant_is_another_function(form, constant):
    model = make_gelu(form)
    for tensor in model.graph.initializer:
        if tensor.name == constant:
            tensor.raw_data = np.float32(1.1).tobytes()
            (mine, _), (theirs, _) = fused_by_both("fusions", "FusionGelu", model)
            assert mine is theirs is False


@pytest.mark.parametrize("tensor", ["scaled", "erf", "plus", "halved"])
def test_an_output_of_the_model_stays(tensor):
    model = make_gelu("x-last", watched=tensor)
    (changed, made), _ = fused_by_both("fusions", "FusionGelu", model)
    assert not changed
    assert "Gelu" not in ops(made)
