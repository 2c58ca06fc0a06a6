"""Kinds of outputs (class scores, embeddings, numbers), which decide how errors are measured."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

Kind = Literal["logits", "probabilities", "sigmoid", "embedding", "sqnr"]
"""How an output is judged: class scores (logits before a softmax, probabilities that sum to one, or
independent scores between 0 and 1) by KL divergence, embeddings by cosine, all else by SQNR."""


@dataclass(frozen=True, slots=True)
class OutputPart:
    """A part of an output that is judged by one measure; without a span, all of it."""

    kind: Kind
    axis: int | None
    """The axis that it is judged along."""
    reason: str
    span: tuple[int, int] | None = None
    """Where it lies along the axis."""
    top1: bool = False
    """Whether classes compete, so that the best one can agree."""

    def take(self, values: Array) -> Array:
        """Return the part of an output."""
        if self.span is None or self.axis is None:
            return values
        return values[(slice(None),) * self.axis + (slice(*self.span),)]


_SCORES = re.compile(r"logit|score|prob|softmax|class|\bcls", re.IGNORECASE)
_VECTORS = re.compile(r"embed|hidden|state|feature|pool", re.IGNORECASE)
_VECTOR_MAKERS = frozenset(
    {"LayerNormalization", "SkipLayerNormalization", "LpNormalization", "ReduceMean", "Div"}
)
"""What ends an encoder: a norm, or the mean over tokens (also as a sum over a count)."""
_NO_SCORES = re.compile(
    rf"box|{_VECTORS.pattern}|present|past|cache|anchor|offset|depth|flow|landmark", re.IGNORECASE
)


def class_axis(name: str, shape: Sequence[int], inputs: Iterable[Array]) -> int | None:
    """Return the axis of an output along which classes compete, or None where none do.

    An argmax over boxes, anchors, pixels, time or features says nothing, and quantization changes
    it at random. So it must be plain that the axis holds classes:

    * a name that tells of something else (boxes, hidden states, a cache, ...): none;
    * [batch, classes]: the second, as in every classifier;
    * [batch, time, classes]: the last, where the name tells of scores, or where tokens, integers of
      [batch, time], come in: the model answers for each. Else it may as well be boxes by anchors;
    * [batch, classes, height, width]: the second, where the name tells of scores, or where an image
      of this height and width comes in and there are more classes than a picture has channels.
      Else it may be another picture, or features;
    * anything else: none.
    """
    if _NO_SCORES.search(name):
        return None
    axis, says_so = {2: 1, 3: 2, 4: 1}.get(len(shape)), names_scores(name)
    if axis is None or shape[axis] < 2:
        return None
    if len(shape) == 3 and not says_so:
        tokens = (array for array in inputs if array.dtype.kind in "iu")
        return axis if any(array.shape == tuple(shape[:2]) for array in tokens) else None
    if len(shape) == 4 and not says_so:
        sizes = {tuple(array.shape[2:]) for array in inputs if array.ndim == 4}
        return axis if tuple(shape[2:]) in sizes and shape[1] > 4 else None
    return axis


def names_scores(output: str) -> bool:
    """Whether the name of an output tells of class scores."""
    return _SCORES.search(output) is not None


def channel_axis(shape: Sequence[int]) -> int | None:
    """Return the axis that different things lie along: the smallest but for the batch."""
    sizes = [(size, axis) for axis, size in enumerate(shape) if axis and size > 1]
    return min(sizes)[1] if sizes else None


def choose_kind(
    name: str, first: Array, inputs: Iterable[Array] = (), *, made_by: str | None = None
) -> OutputPart:
    """Return how an output is judged, by its name, its float values for a sample, and its maker.

    `made_by` is the operator that makes it, where the graph is known.
    """
    axis = class_axis(name, first.shape, inputs)
    lengths = np.linalg.norm(first.astype(np.float64), axis=-1) if first.ndim == 2 else np.zeros(1)
    # One-hot answers have this length too, and are scores.
    are_unit = np.allclose(lengths, 1, atol=1e-3) and bool(np.any(first < 0))
    if first.ndim == 2 and first.shape[1] > 2 and are_unit:
        return OutputPart("embedding", 1, "vectors of length one")
    if made_by in _VECTOR_MAKERS and not names_scores(name) and first.ndim in (2, 3):
        return OutputPart("embedding", first.ndim - 1, f"vectors that a {made_by} makes")
    if axis is not None:
        classes = f"class scores along axis {axis}"
        sums = first.astype(np.float64).sum(axis=axis)
        if first.size and np.all(first >= 0) and np.allclose(sums, 1, atol=1e-3):
            return OutputPart("probabilities", axis, f"{classes} that sum to one", top1=True)
        if made_by == "Sigmoid" or (first.size and np.all((first >= 0) & (first <= 1))):
            return OutputPart("sigmoid", axis, f"{classes}, each between 0 and 1", top1=True)
        return OutputPart("logits", axis, classes, top1=True)
    if _VECTORS.search(name) and first.ndim in (2, 3) and first.shape[-1] > 1:
        return OutputPart("embedding", first.ndim - 1, "vectors, as its name tells")
    along = channel_axis(first.shape)
    if made_by == "Sigmoid" and not _NO_SCORES.search(name):
        return OutputPart("sigmoid", along, "scores that a Sigmoid makes")
    return OutputPart("sqnr", along, "no class scores and no embedding")
