"""Small functions of `onnxruntime.quantization.neural_compressor.util`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bitwright.compat.onnxruntime.quant_utils import MODEL_SIZE_THRESHOLD as MAXIMUM_PROTOBUF
from bitwright.compat.onnxruntime.quant_utils import find_by_name
from bitwright.errors import DataError

__all__ = ["MAXIMUM_PROTOBUF", "find_by_name", "simple_progress_bar", "to_numpy"]


def simple_progress_bar(total: int, i: int) -> None:
    """Print how much is done, over what was printed before.

    >>> simple_progress_bar(4, 3)
    \rProgress: [###############     ] 75.00%
    """
    bar = "#" * (20 * i // total)
    print(f"\rProgress: [{bar:<20}] {100 * i / total:.2f}%", end="")


def to_numpy(data: Any) -> npt.NDArray[Any]:
    """Return numbers of any kind, a torch tensor's too, as an array.

    >>> to_numpy([1, 2]).tolist()
    [1, 2]
    """
    if hasattr(data, "detach"):
        tensor = data.detach().cpu()
        # numpy has no bfloat16 of its own.
        data = (tensor.float() if "bfloat16" in str(tensor.dtype) else tensor).numpy()
    array = np.asarray(data)
    if array.dtype == object:
        raise DataError(f"a {type(data).__name__} does not hold numbers of one shape.")
    return array
