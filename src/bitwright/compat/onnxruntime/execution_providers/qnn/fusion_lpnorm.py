"""`FusionLpNormalization` of `onnxruntime.quantization`, which keeps outputs of the model."""

from __future__ import annotations

from bitwright.compat.onnxruntime.fusions.fusion import KeepsOutputs
from bitwright.compat.onnxruntime.peer import hand_on, peer

__getattr__, __dir__ = hand_on(__name__)

_PEER = peer("execution_providers.qnn.fusion_lpnorm").FusionLpNormalization


class FusionLpNormalization(KeepsOutputs, _PEER):  # type: ignore[misc, valid-type]
    """Puts `LpNormalization` in the place of x / Expand(Clip(ReduceL2(x), min=epsilon))."""
