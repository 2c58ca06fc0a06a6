"""Rounded weights on disk come back as they were."""

import ml_dtypes
import numpy as np
import pytest

from bitwright.numerics.blocks import BlockFormat, quantize_in_blocks
from bitwright.rounding.store import BlockStore


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("scale_type", ["float32", "float16", "bfloat16"])
def test_a_weight_comes_back_as_it_was(tmp_path, symmetric, scale_type):
    form = BlockFormat(bits=3, block_size=16, symmetric=symmetric, scale_type=scale_type)
    blocks = quantize_in_blocks(np.random.default_rng(0).normal(size=(40, 6)), form)
    with BlockStore(tmp_path / "work") as store:
        store.put("layer/0.weight", blocks)
    found = BlockStore(tmp_path / "work").get("layer/0.weight")
    assert found.format == form
    np.testing.assert_array_equal(found.codes, blocks.codes)
    np.testing.assert_array_equal(found.scales, blocks.scales)
    assert found.scales.dtype == blocks.scales.dtype
    if scale_type == "bfloat16":
        assert found.scales.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(found.dequantize(), blocks.dequantize())
