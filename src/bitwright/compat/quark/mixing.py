"""The search of Quark's AutoMixprecision: which layers get other types, by a threshold.

Each candidate is scored with the other types for it alone; then one after the other gets them, the
one of the least score first. For "speed" that goes on as long as the score stays within the
threshold, for "quality" until it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bitwright.compat.options import find_name
from bitwright.errors import RecipeError, did_you_mean
from bitwright.support.array_types import Array

Outputs = Sequence[Sequence[Array]]
"""Outputs of each sample."""
Layers = dict[Any, list[str]]
"""Layers by the configuration that they get."""
Score = Callable[[Layers], float]
"""Distance from float of the model with these layers: lower is better."""

_TINY = 1e-10
_OBJECTS = ("speed", "quality")


def choose_layers(
    score: Score,
    candidates: Mapping[str, Sequence[Any]],
    *,
    threshold: float | None,
    optimize: str = "speed",
) -> Layers:
    """Return the layers that get other types; `candidates` has the configurations for each name."""
    if optimize not in _OBJECTS:
        raise RecipeError(
            f"metric_optimize_object is 'speed' or 'quality', not {optimize!r}."
            f"{did_you_mean(str(optimize), _OBJECTS)}"
        )
    if threshold is None:
        return {}
    if threshold:
        before = score({})
        if before > threshold if optimize == "speed" else before <= threshold:
            return {}
    ranked = []
    for name, configurations in candidates.items():
        scores = [score({one: [name]}) for one in configurations]
        best = int(np.argmin(scores))
        ranked.append((scores[best], name, configurations[best]))
    chosen: Layers = {}
    for _, name, configuration in sorted(ranked, key=lambda one: one[0]):
        tried = {**chosen, configuration: [*chosen.get(configuration, ()), name]}
        found = score(tried) if threshold else 0.0
        if threshold and optimize == "speed" and found > threshold:
            break
        chosen = tried
        if threshold and optimize == "quality" and found <= threshold:
            break
    return chosen


def distance_of(settings: Mapping[str, Any]) -> Callable[[Outputs, Outputs], float]:
    """Return the distance that a configuration asks for, of all samples."""
    own, evaluate = settings.get("metric_distance_fn"), settings.get("metric_evaluate_fn")
    if own is not None and evaluate is not None:
        raise RecipeError("metric_distance_fn and metric_evaluate_fn are two metrics; give one.")
    if evaluate is not None:
        return lambda expected, found: float(evaluate(expected)) - float(evaluate(found))
    if own is not None:
        return lambda expected, found: float(own(expected, found))
    distance = find_name(settings.get("metric_default", "l2"), DISTANCES, "metric_default")
    return lambda expected, found: _mean(distance, expected, found)


def _mean(distance: Callable[[Array, Array], float], expected: Outputs, found: Outputs) -> float:
    """Return the mean over all samples and outputs."""
    pairs = [
        (np.asarray(one, np.float64), np.asarray(other, np.float64))
        for each, others in zip(expected, found, strict=True)
        for one, other in zip(each, others, strict=True)
    ]
    return float(np.mean([distance(*pair) for pair in pairs])) if pairs else 0.0


def _divergence(one: Array, other: Array) -> float:
    """Return the Kullback-Leibler divergence of outputs taken as distributions."""
    shares = []
    for array in (one.ravel(), other.ravel()):
        positive = array - min(float(array.min()), 0.0)
        total = float(positive.sum())
        shares.append(positive / total if total > 0 else np.full(array.shape, 1 / array.size))
    p, r = shares
    return float(np.sum(p * np.log((p + _TINY) / (r + _TINY))))


def _cosine(one: Array, other: Array) -> float:
    lengths = np.linalg.norm(one) * np.linalg.norm(other)
    return 0.0 if lengths < _TINY**2 else 1.0 - float(np.vdot(one, other) / lengths)


def _less_sqnr(one: Array, other: Array) -> float:
    signal, noise = np.mean(one**2), np.mean((one - other) ** 2)
    return -10.0 * float(np.log10(max(signal, _TINY) / max(noise, _TINY)))


def _less_psnr(one: Array, other: Array) -> float:
    noise, peak = float(np.mean((one - other) ** 2)), float(np.max(np.abs(one)))
    return -20.0 * float(np.log10(peak or _TINY)) + 10.0 * float(np.log10(noise or _TINY))


DISTANCES: dict[str, Callable[[Array, Array], float]] = {
    "l2": lambda one, other: float(np.linalg.norm(one - other)),
    "kl": _divergence,
    "cosine": _cosine,
    "sqnr": _less_sqnr,
    "psnr": _less_psnr,
}
"""Lower is better: of figures in dB it is the negative."""
