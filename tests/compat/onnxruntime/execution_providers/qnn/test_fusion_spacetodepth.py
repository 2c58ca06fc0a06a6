"""Space-to-depth is found where the peer finds it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from support.fusion_models import content, fused_by_both, make_space_to_depth
from support.models import info, normal, ops, run

FUSION = "execution_providers.qnn.fusion_spacetodepth", "FusionSpaceToDepth"


@pytest.mark.parametrize("block", [2, 4])
def test_a_chain_becomes_the_peers_node_and_moves_the_same(block):
    model = make_space_to_depth(block)
    (mine, made), (theirs, wanted) = fused_by_both(*FUSION, model)
    assert mine is theirs is True
    assert content(made) == content(wanted)
    assert ops(made) == {"SpaceToDepth": 1}
    x = normal(1, 3, 8, 4)
    np.testing.assert_array_equal(run(made, {"x": x})[0], run(model, {"x": x})[0])


def test_another_order_is_another_function():
    model = make_space_to_depth(order=(0, 1, 2, 3, 4))
    (mine, _), (theirs, _) = fused_by_both(*FUSION, model)
    assert mine is theirs is False


def test_an_output_in_the_middle_stays():
    model = make_space_to_depth()
    model.graph.output.append(info("t1"))
    (mine, made), _ = fused_by_both(*FUSION, model)
    assert not mine
    onnx.checker.check_model(made)
