"""Rounded weights on disk: they come back as they were, and only to the job they belong to."""

import ml_dtypes
import numpy as np
import pytest

from bitwright.errors import DataError, OutputError
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


def test_a_folder_of_another_job_is_refused(tmp_path):
    BlockStore(tmp_path / "work", job="a")
    BlockStore(tmp_path / "work", job="a")
    with pytest.raises(DataError, match="another model"):
        BlockStore(tmp_path / "work", job="b")


def test_a_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "holiday.jpg").write_bytes(b"")
    with pytest.raises(DataError, match="not empty"):
        BlockStore(tmp_path)


def test_a_file_is_no_folder_to_keep_weights_in(tmp_path):
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(OutputError, match=r"cannot keep what is finished in .*notes"):
        BlockStore(tmp_path / "notes")


def test_a_lent_folder_vanishes_and_an_own_one_stays(tmp_path):
    with BlockStore() as lent:
        assert lent.folder.exists()
    assert not lent.folder.exists()
    with BlockStore(tmp_path / "work") as own:
        pass
    assert own.folder.exists()
