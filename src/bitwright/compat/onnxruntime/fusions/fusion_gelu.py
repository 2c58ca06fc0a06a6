"""`FusionGelu` of `onnxruntime.quantization`, which keeps outputs of the model."""

from __future__ import annotations

from bitwright.compat.onnxruntime.fusions.fusion import KeepsOutputs
from bitwright.compat.onnxruntime.peer import hand_on, peer

__getattr__, __dir__ = hand_on(__name__)


class FusionGelu(KeepsOutputs, peer("fusions.fusion_gelu").FusionGelu):  # type: ignore[misc]
    """Puts `Gelu` in the place of the Div, Erf, Add and Mul nodes that exporters write."""
