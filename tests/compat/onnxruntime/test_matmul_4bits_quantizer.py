"""`MatMul4BitsQuantizer`, with the arguments of the releases that had it."""

import pytest
from support.models import make_mlp, ops

from bitwright.compat.onnxruntime.calibrate import create_calibrator
from bitwright.compat.onnxruntime.matmul_4bits_quantizer import (
    DefaultWeightOnlyQuantConfig,
    MatMul4BitsQuantizer,
)


@pytest.mark.parametrize("given", [{}, {"algo_config": DefaultWeightOnlyQuantConfig(32, True)}])
def test_four_bits_are_no_argument(given):
    quantizer = MatMul4BitsQuantizer(make_mlp(), 32, True, **given)
    quantizer.process()
    nodes = [node for node in quantizer.model.model.graph.node if node.op_type == "MatMulNBits"]
    sizes = {a.name: a.i for a in nodes[0].attribute}
    assert (sizes["bits"], sizes["block_size"]) == (4, 32) and ops(quantizer.model.model)


def test_ranges_are_computed_by_the_old_name():
    import bitwright

    demo = bitwright.load_demo()
    calibrator = create_calibrator(demo.model_path)
    calibrator.collect_data(demo.calibration[:4])
    low, high = calibrator.compute_range()["image"]
    assert (float(low[0]), float(high[0])) == (0.0, 1.0)
