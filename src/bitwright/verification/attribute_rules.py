"""Rules of a target about the form of operators: ranks, inputs, indices, attributes."""

from __future__ import annotations

from collections.abc import Iterator

from bitwright.graph.constants import constant_of, input_at, is_constant
from bitwright.graph.quantizers import name_of
from bitwright.targets import rules
from bitwright.verification.view import Breach, TargetView

__all__ = [
    "find_attribute_sets",
    "find_attributes",
    "find_changed_axes",
    "find_computed_inputs",
    "find_even_values",
    "find_input_counts",
    "find_matrix_inputs",
    "find_negative_indices",
    "find_optional_inputs",
    "find_other_axes",
    "find_ranks",
]


def find_ranks(view: TargetView, rule: rules.Rank) -> Iterator[Breach]:
    """Find tensors of more or fewer axes."""
    for node in view.of_types(rule.ops):
        value = input_at(node, 0)
        if value is None or value.shape is None:
            continue
        rank = len(value.shape)
        if not rule.low <= rank <= rule.high:
            yield Breach(name_of(node), f"a tensor of {rank} axes", f"{rule.low} to {rule.high}")


def find_input_counts(view: TargetView, rule: rules.InputCount) -> Iterator[Breach]:
    """Find operators with more or fewer inputs."""
    for node in view.of_types(rule.ops):
        if len(node.inputs) != rule.count:
            yield Breach(name_of(node), f"{len(node.inputs)} inputs", str(rule.count))


def find_computed_inputs(view: TargetView, rule: rules.ConstantInputs) -> Iterator[Breach]:
    """Find shapes, axes and pads that are computed at run time."""
    for node in view.nodes:
        for index in rule.inputs.get(node.op_type, ()):
            value = input_at(node, index)
            if value is not None and not is_constant(value):
                yield Breach(name_of(node), f"its input {index} is computed", "a constant")


def find_attributes(view: TargetView, rule: rules.AttributeValues) -> Iterator[Breach]:
    """Find attributes with other values; what is not written has its default, which is allowed."""
    for node in view.of_types(rule.ops):
        attribute = node.attributes.get(rule.attribute)
        if attribute is None:
            continue
        value = attribute.value
        if isinstance(value, bytes):
            value = value.decode()
        several = isinstance(value, (list, tuple))
        if any(one not in rule.values for one in (value if several else [value])):
            allowed = " or ".join(map(str, rule.values))
            yield Breach(name_of(node), f"{rule.attribute} {value}", allowed)


def find_other_axes(view: TargetView, rule: rules.LastAxis) -> Iterator[Breach]:
    """Find operators that work along another axis than the last; ONNX's default is the last."""
    for node in view.of_types(rule.ops):
        axis, value = node.attributes.get_int("axis", -1), input_at(node, 0)
        rank = None if value is None or value.shape is None else len(value.shape)
        if axis != -1 and axis + 1 != rank:
            yield Breach(name_of(node), f"axis {axis}", "the last axis")


def find_attribute_sets(view: TargetView, rule: rules.AttributeSets) -> Iterator[Breach]:
    """Find attributes that do not go together; what is not written has ONNX's default."""
    for node in view.of_types(rule.ops):
        if any(view.attribute(node, name) != value for name, value in rule.when.items()):
            continue
        names = dict.fromkeys(name for one in rule.sets for name in one)
        if not any(
            all(view.attribute(node, name) == value for name, value in one.items())
            for one in rule.sets
        ):
            found = ", ".join(f"{name} {view.attribute(node, name)}" for name in names)
            allowed = (" and ".join(f"{n} {v}" for n, v in one.items()) for one in rule.sets)
            yield Breach(name_of(node), found, ", or ".join(allowed))


def find_even_values(view: TargetView, rule: rules.OddValues) -> Iterator[Breach]:
    """Find attributes that are even numbers."""
    for node in view.of_types(rule.ops):
        value = node.attributes.get_int(rule.attribute, 1)
        if value % 2 == 0:
            yield Breach(name_of(node), f"{rule.attribute} {value}", "an odd number")


def find_optional_inputs(view: TargetView, rule: rules.AbsentInputs) -> Iterator[Breach]:
    """Find optional inputs that are there."""
    for node in view.nodes:
        for index in rule.inputs.get(node.op_type, ()):
            if input_at(node, index) is not None:
                yield Breach(name_of(node), f"an input {index}", "none")


def find_negative_indices(view: TargetView, rule: rules.IndexValues) -> Iterator[Breach]:
    """Find constant indices that count from the end."""
    for node in view.nodes:
        index = rule.inputs.get(node.op_type)
        given = None if index is None else constant_of(input_at(node, index))
        if given is not None and given.size and given.min() < 0:
            yield Breach(name_of(node), f"the index {int(given.min())}", "0 or above")


def find_changed_axes(view: TargetView, rule: rules.KeptAxes) -> Iterator[Breach]:
    """Find operators that change the size of an axis which has to keep it."""
    for node in view.of_types(rule.ops):
        before, behind = node.inputs[0], node.outputs[0]
        if before is None or before.shape is None or behind.shape is None:
            continue
        for axis in rule.axes:
            if axis >= min(len(before.shape), len(behind.shape)):
                continue
            sizes = before.shape[axis], behind.shape[axis]
            if all(isinstance(size, int) for size in sizes) and sizes[0] != sizes[1]:
                found = f"axis {axis} from {sizes[0]} to {sizes[1]}"
                yield Breach(name_of(node), found, "the size as it was")


def find_matrix_inputs(view: TargetView, rule: rules.VectorInputs) -> Iterator[Breach]:
    """Find inputs that are no vector along the last axis."""
    for node in view.nodes:
        index = rule.inputs.get(node.op_type)
        value = None if index is None else input_at(node, index)
        if value is None:
            continue
        stored = view.quantizers.quantizer_before(node, index or 0)
        shape = value.shape if stored is None else (stored.node.inputs[0] or value).shape
        if shape is None:
            continue
        *others, last = shape if len(shape) else (1,)
        width = None if node.outputs[0].shape is None else node.outputs[0].shape[-1]
        differs = isinstance(width, int) and isinstance(last, int) and last != width
        if not len(shape) or any(size != 1 for size in others) or differs:
            found = f"an input {index} of the shape {list(shape)}"
            yield Breach(name_of(node), found, "a vector as long as a row of the result")
