"""What an architecture is before it is exported: a module and the inputs that it takes."""

from __future__ import annotations

import time
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
MAX_SECONDS = 2.0
"""A network that takes longer than this for one sample is not shortened: that runs it often."""


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
    min_opset: int = 0
    """The first opset that the TorchScript exporter knows all of its operators in."""


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


def shorten(network: Network) -> Network:
    """Drop all but the first of equal blocks in a row: they repeat what it shows.

    What a network needs all of its blocks for (indices into them, several lists side by side) keeps
    them: its outputs must have the shapes that they had.
    """
    import torch

    arguments = tuple(
        torch.from_numpy(array) for array in make_samples(network.inputs, 1, 0)[0].values()
    )

    def shapes() -> list[torch.Size] | None:
        try:
            with torch.no_grad():
                outputs = torch.utils._pytree.tree_leaves(network.module(*arguments))
        except Exception:  # noqa: BLE001 - whatever it is, the network needs those blocks
            return None
        return [output.shape for output in outputs if isinstance(output, torch.Tensor)]

    network.module.eval()
    started = time.monotonic()
    expected = shapes()
    if expected is None or time.monotonic() - started > MAX_SECONDS:
        return network
    for part in list(network.module.modules()):
        if not isinstance(part, torch.nn.Sequential | torch.nn.ModuleList):
            continue
        children = dict(part._modules)
        kept = _without_repetition(children)
        if len(kept) < len(children):
            part._modules = kept
            if shapes() != expected:
                part._modules = children
    return network


def _without_repetition(
    children: dict[str, torch.nn.Module | None],
) -> dict[str, torch.nn.Module | None]:
    kept: list[torch.nn.Module | None] = []
    looks: list[object] = []
    for child in children.values():
        shapes = [(n, p.shape) for n, p in child.named_parameters()] if child else []
        # Some layers of the same parts differ in what they attend to.
        look = (type(child), getattr(child, "attention_type", None), shapes)
        if look not in looks[-1:]:
            kept.append(child)
            looks.append(look)
    # A list is indexed by position, so the names are those of the first ones.
    return dict(zip(children, kept, strict=False))
