"""Checks for the NPU: power-of-two scales, one a tensor, within what its shifters can do."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import onnx_ir as ir

from bitwright.decide.ops import op_types
from bitwright.decide.ops.quantized_view import QuantizedView
from bitwright.graph.quantizers import Quantizer, Quantizers, name_of, position_of
from bitwright.targets import NPU_CNN
from bitwright.targets.npu_limits import NpuOperation
from bitwright.targets.npu_operations import find_npu_operations, why_not_fixed
from bitwright.verification.findings import Facts, Finding

_EIGHT_BITS = (ir.DataType.INT8, ir.DataType.UINT8)
_BIASED = op_types(lambda op: op.linear and op.bias is not None)


def other_types(view: QuantizedView, quantizer: Quantizer) -> Facts:
    """Find tensors in other types than 8-bit integers; a bias may have more bits."""
    stored = quantizer.stored_type
    if stored is None or stored in _EIGHT_BITS:
        return
    if not (stored.is_integer() and _is_bias(quantizer.node.outputs[0])):
        name = stored.name.lower()
        yield f"it holds {name}, and CNNs on the NPU have int8 and uint8", {"type": name}


def _is_bias(value: ir.Value) -> bool:
    """Whether nothing reads a value but as a bias."""
    uses = list(value.uses())
    return bool(uses) and all(use.node.op_type in _BIASED and use.idx == 2 for use in uses)


def odd_scales(view: QuantizedView, quantizer: Quantizer) -> Facts:
    """Find scales that no shift can apply."""
    scales = [] if quantizer.scale is None else [float(s) for s in quantizer.scale.reshape(-1)]
    odd = [s for s in scales if position_of(s) is not None and not _is_power_of_two(s)]
    if odd:
        yield f"its scale {odd[0]:g} is no power of two", {"scale": odd[0]}


def several_scales(view: QuantizedView, quantizer: Quantizer) -> Facts:
    """Find tensors with more than one scale."""
    if quantizer.scale is not None and (count := quantizer.scale.size) != 1:
        yield f"it has {count} scales, and the NPU takes one for each tensor", {"scales": count}


def check_limits(quantizers: Quantizers) -> Iterable[Finding]:
    """Find the positions that the NPU's shifters cannot bring together."""
    # Other scales have no position; that they are there is a finding of its own.
    positions = quantizers.positions(_is_power_of_two)
    operations = find_npu_operations(quantizers.model.graph.all_nodes(), quantizers)
    for rule in NPU_CNN.limits:
        for node, operation in operations:
            for bound in rule.bounds(operation, positions):
                if not bound.holds(positions):
                    value = bound.value(positions)
                    yield Finding(
                        rule.name,
                        name_of(node),
                        f"{bound.label} is {value} and {bound.allowed}",
                        _named(operation, positions),
                    )


def check_shapes(quantizers: Quantizers) -> Iterable[Finding]:
    """Find inputs of open shapes, and of several images at a time."""
    for value in quantizers.model.graph.inputs:
        reason = None if value.is_initializer() else why_not_fixed(value)
        if reason is not None:
            yield Finding(
                "fixed_shapes",
                value.name or "",
                f"the input {reason}, and the NPU takes fixed shapes and a batch of 1; quantize "
                "with rewrite.fix_shapes",
            )


def _is_power_of_two(scale: float) -> bool:
    return math.frexp(scale)[0] == 0.5


def _named(operation: NpuOperation, positions: Mapping[str, int]) -> dict[str, int]:
    several = len(operation.inputs) > 1
    refs = {f"input {i}" if several else "input": ref for i, ref in enumerate(operation.inputs)}
    refs |= {"weight": operation.weight, "bias": operation.bias, "output": operation.output}
    return {
        name: positions[ref] for name, ref in refs.items() if ref is not None and ref in positions
    }
