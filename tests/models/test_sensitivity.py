"""On real models, a few nodes that fall back regain most of the loss."""

from __future__ import annotations

import numpy as np
import pytest
from support.ocr_models import ocr_case

import bitwright


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "share"), [("cls", 0.4), ("det", 0.75), ("rec", 0.8)])
def test_a_tenth_of_the_nodes_regains_most_of_the_loss(kind, share):
    path, samples, _ = ocr_case(kind)
    plan = bitwright.make_plan(path, data=samples, recipe="int8-per-channel")
    found = bitwright.find_sensitivity(path, plan, data=samples, limit=4)
    better = found.proposal(share, most=0.1)
    assert better.reached, better.describe()
    assert len(better.nodes) <= 0.1 * better.quantizable
    applied = bitwright.apply_plan(better.plan, path, data=samples, limit=4)
    error = np.mean([10 ** (-output.sqnr / 10) for output in applied.outputs])
    assert error <= 1.1 * (1 - share) * better.before


@pytest.mark.slow
def test_every_node_of_a_detector_is_compared():
    path, samples, _ = ocr_case("det", 2)
    result = bitwright.quantize(path, data=samples, recipe="int8-per-channel", holdout=False)
    found = bitwright.compare(path, result.model, data=samples, plan=result.plan)
    measured = {row.name for row in found.nodes if row.local_sqnr is not None}
    convolutions = {n for n, node in result.plan.nodes.items() if node.op == "Conv"}
    assert convolutions <= measured
    # Each on its own is far better than all of them together.
    alone = [row.local_sqnr for row in found.nodes if row.local_sqnr is not None]
    assert np.median(alone) > found.outputs[0].sqnr + 10
