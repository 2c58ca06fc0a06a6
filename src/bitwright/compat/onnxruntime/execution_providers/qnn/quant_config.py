"""`get_qnn_qdq_config` of `onnxruntime.quantization`, without conversions that change nothing."""

from __future__ import annotations

from functools import wraps
from typing import Any

from bitwright.compat.onnxruntime.enums import with_own_members
from bitwright.compat.onnxruntime.peer import hand_on, peer

__getattr__, __dir__ = hand_on(__name__)


@wraps(  # its signature
    peer("execution_providers.qnn.quant_config").get_qnn_qdq_config, assigned=()
)
def get_qnn_qdq_config(*arguments: Any, **options: Any) -> Any:
    """Return a configuration that quantizes every operator of a model for QNN, in QDQ format.

    The peer converts a tensor whose override has no type to the type that it has, which its own
    check of overrides refuses.

    >>> import bitwright
    >>> demo = bitwright.load_demo()
    >>> config = get_qnn_qdq_config(demo.model_path, demo.calibration[:8], per_channel=True)
    >>> config.per_channel, config.extra_options["MinimumRealRange"]
    (True, 0.0001)
    """
    make = peer("execution_providers.qnn.quant_config").get_qnn_qdq_config
    config = with_own_members(make(*arguments, **options))
    for entries in config.extra_options["TensorQuantOverrides"].values():
        for entry in entries:
            kind = entry.get("quant_type", config.activation_type)
            if "convert" in entry and entry["convert"].get("quant_type") == kind:
                del entry["convert"]
    return config
