"""Float16 weights get the codes that Neural Compressor's own function gives them."""

import numpy as np
import pytest
from onnxruntime.quantization.neural_compressor import weight_only as peer
from support.models import FLOAT16, build, constants_of, node, retype, weight

from bitwright.compat.neural_compressor.weight_only import rtn_quantize


def product(rows=128, columns=96):
    return retype(
        build(
            [node("MatMul", ["x", "w"], ["y"], name="fc")],
            {"x": ["m", rows]},
            {"y": ["m", columns]},
            {"w": weight(rows, columns)},
            opset=21,
        ),
        np.float16,
        FLOAT16,
    )


@pytest.mark.parametrize(
    "options",
    [{}, {"num_bits": 8, "group_size": 64}, {"ratios": {"w": 0.9}}],
    ids=["4 bits", "8 bits", "ratio"],
)
def test_codes_scales_and_zero_points_are_the_peers(options, monkeypatch):
    monkeypatch.setattr(peer, "simple_progress_bar", lambda *counts: None)
    theirs = constants_of(peer.rtn_quantize(product(), algorithm="rtn", **options).model)
    ours = constants_of(rtn_quantize(product(), **options).model)
    assert theirs.keys() == ours.keys() and len(ours) == 3
    for name, array in theirs.items():
        np.testing.assert_array_equal(ours[name].ravel(), array.ravel(), err_msg=name)
