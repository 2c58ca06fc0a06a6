"""Weights packed for kernels of the CUDA provider, by the names of ONNX Runtime's module."""

from __future__ import annotations

from typing import Any

from bitwright.compat.onnxruntime.errors import NoOperatorQuantizersError

__all__ = ["CudaQuantizer", "has_cuda_weight_prepacking"]


def has_cuda_weight_prepacking() -> bool:
    """Return whether weights can be packed for CUDA kernels here: no, and callers then skip it."""
    return False


def _refused(name: str) -> Any:
    def method(*arguments: Any, **options: Any) -> Any:
        raise NoOperatorQuantizersError(
            f"CudaQuantizer.{name} packs one weight for kernels of the CUDA provider, which "
            "Bitwright does not; MatMulNBitsQuantizer writes weights that this provider packs "
            "itself when it loads the model."
        )

    method.__name__ = name
    method.__doc__ = "Pack one weight: an error that says what to use instead."
    return staticmethod(method)


class CudaQuantizer:
    """Packs single weights for the CUDA provider there; here each method is an error.

    >>> CudaQuantizer.matmulnbits_blockwise_quantize(None)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    bitwright.compat.onnxruntime.errors.NoOperatorQuantizersError: CudaQuantizer.matmulnbits_b...
    """

    qmoe_symmetric_per_channel_quantize = _refused("qmoe_symmetric_per_channel_quantize")
    qmoe_per_channel_quantize = _refused("qmoe_per_channel_quantize")
    matmulnbits_blockwise_quantize = _refused("matmulnbits_blockwise_quantize")
    matmulnbits_prepacked_blockwise_quantize = _refused("matmulnbits_prepacked_blockwise_quantize")
    qmoe_prepacked_blockwise_quantize = _refused("qmoe_prepacked_blockwise_quantize")
    symmetric_blockwise_quantize = _refused("symmetric_blockwise_quantize")
