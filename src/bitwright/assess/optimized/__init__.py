"""Models as ONNX Runtime optimizes them: nodes that are not fused, float weights it rounds."""

from bitwright.assess.optimized.graphs import optimize_model
from bitwright.assess.optimized.reasons import find_unfused
from bitwright.assess.optimized.rounded import (
    KEEP_FLOAT,
    describe_rounded,
    find_rounded,
    note_rounded,
)

__all__ = [
    "KEEP_FLOAT",
    "describe_rounded",
    "find_rounded",
    "find_unfused",
    "note_rounded",
    "optimize_model",
]
