"""Detection heads as the YOLO family has them: SiLU blocks, pyramid pooling, decoded boxes."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from zoo.network import Architecture, Input, Network


class Block(nn.Module):
    """Conv, batch norm, SiLU."""

    def __init__(self, inputs: int, outputs: int, size: int = 1, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the block."""
        return nn.functional.silu(self.norm(self.conv(x)))


class Split(nn.Module):
    """A cross-stage block: half of the channels go through bottlenecks, all are joined."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.last = Block(width, width), Block(width * 3 // 2, width)
        self.inner = nn.Sequential(
            Block(width // 2, width // 2, 3), Block(width // 2, width // 2, 3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the block."""
        kept, worked = self.first(x).chunk(2, 1)
        return self.last(torch.cat([kept, worked, worked + self.inner(worked)], 1))


class Pyramid(nn.Module):
    """Max pools of one size in a row, joined."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.last = Block(width, width // 2), Block(width * 2, width)
        self.pool = nn.MaxPool2d(5, 1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the block."""
        levels = [self.first(x)]
        for _ in range(3):
            levels.append(self.pool(levels[-1]))
        return self.last(torch.cat(levels, 1))


class Detector(nn.Module):
    """A backbone of three levels, a neck that upsamples, and a head of one of three kinds."""

    def __init__(self, head: str, classes: int = 4, bins: int = 8) -> None:
        super().__init__()
        self.head_kind, self.classes, self.bins = head, classes, bins
        self.stem = nn.Sequential(Block(3, 16, 3, 2), Block(16, 32, 3, 2), Split(32))
        self.down = nn.ModuleList(
            [
                nn.Sequential(Block(32, 32, 3, 2), Split(32)),
                nn.Sequential(Block(32, 32, 3, 2), Pyramid(32)),
            ]
        )
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.neck = Block(64, 32, 3)
        outputs = {"anchors": 3 * (5 + classes), "points": 5 + classes, "bins": 4 * bins + classes}
        self.heads = nn.ModuleList([nn.Conv2d(32, outputs[head], 1) for _ in range(2)])
        self.register_buffer("project", torch.arange(bins, dtype=torch.float32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return boxes and scores of all places, one row each."""
        first = self.stem(x)
        second = self.down[0](first)
        third = self.down[1](second)
        joined = self.neck(torch.cat([self.up(third), second], 1))
        levels = [head(level) for head, level in zip(self.heads, (joined, third), strict=True)]
        return torch.cat([self._decode(y, 8 * 2**i) for i, y in enumerate(levels)], 1)

    def _decode(self, y: torch.Tensor, stride: int) -> torch.Tensor:
        batch, _, height, width = y.shape
        rows, columns = (torch.arange(n, dtype=y.dtype) for n in (height, width))
        grid = torch.stack(torch.meshgrid(rows, columns, indexing="ij")[::-1], -1).view(1, -1, 2)
        if self.head_kind == "bins":
            y = y.flatten(2).transpose(1, 2)
            boxes, scores = y.split([4 * self.bins, self.classes], 2)
            shares = boxes.reshape(batch, -1, 4, self.bins).softmax(-1)
            sides = (shares * self.project.to(y.dtype)).sum(-1)
            near, far = sides.chunk(2, 2)
            box = torch.cat([grid - near, grid + far], 2) * stride
            return torch.cat([box, scores.sigmoid()], 2)
        if self.head_kind == "points":
            y = y.flatten(2).transpose(1, 2)
            centre = (y[..., :2] + grid) * stride
            return torch.cat([centre, y[..., 2:4].exp() * stride, y[..., 4:].sigmoid()], 2)
        y = y.view(batch, 3, -1, height * width).permute(0, 1, 3, 2).sigmoid()
        centre = (y[..., :2] * 2 - 0.5 + grid.unsqueeze(1)) * stride
        size = (y[..., 2:4] * 2) ** 2 * stride
        return torch.cat([centre, size, y[..., 4:]], -1).view(batch, -1, 5 + self.classes)


def _build(head: str) -> Network:
    return Network(Detector(head), (Input("images", (1, 3, 64, 64), "unit"),))


def architectures() -> list[Architecture]:
    """Return heads with anchors, with points, and with distributions over distances."""
    kinds = ("anchors", "points", "bins")
    return [Architecture(f"heads/yolo-{kind}", partial(_build, kind)) for kind in kinds]
