"""Architectures of segmentation-models-pytorch, each on a small encoder."""

from __future__ import annotations

from functools import partial

import zoo.catalog.torchvision_operators  # noqa: F401 (defines them before the first import)
from zoo.network import Architecture, Input, Network

PRELOAD = ("segmentation_models_pytorch",)
DECODERS = (
    "Unet UnetPlusPlus MAnet Linknet FPN PSPNet DeepLabV3 DeepLabV3Plus PAN UPerNet Segformer"
).split()
ENCODERS = ("resnet18", "mobilenet_v2", "efficientnet-b0", "timm-mobilenetv3_small_075")


def _build(decoder: str, encoder: str) -> Network:
    import segmentation_models_pytorch as smp

    module = getattr(smp, decoder)(encoder_name=encoder, encoder_weights=None, classes=3)
    return Network(module, (Input("image", (1, 3, 64, 64)),))


def architectures() -> list[Architecture]:
    """Return every decoder, their encoders in turns."""
    return [
        Architecture(f"segmentation/{decoder.lower()}-{encoder}", partial(_build, decoder, encoder))
        for index, decoder in enumerate(DECODERS)
        for encoder in (ENCODERS[index % len(ENCODERS)],)
    ]
