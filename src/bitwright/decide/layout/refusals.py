"""Why a node that the recipe selects stays float: a table of reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from bitwright.decide.ops import OpRule, Skip
from bitwright.decide.ops.conventions import conventions_of
from bitwright.decide.ops.product_sizes import is_first, why_too_small
from bitwright.graph import constant_of, input_at, is_constant, sizes_of
from bitwright.recipe import Recipe
from bitwright.recipe.sizes import SmallProducts
from bitwright.targets.npu_operations import is_npu_hard_sigmoid, is_simulation


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A node that might be quantized, and what has been decided about its inputs."""

    node: ir.Node
    rule: OpRule
    recipe: Recipe
    opset: int
    has_data: bool
    """Whether it reads float tensors that its rule quantizes."""
    has_float_input: bool
    """Whether one of these is computed in float and stays so."""
    has_fused_input: bool
    """Whether an input stays inside a fused operation."""
    has_integer_reader: bool
    """Whether its integers would reach a node that is quantized for its own sake."""


def refuse(candidate: Candidate) -> Skip | None:
    """Return the first reason to leave a node float, or None."""
    return next((Skip(why) for reasons in _REASONS for why in reasons(candidate)), None)


def _without_kernel(c: Candidate) -> Iterator[str]:
    op = c.node.op_type
    if c.opset < c.rule.min_opset and c.node.domain in ("", "ai.onnx"):
        yield f"{op} takes quantized values from opset {c.rule.min_opset} on"
    if c.recipe.output_format.integer_ops and c.rule.integer_op is None:
        yield f"ONNX Runtime has no integer {op} for the format qoperator"
    if c.rule.float_only and _is_for_integer_kernels(c.recipe):
        if c.rule.integer_op is not None:
            yield f"ONNX Runtime's integer {op} is slower than its float one"
        yield f"ONNX Runtime has no integer {op}: pairs would only cost time"
    if conventions_of(c.recipe).keeps_precise_nodes and _keeps_float16(c):
        yield f"the integer {op} takes float32 scales only, and float16 is kept"
    if c.rule.refuse is not None and (refusal := c.rule.refuse(c.node)) is not None:
        yield refusal.reason


def _is_for_integer_kernels(recipe: Recipe) -> bool:
    """Whether pairs are for ONNX Runtime's integer kernels, and nobody named op types."""
    return (
        not recipe.output_format.vendor_ops
        and recipe.activation.bits == 8
        and recipe.select.op_types is None
        and not recipe.place.isolated
    )


def _keeps_float16(c: Candidate) -> bool:
    # ONNX Runtime reads and writes 8 bits with float16 scales, from opset 19 on. But it also fuses
    # a quantized op with the pairs around it into an integer kernel, and those take float32 scales,
    # all but QLinearMatMul (from opset 21 on): it then refuses the model. Found by running every
    # op in both formats; `tests/jobs/test_half_floats.py` does so again.
    kinds = ("fused", "written") if c.recipe.output_format.integer_ops else ("fused",)
    if c.recipe.float16 != "keep" or c.rule.float32_scales not in kinds:
        return False
    return any(value.dtype == ir.DataType.FLOAT16 for value in c.node.outputs)


def _without_data(c: Candidate) -> Iterator[str]:
    if is_simulation(c.node) and not c.has_fused_input:
        yield "it completes a node that is float"
    for_npu = c.recipe.limits is not None or c.recipe.simulate is not None
    if c.node.op_type == "HardSigmoid" and for_npu and not is_npu_hard_sigmoid(c.node):
        yield "the NPU's HardSigmoid has alpha 1/6 and beta 0.5"
    if not c.has_data:
        kinds = {str(v.dtype.name).lower() for v in c.node.inputs if v is not None and v.dtype}
        yield f"it works on {' and '.join(sorted(kinds)) or 'values of unknown type'}"
    constant = all(value is None or is_constant(value) for value in c.node.inputs)
    if constant and not c.rule.needs_quantized_input:
        yield "all its inputs are constant"


def _that_stay_precise(c: Candidate) -> Iterator[str]:
    """Yield what integers would leave nothing right of."""
    if not conventions_of(c.recipe).keeps_precise_nodes:
        return
    if c.node.op_type == "Div" and _would_divide_by_zero(c):
        yield "its divisor holds numbers so small beside others that they would become zero"
    bounds = None if c.rule.bounds is None else c.rule.bounds(c.node)
    if bounds is not None and 0 < bounds[0] * 2.0**c.recipe.activation.bits < bounds[1]:
        # A logarithm or a quotient mostly follows.
        yield "it keeps values above zero, and rounding would make some zero again"
    if c.node.op_type == "Softmax" and _is_over_one_value(c):  # QLinearSoftmax of uint8 gives 0
        yield "it is taken over one value, and is 1 whatever that is"


def _would_divide_by_zero(c: Candidate) -> bool:
    divisor = constant_of(c.node.inputs[1])
    if divisor is None:
        return False
    sizes = np.abs(divisor.astype(np.float64))
    sizes = sizes[sizes > 0]
    # A number below half a step becomes zero; a scale may be twice as large as it needs to be.
    return bool(sizes.size and sizes.max() >= sizes.min() * 2.0 ** (c.recipe.weight.bits - 2))


def _is_over_one_value(c: Candidate) -> bool:
    shape = c.node.outputs[0].shape
    if shape is None:
        return False
    axis = c.node.attributes.get_int("axis", -1 if c.opset >= 13 else 1)
    # Before opset 13 all axes from this one on are one.
    sizes = shape[axis:] if c.opset < 13 else [shape[axis]]
    return all(size == 1 for size in sizes)


def _beside_floats(c: Candidate) -> Iterator[str]:
    unknown = [v for v in c.node.inputs if v is not None and v.dtype is None]
    if unknown and c.rule.weights:
        yield f"the type of its input {unknown[0].name!r} is not known"
    forced = c.recipe.place.force_shared
    if c.rule.only_forced and not forced:
        yield f"{c.node.op_type} is quantized with place.force_shared only"
    if c.rule.needs_quantized_input and c.has_float_input and not (forced and c.rule.is_forced):
        yield "its input is not quantized, so quantizing it alone would gain nothing"
    if not c.rule.needs_all_inputs_quantized or c.recipe.place.isolated:
        return
    # What reads it comes first: an input may be float only because this node is.
    if all(value.is_graph_output() and not value.uses() for value in c.node.outputs):
        yield "its result leaves the model, so quantizing it would only add rounding"
    if not c.has_integer_reader:
        yield "its result is only read in float, so quantizing it would only add rounding"
    if c.has_float_input:
        yield "an input of it is float, so quantizing it would only add rounding"


def _by_other_tools(c: Candidate) -> Iterator[str]:
    if not conventions_of(c.recipe).keeps_symmetric_clips:
        return
    clips = c.recipe.output_format.integer_ops and c.rule.bounds is not None
    if clips and c.recipe.activation_symmetric:
        yield "by ONNX Runtime's rules it stays float where activations are symmetric"
    if c.node.op_type == "MaxPool" and not c.recipe.activation.is_integer:
        yield f"there is no MaxPool of {c.recipe.activation}"


def _that_gain_nothing(c: Candidate) -> Iterator[str]:
    asked = c.recipe.select.constant_weights_only
    if asked and c.node.op_type == "MatMul" and not is_constant(c.node.inputs[1]):
        yield "its second input is not constant"
    computed = not any(is_constant(c.node.inputs[index]) for index in c.rule.weights)
    is_judged = asked is None and c.rule.needs_constant_factor
    if is_judged and computed and _is_for_integer_kernels(c.recipe):
        yield (
            f"both its factors are computed, and ONNX Runtime's integer {c.node.op_type} of "
            "such saves no time"
        )
    if not c.recipe.select.sizes or c.rule.linear is None:
        return
    read, weight = (sizes_of(input_at(c.node, index)) for index in (0, 1))
    for rule in c.recipe.select.sizes:
        types = () if isinstance(rule, SmallProducts) else rule.types
        if types and c.recipe.activation.name not in types:
            continue
        found = why_too_small(c.node, rule, read, weight, first=is_first(c.node))
        if found is not None:
            yield f"it has {found[0]}, of which integers make nothing faster there"


_REASONS: tuple[Callable[[Candidate], Iterator[str]], ...] = (
    _without_kernel,
    _without_data,
    _that_stay_precise,
    _beside_floats,
    _by_other_tools,
    _that_gain_nothing,
)
"""In the order in which they are asked: the first reason is the one that is told."""
