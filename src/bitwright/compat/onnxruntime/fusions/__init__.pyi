"""The names of `onnxruntime.quantization.fusions` and where each is defined."""

from .mended import Fusion as Fusion
from .mended import FusionGelu as FusionGelu
from .mended import FusionLayerNormalization as FusionLayerNormalization
from .mended import ReplaceUpsampleWithResize as ReplaceUpsampleWithResize
