"""Static checks of any quantized model: whether it is sound, and whether its target can run it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import onnx_ir as ir

from bitwright.decide.ops.quantized_view import QuantizedView
from bitwright.errors import TargetError, did_you_mean
from bitwright.graph import Quantizer, infer_shapes, name_of
from bitwright.targets import CPU, NPU_CNN, Target, find_target
from bitwright.targets.host import detect_cpu, on_host
from bitwright.targets.target import Consequence
from bitwright.verification.arithmetic import check_accumulators, check_saturation
from bitwright.verification.checks import (
    check_biases,
    check_domains,
    check_form,
    check_limits,
    check_node_order,
    check_pairs,
    check_quantized,
    check_shapes,
    lost_scales,
    odd_scales,
    other_types,
    other_zero_points,
    several_scales,
)
from bitwright.verification.findings import Facts, Finding, Residence, Verification
from bitwright.verification.partitions import find_residence
from bitwright.verification.rules import read_rules
from bitwright.verification.runtime import check_other_cpu, check_runtime

__all__ = ["CPUS", "Finding", "Residence", "Verification", "detect_cpu", "verify_model"]

CPUS = CPU.cpus


@dataclass(frozen=True, slots=True)
class Check:
    """One function, and the hardware that has the rules whose breaches it finds."""

    consequences: Mapping[str, Consequence]
    """Rule -> what becomes of a model that breaks it."""
    model: Callable[[QuantizedView], Iterable[Finding]] | None = None
    """What of a model breaks the rules."""
    tensor: Callable[[QuantizedView, Quantizer], Facts] | None = None
    """What of a quantized tensor breaks the rule, where there is just one."""
    concerns: Callable[[Target], bool] = lambda target: True
    """Whether it is about this target."""
    cpus: tuple[str, ...] = ()
    """The kinds of CPU that it is about, where it is about CPUs only."""
    of_sound_models: bool = False
    """Left out where an error was found before: it would say the same less clearly."""

    def find(self, view: QuantizedView) -> Iterator[Finding]:
        """Return what in a model breaks the rules."""
        if self.model is not None:
            yield from self.model(view)
        if self.tensor is not None:
            [rule] = self.consequences
            for quantizer in view.found.values():
                for message, values in self.tensor(view, quantizer):
                    yield Finding(rule, name_of(quantizer.node), message, values)


def _wants_quantized(target: Target, *, pairs: bool) -> bool:
    """Whether a model for a target is quantized at all, and then in pairs only."""
    return target.modes != () and target.takes_integer_operators != pairs


_X86, _ARM = ("avx2", "vnni"), ("arm",)

CHECKS = (
    Check(
        {"quantized": "float"},
        check_quantized,
        concerns=lambda target: _wants_quantized(target, pairs=False),
    ),
    Check(
        {"quantized": "float"},
        check_pairs,
        concerns=lambda target: _wants_quantized(target, pairs=True),
    ),
    Check({"domains": "refused"}, lambda view: check_domains(view.model)),
    Check({"onnx": "refused"}, lambda view: check_form(view.model)),
    Check({"scale": "wrong"}, tensor=lost_scales),
    Check({"zero_point": "wrong"}, tensor=other_zero_points),
    Check({"bias": "wrong"}, check_biases),
    Check({"accumulator": "wrong"}, check_accumulators, cpus=CPUS),
    Check({"saturation": "wrong"}, check_saturation, cpus=("avx2",)),
    *(
        Check(
            {"runtime": "refused", "unfused": "float", "float_weights": "wrong"},
            partial(check_runtime, signed_kernels=cpus == _ARM),
            cpus=cpus,
            of_sound_models=True,
        )
        for cpus in (_ARM, _X86)
    ),
    # The target cpu is this machine; its file may go to another one.
    *(
        Check(
            {"other_cpu": "refused"},
            partial(check_other_cpu, signed_kernels=cpus == _X86),
            concerns=lambda target: target.host,
            cpus=cpus,
            of_sound_models=True,
        )
        for cpus in (_ARM, _X86)
    ),
    Check({"eight_bits": "leaves"}, tensor=other_types, concerns=lambda t: t.types is not None),
    Check({"power_of_two": "leaves"}, tensor=odd_scales, concerns=lambda t: t.power_of_two),
    Check({"per_tensor": "leaves"}, tensor=several_scales, concerns=lambda t: t.per_tensor),
    Check({"fixed_shapes": "refused"}, check_shapes, concerns=lambda t: t.fixed_shapes),
    Check(
        {rule.name: "leaves" for rule in NPU_CNN.limits},
        check_limits,
        concerns=lambda target: target.needs_limits,
    ),
)
CONSEQUENCES: Mapping[str, Consequence] = {
    "order": "refused",
    **{rule: found for check in CHECKS for rule, found in check.consequences.items()},
}
"""Rule that does not come from a file -> what becomes of a model that breaks it."""

# Rules that a model breaks whose shapes cannot be inferred.
_MALFORMED = frozenset({"onnx", "runtime", "scale", "zero_point"})


def verify_model(model: ir.Model, target: str = "cpu", cpu: str | None = None) -> Verification:
    """Return all that is wrong with a model, which is sorted in place if it was not.

    `cpu` is the kind of CPU that it will run on, for the target cpu; None means this machine's.
    """
    hardware = find_target(target)
    if cpu is not None and cpu not in CPUS:
        raise TargetError(f"unknown CPU {cpu!r}.{did_you_mean(cpu, CPUS)}")
    if cpu is not None and not hardware.host:
        raise TargetError(f"a kind of CPU is for the target cpu, not for {target}; leave it out.")
    hardware = on_host(hardware, cpu)
    asked = read_rules(hardware)
    findings = list(check_node_order(model))
    if findings:
        try:
            model.graph.sort()
        except ValueError:  # no order at all: nodes feed each other in a circle
            return Verification(target, ("order",), _with_consequences(findings))
    view = QuantizedView(model)
    rules = ["order"]
    for check in CHECKS:
        of_this_cpu = not check.cpus or {*check.cpus} & {*hardware.cpus}
        if not (of_this_cpu and check.concerns(hardware)):
            continue
        if not (check.of_sound_models and any(found.level == "error" for found in findings)):
            findings += check.find(view)
            rules += check.consequences
    if not any(finding.rule in _MALFORMED for finding in findings):
        infer_shapes(model)
    for name, rule in asked.items():
        findings += rule.find(name, view)
        rules.append(name)
    found = _with_consequences(findings)
    return Verification(target, tuple(dict.fromkeys(rules)), found, find_residence(view, found))


def _with_consequences(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings, each once, with what becomes of the model."""
    completed = [
        f if f.consequence else replace(f, consequence=CONSEQUENCES[f.rule]) for f in findings
    ]
    return tuple(f for index, f in enumerate(completed) if f not in completed[:index])
