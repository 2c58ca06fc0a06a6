"""Models as ONNX Runtime optimizes them: nodes that are not fused, float weights it rounds."""

from __future__ import annotations

from bitwright.assess.optimized.graphs import OptimizedModel, name_nodes, optimize_model
from bitwright.assess.optimized.reasons import explain_float
from bitwright.assess.optimized.rounded import (
    KEEP_FLOAT,
    describe_rounded,
    find_rounded,
    note_rounded,
)
from bitwright.assess.optimized.unfused import Unfused, find_unfused, works_on_integers

__all__ = [
    "KEEP_FLOAT",
    "OptimizedModel",
    "Unfused",
    "describe_rounded",
    "explain_float",
    "find_rounded",
    "find_unfused",
    "name_nodes",
    "note_rounded",
    "optimize_model",
    "works_on_integers",
]
