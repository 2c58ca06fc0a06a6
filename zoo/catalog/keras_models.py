"""Architectures of keras on torch: the layouts and paddings that TensorFlow's networks have."""

from __future__ import annotations

import os
from functools import partial

import torch
from torch import nn

from zoo.network import Architecture, Input, Network

os.environ["KERAS_BACKEND"] = "torch"

NAMES = {
    "MobileNet": 64,
    "MobileNetV2": 64,
    "MobileNetV3Small": 64,
    "EfficientNetB0": 64,
    "EfficientNetV2B0": 64,
    "DenseNet121": 64,
    "ResNet50V2": 64,
    "Xception": 96,
    "NASNetMobile": 64,
    "ConvNeXtTiny": 64,
    "InceptionV3": 96,
}


class _Plain(nn.Module):
    """A keras model as torch's exporters expect one."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x, training=False)


def _build(name: str, size: int) -> Network:
    import keras

    make = getattr(keras.applications, name)
    model = make(weights=None, input_shape=(size, size, 3), classes=10, classifier_activation=None)
    # Channels come last, as in TensorFlow.
    return Network(_Plain(model), (Input("image", (1, size, size, 3), "unit", dynamic=()),))


def architectures() -> list[Architecture]:
    """Return every network of the table."""
    return [
        Architecture(f"keras/{name.lower()}", partial(_build, name, size), half=False)
        for name, size in NAMES.items()
    ]
