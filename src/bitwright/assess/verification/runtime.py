"""Checks of the model that ONNX Runtime optimizes: refused, run in float, or rounded."""

from __future__ import annotations

from collections.abc import Iterable

from bitwright.assess.optimized import KEEP_FLOAT, find_rounded, find_unfused, optimize_model
from bitwright.assess.quantizers import Quantizers
from bitwright.assess.verification.findings import Finding
from bitwright.errors import ModelError

__all__ = ["check_arm_runtime", "check_x86_runtime"]


def check_arm_runtime(quantizers: Quantizers) -> Iterable[Finding]:
    """Find what the runtime does in float on Arm, and what it rounds."""
    return _check_runtime(quantizers, signed_kernels=True)


def check_x86_runtime(quantizers: Quantizers) -> Iterable[Finding]:
    """Find what the runtime does in float on x86, where int8 activations become uint8 first."""
    return _check_runtime(quantizers, signed_kernels=False)


def _check_runtime(quantizers: Quantizers, *, signed_kernels: bool) -> Iterable[Finding]:
    try:
        optimized = optimize_model(quantizers.model, signed_kernels=signed_kernels)
    except ModelError as error:
        yield Finding("runtime", "", str(error).rstrip("."))
        return
    for found in find_unfused(optimized).values():
        yield Finding(
            "unfused",
            found.node,
            f"this {found.op} runs in float: {found.reason}",
            {"op": found.op},
            level="warning",
        )
    for name in find_rounded(optimized):
        yield Finding(
            "float_weights",
            name,
            "its weights are float, and ONNX Runtime stores them in 8 bits, with one scale for all",
            level="warning",
            remedy=f"let the node read and write float tensors, or {KEEP_FLOAT}",
        )
