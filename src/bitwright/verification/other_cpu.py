"""Models with int8 quantizers as ONNX Runtime opens them on the other kind of CPU.

ONNX Runtime has kernels for int8 activations on Arm. On x86 it turns them into uint8 when it loads
a model, and refuses some that Arm takes (onnxruntime issue 25526). A session entry sets the rule,
so that both can be tried on any machine. Without int8 quantizers both make the same graph.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from bitwright.errors import ModelError
from bitwright.graph.constants import input_at
from bitwright.plan import QuantPlan
from bitwright.run.optimized import optimize_model
from bitwright.targets.host import detect_cpu

__all__ = ["depends_on_cpu", "note_other_cpu", "why_refused"]

_NAMES = {True: "Arm", False: "x86"}


def depends_on_cpu(model: ir.Model) -> bool:
    """Return whether the runtime treats a model on x86 in another way than on Arm.

    >>> graph = ir.Graph([], [], nodes=[], opset_imports={"": 21})
    >>> depends_on_cpu(ir.Model(graph, ir_version=10))
    False
    """
    return any(
        node.op_type == "QuantizeLinear"
        and (zero := input_at(node, 2)) is not None
        and zero.dtype == ir.DataType.INT8
        for node in model.graph.all_nodes()
    )


def why_refused(
    model: ir.Model, *, signed_kernels: bool, providers: Sequence[str] | None = None
) -> str | None:
    """Return why the runtime does not open a model under this rule, or None: it does."""
    try:
        optimize_model(model, providers=providers, signed_kernels=signed_kernels)
    except ModelError as error:
        reason = str(error).rstrip(".")
        return f"ONNX Runtime does not open it on {_NAMES[signed_kernels]}: {reason}"
    return None


def note_other_cpu(
    plan: QuantPlan, quantized: ir.Model, providers: Sequence[str] | None = None
) -> QuantPlan:
    """Return the plan with a note where the other kind of CPU does not open the model."""
    if not depends_on_cpu(quantized):
        return plan
    other = detect_cpu() != "arm"
    reason = why_refused(quantized, signed_kernels=other, providers=providers)
    if reason is None:
        return plan
    return plan.with_notes([f"{reason}; the target cpu-any writes what both open"])
