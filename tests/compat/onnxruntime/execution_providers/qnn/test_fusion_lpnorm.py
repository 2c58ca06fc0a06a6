"""L2 norms are found where the peer finds them."""

from __future__ import annotations

import numpy as np
import pytest
from support.fusion_models import content, fused_by_both, make_l2_norm
from support.models import normal, ops, run

FUSION = "execution_providers.qnn.fusion_lpnorm", "FusionLpNormalization"


@pytest.mark.parametrize("axis", [-1, 2])
def test_a_division_by_the_norm_becomes_the_peers_node(axis):
    model = make_l2_norm(axis=axis)
    (mine, made), (theirs, wanted) = fused_by_both(*FUSION, model)
    assert mine is theirs is True
    assert content(made) == content(wanted)
    assert ops(made) == {"LpNormalization": 1}
    x = normal(2, 8, 8)
    np.testing.assert_allclose(run(made, {"x": x})[0], run(model, {"x": x})[0], atol=1e-6)


@pytest.mark.parametrize("options", [{"axis": 1}, {"floor": 1e-6}])
def test_other_norms_stay(options):
    (mine, _), (theirs, _) = fused_by_both(*FUSION, make_l2_norm(**options))
    assert mine is theirs is False
