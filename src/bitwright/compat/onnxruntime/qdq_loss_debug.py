"""`onnxruntime.quantization.qdq_loss_debug`, with one of its functions repaired."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bitwright.compat.onnxruntime.peer import hand_on, peer

__getattr__, __dir__ = hand_on(__name__)


def compute_activation_error(
    activations_match: Mapping[str, Mapping[str, Any]],
    err_func: Callable[[Any, Any], float] | None = None,
) -> dict[str, dict[str, float]]:
    """Return tensor name -> "qdq_err" of its pair, and "xmodel_err" to the float model.

    The peer fails where the values in the float model were not given.

    >>> import numpy as np
    >>> values = [np.ones(2, np.float32)]
    >>> found = compute_activation_error({"x": {"pre_qdq": values, "post_qdq": values}})
    >>> found["x"].keys()
    dict_keys(['qdq_err'])
    """
    options = {} if err_func is None else {"err_func": err_func}
    complete = {name: {"float": None, **match} for name, match in activations_match.items()}
    found: dict[str, dict[str, float]]
    found = peer("qdq_loss_debug").compute_activation_error(complete, **options)
    return found
