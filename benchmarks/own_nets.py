"""Networks of kinds that no package of `nets.py` has, each a page of torch."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import interpolate, leaky_relu


def _block(inputs: int, outputs: int, size: int = 3, **options: int) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=False, **options)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())


def _scale(module: nn.Module) -> None:
    """Keep the size of values from layer to layer where no norm does."""
    for part in module.modules():
        if isinstance(part, nn.Conv1d | nn.Conv2d | nn.ConvTranspose1d | nn.Linear):
            nn.init.kaiming_normal_(part.weight)


class UNet(nn.Module):
    """Segmentation: three levels down and up again, each joined with what it came from."""

    WIDTHS = (24, 48, 96, 192)

    def __init__(self, classes: int = 2) -> None:
        super().__init__()
        pairs = list(zip((3, *self.WIDTHS[:-1]), self.WIDTHS, strict=True))
        self.down = nn.ModuleList([nn.Sequential(_block(a, b), _block(b, b)) for a, b in pairs])
        self.pool = nn.MaxPool2d(2)
        self.grow = nn.ModuleList([nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairs[:0:-1]])
        self.up = nn.ModuleList(
            [nn.Sequential(_block(2 * a, a), _block(a, a)) for a, _ in pairs[:0:-1]]
        )
        self.head = nn.Conv2d(self.WIDTHS[0], classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        levels = [self.down[0](x)]
        for part in self.down[1:]:
            levels.append(part(self.pool(levels[-1])))
        x = levels.pop()
        for grow, up in zip(self.grow, self.up, strict=True):
            x = up(torch.cat([grow(x), levels.pop()], 1))
        return self.head(x)


class _Dilated(nn.Module):
    """HiFi-GAN's residual block: pairs of convolutions, the first of each with holes."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.wide = nn.ModuleList(
            [nn.Conv1d(width, width, size, dilation=d, padding=d * (size // 2)) for d in (1, 3, 5)]
        )
        self.plain = nn.ModuleList(
            [nn.Conv1d(width, width, size, padding=size // 2) for _ in range(3)]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for wide, plain in zip(self.wide, self.plain, strict=True):
            x = x + plain(leaky_relu(wide(leaky_relu(x, 0.1)), 0.1))
        return x


class Vocoder(nn.Module):
    """A generator of sound as HiFi-GAN's V2: 256 samples for each frame of 80 mel bands."""

    SIZES = (3, 7, 11)

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.first = nn.Conv1d(80, width, 7, padding=3)
        self.grow, self.mix = nn.ModuleList(), nn.ModuleList()
        for factor in (8, 8, 2, 2):
            half = width // 2
            self.grow.append(nn.ConvTranspose1d(width, half, 2 * factor, factor, factor // 2))
            self.mix.append(nn.ModuleList([_Dilated(half, size) for size in self.SIZES]))
            width = half
        self.last = nn.Conv1d(width, 1, 7, padding=3)
        _scale(self)
        for part in self.mix.modules():
            if isinstance(part, _Dilated):
                for plain in part.plain:
                    nn.init.normal_(plain.weight, std=0.5 * float(plain.weight.detach().std()))
        nn.init.normal_(self.last.weight, std=0.01)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for grow, mix in zip(self.grow, self.mix, strict=True):
            x = grow(leaky_relu(x, 0.1))
            x = torch.stack([part(x) for part in mix]).sum(0) / len(self.SIZES)
        return torch.tanh(self.last(leaky_relu(x, 0.1)))


class Spotter(nn.Module):
    """Keywords in 50 frames of sound: two layers of GRU, and a head on the last step."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.GRU(40, 128, num_layers=2, batch_first=True)
        self.head = nn.Linear(128, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x)[0][:, -1])


class SmallPools(nn.Module):
    """Small layers that integer kernels are slow for: groups, both pools, HardSwish, a mean."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(_block(3, 32, stride=2), nn.MaxPool2d(2))
        self.first = nn.Sequential(
            nn.Conv2d(32, 32, 3, padding=1, groups=8), nn.Hardswish(), nn.AvgPool2d(2)
        )
        self.second = nn.Sequential(
            nn.Conv2d(32, 64, 1), nn.Hardswish(), nn.Conv2d(64, 64, 3, padding=1, groups=4)
        )
        self.head = nn.Linear(64, 10)
        _scale(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.second(self.first(self.stem(x)))
        return self.head(nn.functional.hardswish(x).mean((2, 3)))


class _Cardinal(nn.Module):
    def __init__(self, inputs: int, width: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _block(inputs, width, 1),
            _block(width, width, 3, stride=stride, groups=32),
            nn.Conv2d(width, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.aside = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.aside = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.aside(x))


class SmallResNeXt(nn.Module):
    """The first stage of ResNeXt-50 and half of the next: 3x3 of 128 channels in 32 groups."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            _block(3, 64, 7, stride=2),
            nn.MaxPool2d(3, 2, 1),
            _Cardinal(64, 128, 256, 1),
            *(_Cardinal(256, 128, 256, 1) for _ in range(2)),
            _Cardinal(256, 256, 512, 2),
            _Cardinal(512, 256, 512, 1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(512, 100),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Pyramid(nn.Module):
    """A decoder that resizes by two ways and adds, as those of segmentation and depth do."""

    def __init__(self) -> None:
        super().__init__()
        widths = (32, 64, 128)
        pairs = zip((3, *widths[:-1]), widths, strict=True)
        self.down = nn.ModuleList([_block(a, b, stride=2) for a, b in pairs])
        self.even = nn.ModuleList([nn.Conv2d(width, 64, 1) for width in widths])
        self.mix = nn.ModuleList([_block(64, 64) for _ in widths])
        self.head = nn.Conv2d(64, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        levels = []
        for part in self.down:
            levels.append(x := part(x))
        levels = [even(level) for even, level in zip(self.even, levels, strict=True)]
        y = self.mix[2](levels[2])
        y = self.mix[1](interpolate(y, scale_factor=2, mode="nearest") + levels[1])
        y = interpolate(y, scale_factor=2, mode="bilinear", align_corners=False)
        return self.head(self.mix[0](y + levels[0]))


def row_network() -> nn.Sequential:
    """Return a perceptron for one row at a time: so little work that calls are most of it."""
    layers = nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    network = nn.Sequential(*layers)
    _scale(network)
    return network
