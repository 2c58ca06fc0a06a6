"""Perplexity of two decoders on the tokens of their samples: how well each foretells the next."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from bitwright.data.token_inputs import is_cache, is_token_name
from bitwright.support.array_types import Array


class Perplexity(NamedTuple):
    """The perplexity of the float model, `before`, and of the quantized one."""

    before: float
    after: float
    tokens: int
    """How many were foretold."""

    def describe(self) -> str:
        """Return both, and the ratio.

        >>> Perplexity(20.0, 21.0, 512).describe()
        '20.00 -> 21.00 (1.050 of it) over 512 tokens'
        """
        change = f"{self.before:.2f} -> {self.after:.2f} ({self.after / self.before:.3f} of it)"
        return f"{change} over {self.tokens} tokens"


class NextTokens:
    """Gathers how likely both models say that the tokens are which follow in a sample."""

    def __init__(self) -> None:
        self._lost, self._count = [0.0, 0.0], 0

    def add(self, sample: Mapping[str, Array], *outputs: Mapping[str, Array]) -> None:
        """Add a sample, if it is one of a decoder, and what the float and the other model gave."""
        # A cache tells that no token sees those behind it.
        tokens = next((np.asarray(a) for n, a in sample.items() if is_token_name(n)), None)
        name = next((name for name in outputs[0] if "logits" in name), "")
        if tokens is None or tokens.ndim != 2 or not any(map(is_cache, sample)):
            return
        if not any(tokens.strides):  # a stand-in, of which only the shape is known
            return
        scores = [np.asarray(output.get(name, ())) for output in outputs]
        if any(one.shape[:-1] != tokens.shape for one in scores):
            return
        mask = sample.get("attention_mask")
        masked = mask is not None and np.shape(mask) == tokens.shape
        kept = np.asarray(mask)[:, 1:] > 0 if masked else np.ones_like(tokens[:, 1:], bool)
        for index, one in enumerate(scores):
            rows = one[:, :-1][kept].astype(np.float32)
            rows -= rows.max(axis=-1, keepdims=True, initial=-np.inf)
            said = np.take_along_axis(rows, tokens[:, 1:][kept][:, None], axis=-1)
            sums = np.log(np.exp(rows).sum(axis=-1, dtype=np.float64))
            self._lost[index] += float(sums.sum() - said.sum(dtype=np.float64))
        self._count += int(kept.sum())

    def finish(self) -> Perplexity | None:
        """Return the perplexities; None where no token was foretold."""
        if not self._count:
            return None
        before, after = (math.exp(min(lost / self._count, 700)) for lost in self._lost)
        return Perplexity(before, after, self._count)
