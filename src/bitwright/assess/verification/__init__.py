"""Static checks of any quantized model: whether it is sound, and whether its target can run it."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import onnx_ir as ir

from bitwright.assess.quantizers import Quantizers
from bitwright.assess.verification.arithmetic import check_accumulators, check_saturation
from bitwright.assess.verification.findings import Finding, Verification
from bitwright.assess.verification.form import (
    check_domains,
    check_form,
    check_node_order,
    check_pairs,
    check_quantized,
    check_runtime,
)
from bitwright.assess.verification.npu import (
    check_granularity,
    check_limits,
    check_powers_of_two,
    check_shapes,
    check_types,
)
from bitwright.assess.verification.parameters import (
    check_biases,
    check_scales,
    check_zero_points,
)
from bitwright.errors import TargetError, did_you_mean
from bitwright.targets import CPU, NPU_CNN, Target, find_target

__all__ = ["CPUS", "Finding", "Verification", "detect_cpu", "verify_model"]

CPUS = CPU.cpus

_ARM = frozenset({"aarch64", "arm64", "armv7l", "armv8l"})
_X86 = frozenset({"amd64", "i386", "i686", "x86", "x86_64"})
_ADDS_IN_32_BITS = frozenset({"avx512_vnni", "avx_vnni", "avx_vnni_int8"})


@dataclass(frozen=True, slots=True)
class Check:
    """One function, the rules whose breaches it finds, and the hardware that has them."""

    rules: tuple[str, ...]
    find: Callable[[Quantizers], Iterable[Finding]]
    concerns: Callable[[Target], bool] = lambda target: True
    """Whether it is about this target."""
    cpus: tuple[str, ...] = ()
    """The kinds of CPU that it is about, where it is about CPUs only."""
    of_sound_models: bool = False
    """Left out where an error was found before: it would say the same less clearly."""


_BY_RUNTIME = ("runtime", "unfused", "float_weights")

CHECKS = (
    Check(("quantized",), check_quantized, lambda target: target.takes_integer_operators),
    Check(("quantized",), check_pairs, lambda target: not target.takes_integer_operators),
    Check(("domains",), lambda quantizers: check_domains(quantizers.model)),
    Check(("onnx",), lambda quantizers: check_form(quantizers.model)),
    Check(("scale",), check_scales),
    Check(("zero_point",), check_zero_points),
    Check(("bias",), check_biases),
    Check(("accumulator",), check_accumulators, cpus=CPUS),
    Check(("saturation",), check_saturation, cpus=("avx2",)),
    Check(
        _BY_RUNTIME,
        partial(check_runtime, signed_kernels=True),
        cpus=("arm",),
        of_sound_models=True,
    ),
    Check(
        _BY_RUNTIME,
        partial(check_runtime, signed_kernels=False),
        cpus=("avx2", "vnni"),
        of_sound_models=True,
    ),
    Check(("eight_bits",), check_types, lambda target: target.types is not None),
    Check(("power_of_two",), check_powers_of_two, lambda target: target.power_of_two),
    Check(("per_tensor",), check_granularity, lambda target: target.per_tensor),
    Check(("fixed_shapes",), check_shapes, lambda target: target.fixed_shapes),
    Check(
        tuple(rule.name for rule in NPU_CNN.limits),
        check_limits,
        lambda target: target.needs_limits,
    ),
)


def verify_model(model: ir.Model, target: str = "cpu", cpu: str | None = None) -> Verification:
    """Return all that is wrong with a model, which is sorted in place if it was not.

    `cpu` is the kind of CPU that it will run on, for the target cpu; None means this machine's.

    >>> x, y = ir.val("x", ir.DataType.FLOAT, [3]), ir.val("y", ir.DataType.FLOAT, [3])
    >>> relu = ir.node("Relu", [x], outputs=[y])
    >>> graph = ir.Graph([x], relu.outputs, nodes=[relu], name="g", opset_imports={"": 21})
    >>> [finding.rule for finding in verify_model(ir.Model(graph, ir_version=10)).findings]
    ['quantized']
    """
    hardware = find_target(target)
    if cpu is not None and cpu not in CPUS:
        raise TargetError(f"unknown CPU {cpu!r}.{did_you_mean(cpu, CPUS)}")
    if cpu is not None and not hardware.cpus:
        raise TargetError(f"a kind of CPU is for the target cpu, not for {target}; leave it out.")
    findings = list(check_node_order(model))
    if findings:
        try:
            model.graph.sort()
        except ValueError:  # no order at all: nodes feed each other in a circle
            return Verification(target, ("order",), tuple(findings))
    quantizers = Quantizers(model)
    kind = cpu or detect_cpu()
    checks = [
        check
        for check in CHECKS
        if check.concerns(hardware) and (not check.cpus or (hardware.cpus and kind in check.cpus))
    ]
    rules = ["order"]
    for check in checks:
        if not (check.of_sound_models and any(found.level == "error" for found in findings)):
            findings += check.find(quantizers)
            rules += check.rules
    return Verification(target, tuple(rules), tuple(findings))


def detect_cpu(machine: str | None = None, cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the kind of this machine's CPU; "avx2", the most careful, where x86 does not tell.

    >>> detect_cpu("arm64"), detect_cpu("AMD64", Path("no-such-file"))
    ('arm', 'avx2')
    """
    machine = (machine or platform.machine()).lower()
    if machine in _ARM:
        return "arm"
    if machine not in _X86:
        return "vnni"  # no other CPU has the instruction that saturates
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "avx2"
    flags = next((line.split() for line in lines if line.startswith("flags")), [])
    return "vnni" if _ADDS_IN_32_BITS.intersection(flags) else "avx2"
