"""Any CPU that ONNX Runtime has kernels for."""

from bitwright.targets.target import Target

__all__ = ["CPU"]

CPU = Target(
    name="cpu",
    description="ONNX Runtime on any CPU: uint8 activations, int8 weights.",
    recipe="int8-per-channel",
    # x86 that adds products in 16 bits, x86 that adds them in 32, and Arm.
    cpus=("avx2", "vnni", "arm"),
)
