"""How good the result is: errors against float, sizes, what was quantized and what was not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bitwright._lazy import loader

if TYPE_CHECKING:
    from bitwright.assess.bench import (
        Benchmark,
        ModelBenchmark,
        bench_models,
        measure_latency,
    )
    from bitwright.assess.comparison import (
        Comparison,
        NodeComparison,
        TensorComparison,
        compare_models,
        match_weights,
        name_unit,
        open_units,
    )
    from bitwright.assess.inspection import Inspection, inspect_model
    from bitwright.assess.noise import decibels, signal_and_noise
    from bitwright.assess.outputs import OutputComparison, compare_outputs
    from bitwright.assess.sensitivity import (
        NodeSensitivity,
        Proposal,
        Sensitivity,
        measure_variants,
        put_back,
    )
    from bitwright.assess.verification import VERIFIED_TARGETS, Finding, Verification, verify_model

# Loaded when first used: a plain job compares outputs and needs nothing else from here.
_HOMES = {
    "bitwright.assess.bench": (
        "Benchmark",
        "ModelBenchmark",
        "bench_models",
        "measure_latency",
    ),
    "bitwright.assess.comparison": (
        "Comparison",
        "NodeComparison",
        "TensorComparison",
        "compare_models",
        "match_weights",
        "name_unit",
        "open_units",
    ),
    "bitwright.assess.inspection": (
        "Inspection",
        "inspect_model",
    ),
    "bitwright.assess.noise": (
        "decibels",
        "signal_and_noise",
    ),
    "bitwright.assess.outputs": (
        "OutputComparison",
        "compare_outputs",
    ),
    "bitwright.assess.sensitivity": (
        "NodeSensitivity",
        "Proposal",
        "Sensitivity",
        "measure_variants",
        "put_back",
    ),
    "bitwright.assess.verification": (
        "VERIFIED_TARGETS",
        "Finding",
        "Verification",
        "verify_model",
    ),
}

__all__ = [
    "VERIFIED_TARGETS",
    "Benchmark",
    "Comparison",
    "Finding",
    "Inspection",
    "ModelBenchmark",
    "NodeComparison",
    "NodeSensitivity",
    "OutputComparison",
    "Proposal",
    "Sensitivity",
    "TensorComparison",
    "Verification",
    "bench_models",
    "compare_models",
    "compare_outputs",
    "decibels",
    "inspect_model",
    "match_weights",
    "measure_latency",
    "measure_variants",
    "name_unit",
    "open_units",
    "put_back",
    "signal_and_noise",
    "verify_model",
]

__getattr__ = loader(__name__, _HOMES)
