"""What ONNX Runtime makes of a model before it runs it, and which pairs it could not fuse."""

from __future__ import annotations

from bitwright.assess.optimized.graphs import OptimizedModel, name_nodes, optimize_model
from bitwright.assess.optimized.reasons import explain_float
from bitwright.assess.optimized.unfused import Unfused, find_unfused, works_on_integers

__all__ = [
    "OptimizedModel",
    "Unfused",
    "explain_float",
    "find_unfused",
    "name_nodes",
    "optimize_model",
    "works_on_integers",
]
