"""Comparison of a float and a quantized model, tensor by tensor and node by node."""

from bitwright.assess.comparison.nodes import match_weights, name_unit
from bitwright.assess.comparison.results import Comparison, NodeComparison, TensorComparison
from bitwright.assess.comparison.side_by_side import compare_models, open_units

__all__ = [
    "Comparison",
    "NodeComparison",
    "TensorComparison",
    "compare_models",
    "match_weights",
    "name_unit",
    "open_units",
]
