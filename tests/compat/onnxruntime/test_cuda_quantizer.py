"""The CUDA module can be imported, and each of its methods says what to use instead."""

from __future__ import annotations

import pytest
from support.peer_overrides import both

from bitwright.errors import BitwrightError

MODULES = both("cuda_quantizer")


def test_callers_are_told_to_skip_what_is_refused():
    assert MODULES[0].has_cuda_weight_prepacking() is False


def test_every_public_method_is_a_clear_error():
    names = [name for name in vars(MODULES[1].CudaQuantizer) if not name.startswith("_")]
    assert len(names) == 6
    for name in names:
        with pytest.raises(BitwrightError, match=f"{name}.*MatMulNBitsQuantizer"):
            getattr(MODULES[0].CudaQuantizer, name)(None)
