"""Architectures of torchvision: classification, segmentation, detection, video, optical flow."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

import zoo.catalog.torchvision_operators  # noqa: F401 (defines them before the first import)
from zoo.network import Architecture, Input, Network

PRELOAD = ("torchvision",)
CLASSIFICATION = {
    "resnet18": 64,
    "resnext50_32x4d": 32,
    "wide_resnet50_2": 32,
    "densenet121": 32,
    "googlenet": 64,
    "inception_v3": 75,
    "mobilenet_v2": 64,
    "mobilenet_v3_small": 64,
    "mobilenet_v3_large": 32,
    "shufflenet_v2_x0_5": 64,
    "shufflenet_v2_x1_0": 32,
    "squeezenet1_0": 64,
    "squeezenet1_1": 64,
    "mnasnet0_5": 64,
    "mnasnet1_0": 32,
    "efficientnet_b0": 64,
    "efficientnet_v2_s": 32,
    "regnet_x_400mf": 64,
    "regnet_y_400mf": 64,
    "convnext_tiny": 64,
    "swin_t": 64,
    "swin_v2_t": 64,
}
SEGMENTATION = (
    "fcn_resnet50",
    "deeplabv3_resnet50",
    "deeplabv3_mobilenet_v3_large",
    "lraspp_mobilenet_v3_large",
)
DETECTION = (
    "ssdlite320_mobilenet_v3_large",
    "ssd300_vgg16",
    "fasterrcnn_mobilenet_v3_large_320_fpn",
    "fasterrcnn_resnet50_fpn",
    "fasterrcnn_resnet50_fpn_v2",
    "retinanet_resnet50_fpn",
    "retinanet_resnet50_fpn_v2",
    "fcos_resnet50_fpn",
    "maskrcnn_resnet50_fpn",
    "keypointrcnn_resnet50_fpn",
)
VIDEO = {
    "r3d_18": (4, 32),
    "mc3_18": (4, 32),
    "r2plus1d_18": (4, 32),
    "s3d": (16, 224),
    "swin3d_t": (4, 32),
}


def _image(size: int) -> Input:
    return Input("image", (1, 3, size, size), dynamic=(0,))


def _classifier(name: str, size: int) -> Network:
    from torchvision import models

    options: dict[str, Any] = {"weights": None, "num_classes": 10}
    if name in {"googlenet", "inception_v3"}:
        options |= {"init_weights": True, "aux_logits": False}
    return Network(models.get_model(name, **options), (_image(size),))


def _wide_head(name: str) -> Network:
    """Build AlexNet or a VGG with a small head: the usual one is most of its half gigabyte."""
    from torchvision import models

    module = models.get_model(name, weights=None)
    first = next(part for part in module.classifier if isinstance(part, nn.Linear))
    module.avgpool = nn.AdaptiveAvgPool2d((1, 1))
    width = first.in_features // (36 if name == "alexnet" else 49)
    module.classifier = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 10))
    return Network(module, (_image(64),))


def _transformer(kind: str) -> Network:
    from torchvision import models

    if kind == "vit":
        module = models.VisionTransformer(
            image_size=32,
            patch_size=8,
            num_layers=2,
            num_heads=4,
            hidden_dim=32,
            mlp_dim=64,
            num_classes=10,
        )
        return Network(module, (_image(32),))
    module = models.maxvit.MaxVit(
        input_size=(64, 64),
        stem_channels=16,
        partition_size=2,
        block_channels=[16, 32],
        block_layers=[1, 1],
        head_dim=8,
        stochastic_depth_prob=0.0,
        num_classes=10,
    )
    return Network(module, (_image(64),))


class _FirstOutput(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module(x)["out"]


class _Detector(nn.Module):
    """A detector on one image, with its tensors in a tuple."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(self.module([x[0]])[0].values())


class _Backbone(nn.Module):
    """A detector up to its heads: what is quantized, before boxes are chosen."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = module.backbone, getattr(module, "head", None)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        features = list(self.backbone(x).values())
        return tuple(features) if self.head is None else tuple(self.head(features).values())


def _segmenter(name: str) -> Network:
    from torchvision import models

    module = models.get_model(name, weights=None, weights_backbone=None, num_classes=5)
    return Network(_FirstOutput(module), (_image(64),))


def _detector(name: str, *, whole: bool) -> Network:
    from torchvision import models
    from torchvision.ops import boxes

    boxes._assert_has_ops = lambda: None
    options: dict[str, Any] = {"weights": None, "weights_backbone": None, "num_classes": 5}
    if not name.startswith("ssd"):
        options |= {"min_size": 64, "max_size": 96}
    module = models.get_model(name, **options)
    size = 300 if name.startswith("ssd") else 64
    wrapped = _Detector(module) if whole else _Backbone(module)
    return Network(wrapped, (Input("image", (1, 3, size, size), "unit", dynamic=()),))


def _video(name: str, frames: int, size: int) -> Network:
    from torchvision import models

    module = models.get_model(name, weights=None, num_classes=10)
    return Network(module, (Input("clip", (1, 3, frames, size, size)),))


def _multiscale() -> Network:
    from torchvision.models.video.mvit import MSBlockConfig, MViT

    blocks = [
        MSBlockConfig(1, 16, 32, [3, 3, 3], [3, 3, 3], [1, 1, 1], [1, 2, 2]),
        MSBlockConfig(2, 32, 32, [3, 3, 3], [3, 3, 3], [1, 2, 2], [1, 1, 1]),
    ]
    module = MViT(
        spatial_size=(32, 32),
        temporal_size=4,
        block_setting=blocks,
        residual_pool=True,
        residual_with_cls_embed=False,
        rel_pos_embed=True,
        proj_after_attn=True,
        num_classes=10,
    )
    return Network(module, (Input("clip", (1, 3, 4, 32, 32)),))


class _Flow(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
        return self.module(one, two, num_flow_updates=2)[-1]


def _optical_flow() -> Network:
    from torchvision import models

    module = models.get_model("raft_small", weights=None)
    return Network(_Flow(module), (Input("one", (1, 3, 128, 128)), Input("two", (1, 3, 128, 128))))


def architectures() -> list[Architecture]:
    """Return one or more of every family; detectors whole, and up to their heads."""
    found = [
        *((name, partial(_classifier, name, size)) for name, size in CLASSIFICATION.items()),
        *((name, partial(_wide_head, name)) for name in ("alexnet", "vgg11", "vgg13_bn")),
        *((name, partial(_transformer, name)) for name in ("vit", "maxvit")),
        *((name, partial(_segmenter, name)) for name in SEGMENTATION),
        *((f"{name}-heads", partial(_detector, name, whole=False)) for name in DETECTION),
        *((name, partial(_video, name, *size)) for name, size in VIDEO.items()),
        ("mvit", _multiscale),
        ("raft_small", _optical_flow),
    ]
    whole = [(name, partial(_detector, name, whole=True)) for name in DETECTION]
    return [
        *(Architecture(f"torchvision/{name}", build) for name, build in found),
        *(Architecture(f"torchvision/{name}", build, half=False) for name, build in whole),
    ]
