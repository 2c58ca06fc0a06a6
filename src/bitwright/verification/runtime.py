"""What ONNX Runtime makes of a model when it opens it: nodes in float, rounded weights, refusals.

One of its passes, WeightBiasQuantization, takes a node between quantized activations for one whose
weights were forgotten. It rounds the float32 weights of Conv, ConvTranspose and Gemm, also of a
MatMul with an Add that it makes a Gemm of, where
* the node reads a DequantizeLinear with one scale, and
* all that reads its result, or the Relu or Clip behind it, is QuantizeLinear, and
* its bias is none, or a constant with one axis.
All weights of a tensor get one scale and a zero point. Before, it moves quantizers through nodes
that only move values. So what is found here is looked up in the graph that the runtime made.

It has kernels for int8 activations on Arm. On x86 it turns them into uint8 when it loads a model,
and refuses some that Arm takes (onnxruntime issue 25526). A session entry sets the rule, so that
both can be tried on any machine. Without int8 quantizers both make the same graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec
import onnx_ir as ir

from bitwright.decide.ops import LINEAR_OPS
from bitwright.decide.ops.unfused import find_unfused
from bitwright.errors import ModelError
from bitwright.graph import Quantizers, input_at, is_constant, reach
from bitwright.plan import QuantPlan
from bitwright.run.optimized import OptimizedModel, optimize_model
from bitwright.targets.host import detect_cpu
from bitwright.verification.findings import Finding

_BYTES = frozenset({ir.DataType.INT8, ir.DataType.UINT8})
_MAX_NAMES = 3

KEEP_FLOAT = (
    "open sessions with the entry optimization.disable_specified_optimizers=WeightBiasQuantization"
)
"""Session option that keeps the runtime from quantizing float weights."""
_BOTH = "bitwright retarget --to cpu-any writes the same numbers for both"
_NAMES = {True: "Arm", False: "x86"}


def check_runtime(quantizers: Quantizers, *, signed_kernels: bool) -> Iterable[Finding]:
    """Find what the runtime does in float, and what it rounds.

    Arm has `signed_kernels`; on x86 int8 activations become uint8 first.
    """
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


def find_rounded(optimized: OptimizedModel) -> list[str]:
    """Return the nodes with float weights in the model, and 8-bit ones in the optimized graph."""
    found: dict[str, None] = {}
    for node, origin in optimized.origins().items():
        if _has_float_weight(origin) and any(map(_is_stored_in_bytes, node.inputs)):
            found[origin.name or ""] = None
    return list(found)


def note_rounded(
    plan: QuantPlan, quantized: ir.Model, providers: Sequence[str] | None = None
) -> QuantPlan:
    """Return the plan of a model with a note on the float weights that the runtime rounds."""
    nodes: tuple[str, ...] = ()
    if any(  # whether to look at all: quantizers stand before and behind a node with float weights
        _has_float_weight(node)
        and _meets("DequantizeLinear", node, _before)
        and _meets("QuantizeLinear", node, _behind)
        for node in quantized.graph.all_nodes()
    ):
        nodes = tuple(find_rounded(optimize_model(quantized, level="basic", providers=providers)))
    # The plan may have been changed since it was written before.
    stale = describe_rounded(plan.rounded_by_runtime)
    notes = [note for note in plan.notes if note != stale]
    if nodes:
        notes.append(describe_rounded(nodes))
    return msgspec.structs.replace(plan, notes=notes, rounded_by_runtime=nodes)


def describe_rounded(nodes: Sequence[str]) -> str:
    """Return what the runtime does to the weights of these nodes, and how to keep it from it."""
    shown = ", ".join(nodes[:_MAX_NAMES])
    if len(nodes) > _MAX_NAMES:
        shown += f" and {len(nodes) - _MAX_NAMES} more"
    return (
        f"ONNX Runtime stores the float weights of {shown} in 8 bits: it takes nodes between "
        "quantized tensors for quantized ones; to keep them float, exclude them by name, and the "
        f"pooling or reshaping right before them as well, or {KEEP_FLOAT}"
    )


def _is_stored_in_bytes(value: ir.Value | None) -> bool:
    """Whether a node reads a weight of 8 bits, or what dequantizes one."""
    maker = None if value is None else value.producer()
    if maker is not None and maker.op_type == "DequantizeLinear":
        value = maker.inputs[0]
    return (
        value is not None
        and value.is_initializer()
        and value.dtype in _BYTES
        and value.shape is not None
        and len(value.shape) > 1
    )


def _has_float_weight(node: ir.Node) -> bool:
    return node.op_type in LINEAR_OPS and len(node.inputs) > 1 and _is_plain(node.inputs[1])


def _is_plain(value: ir.Value | None) -> bool:
    """Whether a value is a constant, or computed from nothing else, and not dequantized."""
    waiting, seen = [value], set[ir.Value]()
    while waiting:
        value = waiting.pop()
        if value is None:
            return False
        if value in seen or is_constant(value):
            continue
        seen.add(value)
        maker = value.producer()
        if maker is None or maker.op_type.endswith("DequantizeLinear"):
            return False
        waiting += maker.inputs
    return True


def _meets(op_type: str, start: ir.Node, step: Callable[[ir.Node], Iterable[ir.Node]]) -> bool:
    """Whether a quantizer comes next, also behind nodes that read nothing else."""

    def onward(node: ir.Node) -> Iterable[ir.Node]:
        passes = node.op_type not in LINEAR_OPS and len(_computed(node)) == 1
        return step(node) if passes and not node.op_type.endswith(op_type) else ()

    return any(node.op_type.endswith(op_type) for node in reach(step(start), onward))


def _before(node: ir.Node) -> Iterator[ir.Node]:
    for value in _computed(node)[:1]:
        if (maker := value.producer()) is not None:
            yield maker


def _behind(node: ir.Node) -> Iterator[ir.Node]:
    for value in node.outputs:
        yield from (use.node for use in value.uses())


def _computed(node: ir.Node) -> list[ir.Value]:
    return [v for v in node.inputs if v is not None and not is_constant(v)]


# The other kind of CPU -----------------------------------------------------------------------


def check_other_cpu(quantizers: Quantizers, *, signed_kernels: bool) -> Iterable[Finding]:
    """Find that a model for the CPU of one machine does not open on the other kind."""
    if not depends_on_cpu(quantizers.model):
        return
    reason = why_refused(quantizers.model, signed_kernels=signed_kernels)
    if reason is not None:
        yield Finding("other_cpu", "", reason, level="warning", remedy=_BOTH)


def depends_on_cpu(model: ir.Model) -> bool:
    """Return whether the runtime treats a model on x86 in another way than on Arm."""
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
