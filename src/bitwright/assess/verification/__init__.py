"""Static checks on any quantized model: is it sound, and can its target run it as it is meant?"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import onnx_ir as ir

from bitwright.assess.quantizers import Quantizers
from bitwright.assess.verification.arithmetic import check_accumulators, check_saturation
from bitwright.assess.verification.cpus import CPUS, detect_cpu
from bitwright.assess.verification.findings import Finding, Verification
from bitwright.assess.verification.form import (
    check_domains,
    check_form,
    check_node_order,
    check_pairs,
    check_quantized,
)
from bitwright.assess.verification.npu import (
    check_granularity,
    check_limits,
    check_powers_of_two,
    check_types,
)
from bitwright.assess.verification.parameters import (
    check_biases,
    check_scales,
    check_zero_points,
)
from bitwright.assess.verification.runtime import check_arm_runtime, check_x86_runtime
from bitwright.errors import TargetError, did_you_mean
from bitwright.targets.npu_limits import LIMIT_RULES

__all__ = ["CPUS", "VERIFIED_TARGETS", "Finding", "Verification", "detect_cpu", "verify_model"]

VERIFIED_TARGETS = ("cpu", "npu-cnn", "npu-transformer")


@dataclass(frozen=True, slots=True)
class Check:
    """One function, the rules whose breaches it finds, and the targets that have them."""

    rules: tuple[str, ...]
    find: Callable[[Quantizers], Iterable[Finding]]
    targets: tuple[str, ...] = VERIFIED_TARGETS
    cpus: tuple[str, ...] = CPUS
    """The kinds of CPU that it concerns, for the target cpu."""
    of_sound_models: bool = False
    """Left out where an error was found before: it would say the same less clearly."""


_BY_RUNTIME = ("runtime", "unfused", "float_weights")

CHECKS = (
    Check(("quantized",), check_quantized, ("cpu",)),
    Check(("quantized",), check_pairs, ("npu-cnn", "npu-transformer")),
    Check(("domains",), lambda quantizers: check_domains(quantizers.model)),
    Check(("onnx",), lambda quantizers: check_form(quantizers.model)),
    Check(("scale",), check_scales),
    Check(("zero_point",), check_zero_points),
    Check(("bias",), check_biases),
    Check(("accumulator",), check_accumulators, ("cpu",)),
    Check(("saturation",), check_saturation, ("cpu",), cpus=("avx2",)),
    Check(_BY_RUNTIME, check_arm_runtime, ("cpu",), ("arm",), of_sound_models=True),
    Check(_BY_RUNTIME, check_x86_runtime, ("cpu",), ("avx2", "vnni"), of_sound_models=True),
    Check(("eight_bits",), check_types, ("npu-cnn",)),
    Check(("power_of_two",), check_powers_of_two, ("npu-cnn",)),
    Check(("per_tensor",), check_granularity, ("npu-cnn",)),
    Check(tuple(rule.name for rule in LIMIT_RULES), check_limits, ("npu-cnn",)),
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
    if target not in VERIFIED_TARGETS:
        raise TargetError(f"unknown target {target!r}.{did_you_mean(target, VERIFIED_TARGETS)}")
    if cpu is not None and cpu not in CPUS:
        raise TargetError(f"unknown CPU {cpu!r}.{did_you_mean(cpu, CPUS)}")
    if cpu is not None and target != "cpu":
        raise TargetError(f"a kind of CPU is for the target cpu, not for {target}; leave it out.")
    findings = list(check_node_order(model))
    if findings:
        try:
            model.graph.sort()
        except ValueError:  # no order at all: nodes feed each other in a circle
            return Verification(target, ("order",), tuple(findings))
    quantizers = Quantizers(model)
    kind = cpu or detect_cpu()
    checks = [check for check in CHECKS if target in check.targets and kind in check.cpus]
    rules = ["order"]
    for check in checks:
        if not (check.of_sound_models and any(found.level == "error" for found in findings)):
            findings += check.find(quantizers)
            rules += check.rules
    return Verification(target, tuple(rules), tuple(findings))
