"""Operators, quantized or not: which there are, their shapes, their inputs."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import onnx_ir as ir

from bitwright.decide.ops.quantized_view import Breach, QuantizedView
from bitwright.graph import constant_of, input_at, is_constant, name_of
from bitwright.recipe import Recipe
from bitwright.verification.rules.rule import Ask, Breaches, Changes, Rule


class Operators(Rule, frozen=True, kw_only=True):
    """Which operators there are, and of which shapes and inputs.

    * `known_operators`: all `ops` that there are; others leave the accelerator;
    * `refused_operators`: `ops` that must not be there;
    * `static_shapes`: every dimension of every tensor is a number;
    * `rank`: the first input of `ops` has `low` to `high` axes;
    * `kept_axes`: `ops` leave the size of these `axes` as it is;
    * `input_count`: `ops` have `count` inputs;
    * `constant_inputs`: these `inputs` are constants, as shapes, axes and pads;
    * `absent_inputs`: these optional `inputs` are not there;
    * `index_values`: constant indices in these `inputs` do not count from the end;
    * `vector_inputs`: these `inputs` have one axis, as long as the result's last; other axes before
      it have the size 1.
    """

    ops: tuple[str, ...] = ()
    low: int = 0
    high: int | None = None
    axes: tuple[int, ...] = ()
    count: int | None = None
    inputs: dict[str, int | tuple[int, ...]] = msgspec.field(default_factory=dict)
    """Operator -> which of its inputs."""


def _unknown(rule: Operators, view: QuantizedView) -> Iterator[Breach]:
    known = {*rule.ops}
    for node in view.nodes:
        if node.op_type not in known:
            yield Breach(name_of(node), f"the operator {node.op_type}", "those that it has")


def _refused(rule: Operators, view: QuantizedView) -> Iterator[Breach]:
    for node in view.model.graph.all_nodes():
        if node.op_type in rule.ops:
            yield Breach(name_of(node), f"the operator {node.op_type}", "not this one")


def _write_pairs(rule: Operators, recipe: Recipe) -> Changes:
    refused = "MatMulNBits" in rule.ops and recipe.weights.output.startswith("matmul-nbits")
    return {"weights": {"output": "qdq"}} if refused else {}


def _open_shapes(rule: Operators, view: QuantizedView) -> Iterator[Breach]:
    inputs = [value for value in view.model.graph.inputs if not value.is_initializer()]
    open_inputs = [value for value in inputs if not _is_static(value)]
    for value in open_inputs:
        shape = "no shape" if value.shape is None else f"the shape {value.shape}"
        yield Breach(value.name or "", f"the input has {shape}", "numbers", value.name or "")
    if open_inputs:
        return  # all that depends on them is open as well
    for node in view.nodes:
        if any(not _is_static(value) for value in node.outputs if value.uses()):
            yield Breach(name_of(node), "the shape of its result is not known", "numbers")


def _is_static(value: ir.Value) -> bool:
    return value.shape is not None and all(isinstance(size, int) for size in value.shape)


def _other_ranks(rule: Operators, view: QuantizedView, node: ir.Node) -> Breaches:
    value = input_at(node, 0)
    rank = None if value is None or value.shape is None else len(value.shape)
    if rank is not None and rule.high is not None and not rule.low <= rank <= rule.high:
        yield f"a tensor of {rank} axes", f"{rule.low} to {rule.high}"


def _changed_axes(rule: Operators, view: QuantizedView, node: ir.Node) -> Breaches:
    before, behind = node.inputs[0], node.outputs[0]
    if before is None or before.shape is None or behind.shape is None:
        return
    for axis in rule.axes:
        if axis >= min(len(before.shape), len(behind.shape)):
            continue
        sizes = before.shape[axis], behind.shape[axis]
        if all(isinstance(size, int) for size in sizes) and sizes[0] != sizes[1]:
            yield f"axis {axis} from {sizes[0]} to {sizes[1]}", "the size as it was"


def _other_counts(rule: Operators, view: QuantizedView, node: ir.Node) -> Breaches:
    if len(node.inputs) != rule.count:
        yield f"{len(node.inputs)} inputs", str(rule.count)


def _inputs(rule: Operators, node: ir.Node) -> Iterator[tuple[int, ir.Value]]:
    """Return index and value of the inputs that a rule is about, where they are there."""
    places = rule.inputs.get(node.op_type, ())
    for index in (places,) if isinstance(places, int) else places:
        value = input_at(node, index)
        if value is not None:
            yield index, value


def _computed_inputs(rule: Operators, view: QuantizedView, node: ir.Node) -> Breaches:
    for index, value in _inputs(rule, node):
        if not is_constant(value):
            yield f"its input {index} is computed", "a constant"


def _optional_inputs(rule: Operators, view: QuantizedView, node: ir.Node) -> Breaches:
    for index, _ in _inputs(rule, node):
        yield f"an input {index}", "none"


def _pad_all_axes(rule: Operators, recipe: Recipe) -> Changes:
    """Write pads of all axes where the input that names some of them is not taken."""
    places = rule.inputs.get("Pad", ())
    asked = 3 in ((places,) if isinstance(places, int) else places)
    return {"rewrite": {"pads_of_all_axes": True}} if asked else {}


def _negative_indices(rule: Operators, view: QuantizedView, node: ir.Node) -> Breaches:
    for _, value in _inputs(rule, node):
        indices = constant_of(value)
        if indices is not None and indices.size and indices.min() < 0:
            yield f"the index {int(indices.min())}", "0 or above"


def _count_from_the_front(rule: Operators, recipe: Recipe) -> Changes:
    return {"rewrite": {"positive_indices": True}} if "Gather" in rule.inputs else {}


def _matrices(rule: Operators, view: QuantizedView, node: ir.Node) -> Breaches:
    for index, value in _inputs(rule, node):
        stored = view.quantizer_before(node, index)
        shape = value.shape if stored is None else (stored.node.inputs[0] or value).shape
        if shape is None:
            continue
        *others, last = shape if len(shape) else (1,)
        width = None if node.outputs[0].shape is None else node.outputs[0].shape[-1]
        differs = isinstance(width, int) and isinstance(last, int) and last != width
        if not len(shape) or any(size != 1 for size in others) or differs:
            found = f"an input {index} of the shape {list(shape)}"
            yield found, "a vector as long as a row of the result"


Operators.ASKS = {
    "known_operators": Ask(model=_unknown, needs=("ops",)),
    "refused_operators": Ask(model=_refused, needs=("ops",), change_weights=_write_pairs),
    "static_shapes": Ask(
        model=_open_shapes,
        change=lambda rule, recipe: {"rewrite": {"needs_fixed_shapes": True}},
        change_weights=lambda rule, recipe: {"rewrite": {"needs_fixed_shapes": True}},
    ),
    "rank": Ask(node=_other_ranks, needs=("ops", "high")),
    "kept_axes": Ask(node=_changed_axes, needs=("ops", "axes")),
    "input_count": Ask(node=_other_counts, needs=("ops", "count")),
    "constant_inputs": Ask(node=_computed_inputs, needs=("inputs",)),
    "absent_inputs": Ask(node=_optional_inputs, needs=("inputs",), change=_pad_all_axes),
    "index_values": Ask(node=_negative_indices, needs=("inputs",), change=_count_from_the_front),
    "vector_inputs": Ask(node=_matrices, needs=("inputs",)),
}
