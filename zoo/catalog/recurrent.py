"""Recurrent networks of torch itself."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from zoo.network import Architecture, Input, Network


class Recurrent(nn.Module):
    """An embedding or a projection, a recurrent layer and a head; states may be inputs."""

    def __init__(self, kind: str, *, tokens: bool, states: bool, **options: object) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 24) if tokens else nn.Linear(24, 24)
        self.layer = getattr(nn, kind)(24, 32, batch_first=True, **options)
        width = 32 * (2 if options.get("bidirectional") else 1)
        if options.get("proj_size"):
            width = int(str(options["proj_size"]))
        self.head = nn.Linear(width, 10)
        self.states = states

    def forward(self, x: torch.Tensor, *state: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the head's output, and the new states where they are inputs."""
        if not self.states:
            return (self.head(self.layer(self.embed(x))[0]),)
        given = state[0] if len(state) == 1 else state
        y, new = self.layer(self.embed(x), given)
        return (self.head(y), *((new,) if len(state) == 1 else new))


_OPTIONS: dict[str, dict[str, object]] = {
    "plain": {},
    "two-layers": {"num_layers": 2},
    "bidirectional": {"bidirectional": True},
    "bidirectional-two-layers": {"bidirectional": True, "num_layers": 2},
    "no-bias": {"bias": False},
}


def _build(kind: str, options: dict[str, object], *, tokens: bool, states: bool) -> Network:
    module = Recurrent(kind, tokens=tokens, states=states, **options)
    first = Input("x", (1, 7), "tokens") if tokens else Input("x", (1, 7, 24))
    layers = int(str(options.get("num_layers", 1))) * (2 if options.get("bidirectional") else 1)
    count = 0 if not states else (2 if kind == "LSTM" else 1)
    extra = tuple(Input(f"state{i}", (layers, 1, 32), dynamic=()) for i in range(count))
    return Network(module, (Input(first.name, first.shape, first.kind, dynamic=(1,)), *extra))


def architectures() -> list[Architecture]:
    """Return LSTMs, GRUs and plain RNNs: with tokens or numbers, with and without states."""
    found = []
    for kind in ("LSTM", "GRU", "RNN"):
        for name, options in _OPTIONS.items():
            states = name in {"two-layers", "bidirectional"}
            tokens = name in {"plain", "bidirectional"}
            build = partial(_build, kind, options, tokens=tokens, states=states)
            found.append(Architecture(f"rnn/{kind.lower()}-{name}", build))
    build = partial(_build, "LSTM", {"proj_size": 16}, tokens=False, states=False)
    return [*found, Architecture("rnn/lstm-projected", build)]
