"""Transformers on AMD's NPU."""

from bitwright.targets.target import Target

__all__ = ["NPU_TRANSFORMER"]

NPU_TRANSFORMER = Target(
    name="npu-transformer",
    description="Transformers on AMD's NPU: int8 activations and weights, float scales.",
    recipe="npu-transformer",
    modes=("static",),
    formats=("qdq", "extended", "fix-neuron"),
)
