"""Weights packed for kernels of the CUDA provider, by the peer; onnxruntime 1.23 has none of it."""

from typing import Any

from bitwright.compat.onnxruntime.peer import hand_on, peer

__getattr__, __dir__ = hand_on(__name__)

CudaQuantizer: Any
try:
    CudaQuantizer = peer("cuda_quantizer").CudaQuantizer
except ModuleNotFoundError:

    class _Missing:
        """Packs single weights for the CUDA provider; needs a newer onnxruntime."""

        def __init__(self) -> None:
            raise NotImplementedError(str(self.__doc__))

    CudaQuantizer = _Missing
