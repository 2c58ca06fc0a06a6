"""Why a node that the recipe selects stays float: a table of reasons."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from bitwright.decide.ops import OpRule, Skip
from bitwright.decide.ops.conventions import conventions_of
from bitwright.decide.ops.product_sizes import is_first, why_too_small
from bitwright.graph.constants import constant_of, input_at, is_constant
from bitwright.graph.shapes import sizes_of
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
    conventions = conventions_of(candidate.recipe)
    for reason in _REASONS:
        if reason in _KEEP_PRECISE and not conventions.keeps_precise_nodes:
            continue
        if reason in _OF_OTHER_TOOLS and not conventions.keeps_symmetric_clips:
            continue
        skip = reason(candidate)
        if skip is not None:
            return skip
    return None


def _opset_is_too_old(c: Candidate) -> Skip | None:
    if c.opset < c.rule.min_opset and c.node.domain in ("", "ai.onnx"):
        return Skip(f"{c.node.op_type} takes quantized values from opset {c.rule.min_opset} on")
    return None


def _has_no_integer_form(c: Candidate) -> Skip | None:
    if c.recipe.output_format.integer_ops and c.rule.integer_op is None:
        return Skip(f"ONNX Runtime has no integer {c.node.op_type} for the format qoperator")
    return None


def _is_for_integer_kernels(recipe: Recipe) -> bool:
    """Whether pairs are for ONNX Runtime's integer kernels, and nobody named op types."""
    return (
        not recipe.output_format.vendor_ops
        and recipe.activation.bits == 8
        and recipe.select.op_types is None
        and not recipe.place.isolated
    )


def _has_no_integer_kernel(c: Candidate) -> Skip | None:
    if not c.rule.float_only or not _is_for_integer_kernels(c.recipe):
        return None
    if c.rule.integer_op is not None:
        return Skip(f"ONNX Runtime's integer {c.node.op_type} is slower than its float one")
    return Skip(f"ONNX Runtime has no integer {c.node.op_type}: pairs would only cost time")


def _keeps_float16(c: Candidate) -> Skip | None:
    # ONNX Runtime reads and writes 8 bits with float16 scales, from opset 19 on. But it also fuses
    # a quantized op with the pairs around it into an integer kernel, and those take float32 scales,
    # all but QLinearMatMul (from opset 21 on): it then refuses the model. Found by running every
    # op in both formats; `tests/jobs/test_half_floats.py` does so again.
    kinds = ("fused", "written") if c.recipe.output_format.integer_ops else ("fused",)
    if c.recipe.float16 != "keep" or c.rule.float32_scales not in kinds:
        return None
    if all(value.dtype != ir.DataType.FLOAT16 for value in c.node.outputs):
        return None
    return Skip(f"the integer {c.node.op_type} takes float32 scales only, and float16 is kept")


def _is_refused_by_its_rule(c: Candidate) -> Skip | None:
    return None if c.rule.refuse is None else c.rule.refuse(c.node)


def _completes_a_float_node(c: Candidate) -> Skip | None:
    if is_simulation(c.node) and not c.has_fused_input:
        return Skip("it completes a node that is float")
    return None


def _is_no_npu_hard_sigmoid(c: Candidate) -> Skip | None:
    for_npu = c.recipe.limits is not None or c.recipe.simulate is not None
    if c.node.op_type == "HardSigmoid" and for_npu and not is_npu_hard_sigmoid(c.node):
        return Skip("the NPU's HardSigmoid has alpha 1/6 and beta 0.5")
    return None


def _reads_no_floats(c: Candidate) -> Skip | None:
    if c.has_data:
        return None
    kinds = {str(v.dtype.name).lower() for v in c.node.inputs if v is not None and v.dtype}
    return Skip(f"it works on {' and '.join(sorted(kinds)) or 'values of unknown type'}")


def _reads_only_constants(c: Candidate) -> Skip | None:
    constant = all(value is None or is_constant(value) for value in c.node.inputs)
    if constant and not c.rule.needs_quantized_input:
        return Skip("all its inputs are constant")
    return None


def _would_divide_by_zero(c: Candidate) -> Skip | None:
    if c.node.op_type != "Div":
        return None
    divisor = constant_of(c.node.inputs[1])
    if divisor is None:
        return None
    sizes = np.abs(divisor.astype(np.float64))
    sizes = sizes[sizes > 0]
    # A number below half a step becomes zero; a scale may be twice as large as it needs to be.
    if not sizes.size or sizes.max() < sizes.min() * 2.0 ** (c.recipe.weight.bits - 2):
        return None
    return Skip("its divisor holds numbers so small beside others that they would become zero")


def _keeps_values_above_zero(c: Candidate) -> Skip | None:
    bounds = None if c.rule.bounds is None else c.rule.bounds(c.node)
    if bounds is None or not 0 < bounds[0] * 2.0**c.recipe.activation.bits < bounds[1]:
        return None
    # A logarithm or a quotient mostly follows.
    return Skip("it keeps values above zero, and rounding would make some zero again")


def _is_always_one(c: Candidate) -> Skip | None:
    # QLinearSoftmax of uint8 gives 0 for it.
    if c.node.op_type != "Softmax":
        return None
    shape = c.node.outputs[0].shape
    if shape is None:
        return None
    axis = c.node.attributes.get_int("axis", -1 if c.opset >= 13 else 1)
    # Before opset 13 all axes from this one on are one.
    sizes = shape[axis:] if c.opset < 13 else [shape[axis]]
    if all(size == 1 for size in sizes):
        return Skip("it is taken over one value, and is 1 whatever that is")
    return None


def _has_input_of_unknown_type(c: Candidate) -> Skip | None:
    unknown = [v for v in c.node.inputs if v is not None and v.dtype is None]
    if unknown and c.rule.weights:
        return Skip(f"the type of its input {unknown[0].name!r} is not known")
    return None


def _input_is_float(c: Candidate) -> Skip | None:
    forced = c.recipe.place.force_shared
    if c.rule.only_forced and not forced:
        return Skip(f"{c.node.op_type} is quantized with place.force_shared only")
    if c.rule.needs_quantized_input and c.has_float_input and not (forced and c.rule.is_forced):
        return Skip("its input is not quantized, so quantizing it alone would gain nothing")
    return None


def _stands_between_floats(c: Candidate) -> Skip | None:
    if not c.rule.needs_all_inputs_quantized or c.recipe.place.isolated:
        return None
    # What reads it comes first: an input may be float only because this node is.
    if all(value.is_graph_output() and not value.uses() for value in c.node.outputs):
        return Skip("its result leaves the model, so quantizing it would only add rounding")
    if not c.has_integer_reader:
        return Skip("its result is only read in float, so quantizing it would only add rounding")
    if c.has_float_input:
        return Skip("an input of it is float, so quantizing it would only add rounding")
    return None


def _clips_symmetric_integers(c: Candidate) -> Skip | None:
    if not c.recipe.output_format.integer_ops:
        return None
    if c.rule.bounds is not None and c.recipe.activation_symmetric:
        return Skip("by ONNX Runtime's rules it stays float where activations are symmetric")
    return None


def _pools_float8(c: Candidate) -> Skip | None:
    if c.node.op_type == "MaxPool" and not c.recipe.activation.is_integer:
        return Skip(f"there is no MaxPool of {c.recipe.activation}")
    return None


def _multiplies_two_activations(c: Candidate) -> Skip | None:
    asked = c.recipe.select.constant_weights_only
    if asked:
        unfit = c.node.op_type == "MatMul" and not is_constant(c.node.inputs[1])
        return Skip("its second input is not constant") if unfit else None
    if asked is False or not c.rule.needs_constant_factor or not _is_for_integer_kernels(c.recipe):
        return None
    if any(is_constant(c.node.inputs[index]) for index in c.rule.weights):
        return None
    return Skip(
        f"both its factors are computed, and ONNX Runtime's integer {c.node.op_type} of such "
        "saves no time"
    )


def _is_too_small(c: Candidate) -> Skip | None:
    if not c.recipe.select.sizes or c.rule.linear is None:
        return None
    read, weight = (sizes_of(input_at(c.node, index)) for index in (0, 1))
    for rule in c.recipe.select.sizes:
        types = () if isinstance(rule, SmallProducts) else rule.types
        if types and c.recipe.activation.name not in types:
            continue
        found = why_too_small(c.node, rule, read, weight, first=is_first(c.node))
        if found is not None:
            return Skip(f"it has {found[0]}, of which integers make nothing faster there")
    return None


_REASONS: tuple[Callable[[Candidate], Skip | None], ...] = (
    _opset_is_too_old,
    _has_no_integer_form,
    _has_no_integer_kernel,
    _keeps_float16,
    _is_refused_by_its_rule,
    _completes_a_float_node,
    _is_no_npu_hard_sigmoid,
    _reads_no_floats,
    _reads_only_constants,
    _would_divide_by_zero,
    _keeps_values_above_zero,
    _is_always_one,
    _has_input_of_unknown_type,
    _input_is_float,
    _stands_between_floats,
    _clips_symmetric_integers,
    _pools_float8,
    _multiplies_two_activations,
    _is_too_small,
)
_KEEP_PRECISE = {_keeps_float16, _would_divide_by_zero, _keeps_values_above_zero, _is_always_one}
_OF_OTHER_TOOLS = {_clips_symmetric_integers, _pools_float8}
