"""The verbs. Each loads what it needs when it is first used: a job waits for nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bitwright._lazy import loader

if TYPE_CHECKING:
    from bitwright.api.assessment import bench, compare, find_sensitivity, inspect, verify
    from bitwright.api.quantization import apply_plan, import_qat, make_plan, preprocess, quantize

_HOMES = {
    "bitwright.api.assessment": ("bench", "compare", "find_sensitivity", "inspect", "verify"),
    "bitwright.api.quantization": (
        "apply_plan",
        "import_qat",
        "make_plan",
        "preprocess",
        "quantize",
    ),
}

__all__ = [
    "apply_plan",
    "bench",
    "compare",
    "find_sensitivity",
    "import_qat",
    "inspect",
    "make_plan",
    "preprocess",
    "quantize",
    "verify",
]

__getattr__ = loader(__name__, _HOMES)
