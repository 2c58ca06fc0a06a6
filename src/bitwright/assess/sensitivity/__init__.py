"""Sensitivity of the outputs to each node: with only it quantized, and with all but it."""

from bitwright.assess.sensitivity.fallback import Fallback, fall_back
from bitwright.assess.sensitivity.measurement import measure_variants
from bitwright.assess.sensitivity.results import NodeSensitivity, Proposal, Sensitivity

__all__ = [
    "Fallback",
    "NodeSensitivity",
    "Proposal",
    "Sensitivity",
    "fall_back",
    "measure_variants",
]
