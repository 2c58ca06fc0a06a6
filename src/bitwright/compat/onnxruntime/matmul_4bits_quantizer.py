"""`MatMul4BitsQuantizer`, as the module of n bits was called up to ONNX Runtime 1.20."""

from __future__ import annotations

from typing import Any

from bitwright.compat.onnxruntime.matmul_nbits_quantizer import *  # noqa: F403
from bitwright.compat.onnxruntime.matmul_nbits_quantizer import MatMulNBitsQuantizer


class MatMul4BitsQuantizer(MatMulNBitsQuantizer):
    """The quantizer of n bits with 4 of them, which are no argument.

    >>> import bitwright
    >>> MatMul4BitsQuantizer(bitwright.load_demo().model_path, 32, True).is_symmetric
    True
    """

    def __init__(
        self,
        model: Any,
        block_size: int = 128,
        is_symmetric: bool = False,
        *rest: Any,
        **options: Any,
    ) -> None:
        super().__init__(model, 4, block_size, is_symmetric, *rest, **options)
