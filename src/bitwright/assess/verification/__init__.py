"""Static checks on any quantized model: is it sound, and can its target run it as it is meant?"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import onnx_ir as ir

from bitwright.assess.quantizers import Quantizers
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
)
from bitwright.assess.verification.parameters import (
    check_biases,
    check_scales,
    check_zero_points,
)
from bitwright.errors import TargetError, did_you_mean
from bitwright.numerics.npu_limits import LIMIT_RULES

__all__ = ["VERIFIED_TARGETS", "Finding", "Verification", "verify_model"]

VERIFIED_TARGETS = ("cpu", "npu-cnn", "npu-transformer")


@dataclass(frozen=True, slots=True)
class Check:
    """One function, the rules whose breaches it finds, and the targets that have them."""

    rules: tuple[str, ...]
    find: Callable[[Quantizers], Iterable[Finding]]
    targets: tuple[str, ...] = VERIFIED_TARGETS


CHECKS = (
    Check(("quantized",), check_quantized, ("cpu",)),
    Check(("quantized",), check_pairs, ("npu-cnn", "npu-transformer")),
    Check(("domains",), lambda quantizers: check_domains(quantizers.model)),
    Check(("onnx",), lambda quantizers: check_form(quantizers.model)),
    Check(("scale",), check_scales),
    Check(("zero_point",), check_zero_points),
    Check(("bias",), check_biases),
    Check(("power_of_two",), check_powers_of_two, ("npu-cnn",)),
    Check(("per_tensor",), check_granularity, ("npu-cnn",)),
    Check(tuple(rule.name for rule in LIMIT_RULES), check_limits, ("npu-cnn",)),
)


def verify_model(model: ir.Model, target: str = "cpu") -> Verification:
    """Return all that is wrong with a model, which is sorted in place if it was not.

    >>> x, y = ir.val("x", ir.DataType.FLOAT, [3]), ir.val("y", ir.DataType.FLOAT, [3])
    >>> relu = ir.node("Relu", [x], outputs=[y])
    >>> graph = ir.Graph([x], relu.outputs, nodes=[relu], name="g", opset_imports={"": 21})
    >>> [finding.rule for finding in verify_model(ir.Model(graph, ir_version=10)).findings]
    ['quantized']
    """
    if target not in VERIFIED_TARGETS:
        raise TargetError(f"unknown target {target!r}.{did_you_mean(target, VERIFIED_TARGETS)}")
    findings = list(check_node_order(model))
    if findings:
        try:
            model.graph.sort()
        except ValueError:  # no order at all: nodes feed each other in a circle
            return Verification(target, ("order",), tuple(findings))
    quantizers = Quantizers(model)
    checks = [check for check in CHECKS if target in check.targets]
    findings += [finding for check in checks for finding in check.find(quantizers)]
    rules = ("order", *(rule for check in checks for rule in check.rules))
    return Verification(target, rules, tuple(findings))
