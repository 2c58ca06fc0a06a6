"""What an architecture is before it is exported: a module and the inputs that it takes."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    import torch

Kind = Literal["normal", "unit", "tokens", "ones", "zeros", "positions"]
Samples = list[dict[str, np.ndarray]]
SAMPLES = 8


@dataclass(frozen=True, slots=True)
class Input:
    """One input: its shape, how its values are made, and which of its axes may be dynamic."""

    name: str
    shape: tuple[int, ...]
    kind: Kind = "normal"
    below: int = 50
    """Tokens are below this."""
    dynamic: tuple[int, ...] = (0,)


@dataclass(frozen=True, slots=True)
class Network:
    """A module in eval mode, whose forward takes the inputs in order and returns tensors."""

    module: torch.nn.Module
    inputs: tuple[Input, ...]


@dataclass(frozen=True, slots=True)
class Architecture:
    """A name, and how to build the network; nothing is imported before that."""

    name: str
    build: Callable[[], Network]
    exporters: tuple[str, ...] = ("torchscript", "dynamo")
    half: bool = True
    """Whether it may be exported in float16, too."""


def seed_of(name: str) -> int:
    """Return a number that a name always has; Python's own hash changes with each process."""
    return zlib.crc32(name.encode())


def make_samples(inputs: tuple[Input, ...], count: int, seed: int) -> Samples:
    """Return samples of one shape; the same seed gives the same."""
    rng = np.random.default_rng(seed)
    return [{one.name: _make_array(one, rng) for one in inputs} for _ in range(count)]


def _make_array(one: Input, rng: np.random.Generator) -> np.ndarray:
    match one.kind:
        case "normal":
            return rng.standard_normal(one.shape).astype(np.float32)
        case "unit":
            return rng.random(one.shape).astype(np.float32)
        case "tokens":
            return rng.integers(0, one.below, one.shape)
        case "ones":
            return np.ones(one.shape, np.int64)
        case "zeros":
            return np.zeros(one.shape, np.int64)
        case "positions":
            row = np.arange(one.shape[-1]) + one.below
            return np.ascontiguousarray(np.broadcast_to(row, one.shape))


def randomize(module: torch.nn.Module, seed: int) -> torch.nn.Module:
    """Give batch norms statistics as after training, so that folding them is tested.

    Parameters that start at zero (layer scales, last norms of residual blocks) get values too: a
    network that ignores its input would test nothing.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)

    def uniform(tensor: torch.Tensor, low: float, high: float) -> None:
        if tensor.is_floating_point():
            tensor.copy_(torch.rand(tensor.shape, generator=generator) * (high - low) + low)

    with torch.no_grad():
        for part in module.modules():
            mean, variance = (getattr(part, name, None) for name in _STATISTICS)
            if isinstance(mean, torch.Tensor) and isinstance(variance, torch.Tensor):
                uniform(mean, -0.3, 0.3)
                uniform(variance, 0.5, 1.5)
                if getattr(part, "weight", None) is not None:
                    uniform(part.weight, 0.7, 1.3)
                    uniform(part.bias, -0.2, 0.2)
        for parameter in module.parameters():
            if parameter.numel() > 1 and not parameter.any():
                uniform(parameter, -0.05, 0.05)
    return module.eval()


_STATISTICS = ("running_mean", "running_var")
