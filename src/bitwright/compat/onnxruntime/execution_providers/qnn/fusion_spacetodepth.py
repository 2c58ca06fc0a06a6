"""`FusionSpaceToDepth` of `onnxruntime.quantization`, which keeps outputs of the model."""

from __future__ import annotations

from bitwright.compat.onnxruntime.fusions.fusion import KeepsOutputs
from bitwright.compat.onnxruntime.peer import hand_on, peer

__getattr__, __dir__ = hand_on(__name__)

_PEER = peer("execution_providers.qnn.fusion_spacetodepth").FusionSpaceToDepth


class FusionSpaceToDepth(KeepsOutputs, _PEER):  # type: ignore[misc, valid-type]
    """Puts `SpaceToDepth` in the place of four Reshape nodes with a Transpose between each two."""
