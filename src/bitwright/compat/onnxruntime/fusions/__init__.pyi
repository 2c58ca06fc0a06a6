"""The names of `onnxruntime.quantization.fusions` and where each is defined."""

from .fusion import Fusion as Fusion
from .fusion_gelu import FusionGelu as FusionGelu
from .fusion_layernorm import FusionLayerNormalization as FusionLayerNormalization
from .replace_upsample_with_resize import ReplaceUpsampleWithResize as ReplaceUpsampleWithResize
