"""Which nodes hurt: the error of the outputs with one node quantized, and with all but some."""

from bitwright.assess.sensitivity.fallback import To, put_back
from bitwright.assess.sensitivity.measurement import measure_variants
from bitwright.assess.sensitivity.results import NodeSensitivity, Proposal, Sensitivity

__all__ = ["NodeSensitivity", "Proposal", "Sensitivity", "To", "measure_variants", "put_back"]
