"""Noise over signal of a quantized model's outputs, in dB: what candidates are chosen by.

Its logarithm for each sample spreads far less than losses do, so that few samples tell which of two
models is closer to float. Of a large output some places stand for all. A detector's boxes count by
1 - IoU and its scores by their difference where float is sure of something: thousands of anchors in
the background would outvote those that become boxes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from bitwright.assess.judge.kinds import Kind, OutputPart
from bitwright.assess.judge.output_parts import Heads, cut_output, find_heads
from bitwright.numerics.broadcasting import some_places
from bitwright.support.array_types import F64, Array

PLACES = 1024
"""How many places of an output are looked at in each sample, all channels of each."""
SURE = 0.25
"""The score above which an anchor counts: detectors are used with thresholds of about that."""
FLOOR, LOST = 1e-6, 100.0
"""Noise over signal where no decision is at stake, and of what has nothing in common."""
MIN_SCORES: Mapping[Kind, float] = {"probabilities": 1e-4, "sigmoid": 1e-2}
"""Scores closer to 0 or 1 are alike: no threshold or rival is there."""


class _Kept(NamedTuple):
    shape: tuple[int, ...]
    parts: tuple[OutputPart, ...]
    where: Any
    """The places that are looked at."""
    values: Array


FloatOutputs = Mapping[str, _Kept]
"""What the float model gives for a sample, where it is looked at."""


class Noise:
    """Compares outputs with those of a float model, whose graph tells what they are made of."""

    def __init__(self, model: ir.Model) -> None:
        self._heads: Mapping[str, Heads] = find_heads(model)
        self._parts: dict[str, tuple[OutputPart, ...]] = {}

    def keep(self, sample: Mapping[str, Array], outputs: Mapping[str, Any]) -> FloatOutputs:
        """Return what of the float outputs for a sample others are compared with."""
        found = {}
        for name, value in outputs.items():
            array = np.asarray(value)
            if array.dtype.kind != "f" or not array.size:
                continue
            if name not in self._parts:
                heads = self._heads.get(name)
                self._parts[name] = cut_output(name, array, sample.values(), heads)
            parts = self._parts[name]
            where = _sure_anchors(array, parts)
            if where is None:
                where = some_places(array.shape, parts[0].axis or 0, PLACES)
            found[name] = _Kept(array.shape, parts, where, np.array(array[where]))
        return found

    def decibels(self, expected: FloatOutputs, outputs: Mapping[str, Any]) -> float:
        """Return noise over signal in dB, the mean of all parts of all outputs."""
        found = [
            error
            for name, kept in expected.items()
            for error in _errors(kept, np.asarray(outputs[name]))
        ]
        return float(np.mean(10 * np.log10(np.clip(found, FLOOR, LOST)))) if found else 0.0


def _errors(kept: _Kept, output: Array) -> list[float]:
    if output.shape != kept.shape:
        return [LOST]
    wanted, given = (one.astype(np.float64) for one in (kept.values, output[kept.where]))
    found = []
    for part in kept.parts:
        one, other = part.take(wanted), part.take(given)
        axis = part.axis or 0
        if part.kind == "sqnr" and len(kept.parts) > 1 and one.shape[axis] == 4:
            error = _boxes_apart(np.moveaxis(one, axis, 0), np.moveaxis(other, axis, 0))
        else:
            if len(kept.parts) == 1 and part.kind in ("probabilities", "sigmoid"):
                one, other = (_logits(scores, part) for scores in (one, other))
            error = float(np.square(other - one).sum() / max(np.square(one).sum(), FLOOR))
        found.append(error if np.isfinite(error) else LOST)
    return found


def _logits(scores: F64, part: OutputPart) -> F64:
    """Return what a Softmax or Sigmoid was computed of: where it is sure, no error shows."""
    lowest = MIN_SCORES[part.kind]
    bounded = np.clip(scores, lowest, 1 - lowest)
    if part.kind == "sigmoid":
        return np.asarray(np.log(bounded / (1 - bounded)))
    logs = np.log(bounded)
    return np.asarray(logs - logs.mean(axis=part.axis, keepdims=True))


def _sure_anchors(array: Array, parts: tuple[OutputPart, ...]) -> Any:
    """Return the anchors of a detector that float is sure of; None where there are none."""
    scores = [part for part in parts if part.kind == "sigmoid" and part.span is not None]
    if len(parts) == len(scores) or not scores or array.ndim != 3:
        return None
    axis = scores[0].axis or 0
    best = np.max([part.take(array).max(axis=axis) for part in scores], axis=0)
    chosen = np.flatnonzero(best.max(axis=0) > SURE)
    if axis == 0 or not chosen.size:
        return None
    return (slice(None), slice(None), chosen) if axis == 1 else (slice(None), chosen)


def _boxes_apart(wanted: F64, given: F64) -> float:
    """Return the mean of 1 - IoU of boxes, given by their corners or by center and size."""
    is_corners = bool(np.all(wanted[2:] >= wanted[:2]))
    ends = [(box[:2], box[2:]) for box in (wanted, given)]
    if not is_corners:
        ends = [(middle - size / 2, middle + size / 2) for middle, size in ends]
    (low, high), (other_low, other_high) = ends
    inner = np.maximum(np.minimum(high, other_high) - np.maximum(low, other_low), 0).prod(axis=0)
    sizes = [np.maximum(end - start, 0).prod(axis=0) for start, end in ends]
    return float(np.mean(1 - inner / np.maximum(sizes[0] + sizes[1] - inner, FLOOR)))
