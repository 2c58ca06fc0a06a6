"""Area under the curve of true over false positives: numpy alone."""

from __future__ import annotations

import numpy as np


def area_under_roc(scores: np.ndarray, labels: np.ndarray) -> float:
    """Return how often what is to be found scores higher than what is not; of ties, half count."""
    scores, labels = scores.reshape(-1), labels.reshape(-1)
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
    positive = int(labels.sum())
    above = ranks[labels].sum() - positive * (positive + 1) / 2
    return float(above / (positive * (labels.size - positive)))
