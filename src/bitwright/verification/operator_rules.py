"""Rules of a target about operators: those between pairs, and those that it has or has not."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from bitwright.decide.ops import CONVOLUTIONS, OPERATORS
from bitwright.decide.ops.residuals import find_skip_input
from bitwright.graph.constants import is_constant
from bitwright.graph.quantized_ops import DEQUANTIZERS, QUANTIZERS
from bitwright.graph.quantizers import Quantizer, name_of
from bitwright.targets import rules
from bitwright.targets.npu_operations import clip_bounds, only_reader
from bitwright.verification.view import Breach, TargetView, integers_of, type_of

__all__ = [
    "find_activations",
    "find_float_operators",
    "find_mixed_types",
    "find_open_shapes",
    "find_pairs_in_groups",
    "find_partial_units",
    "find_quantized_readers",
    "find_refused",
    "find_rescaled",
    "find_residuals",
    "find_type_pairs",
    "find_unequal_scales",
    "find_unknown",
    "find_unquantized",
    "find_unsigned_weights",
]

# Operators between pairs ------------------------------------------------------------------------


def find_partial_units(view: TargetView, rule: rules.NodeUnits) -> Iterator[Breach]:
    """Find operators with pairs on some sides only."""
    for node in view.of_types(rule.ops):
        read = view.before(node)
        if not any(read):
            continue
        operator = OPERATORS.get(node.op_type)
        data = range(len(node.inputs)) if operator is None else operator.data_inputs(node)
        floats = [
            value.name
            for index in data
            if (value := node.inputs[index]) is not None
            and read[index] is None
            and not is_constant(value)
            and (value.dtype is None or value.dtype.is_floating_point())
        ]
        if floats and not _only_weight(view, node, read):
            yield Breach(name_of(node), f"reads {floats[0]!r} in float", "pairs before all inputs")
        elif _writes_float(node) and node.op_type not in rule.float_results and not floats:
            yield Breach(name_of(node), "its result is read in float", "a pair behind it")


def _only_weight(view: TargetView, node: ir.Node, read: list[Quantizer | None]) -> bool:
    """Whether only the weights of an operator are stored as integers, and all else is float."""
    found = [quantizer for quantizer in read if quantizer is not None]
    return all(view.role(quantizer) != "activation" for quantizer in found)


def _writes_float(node: ir.Node) -> bool:
    """Whether something but quantizers reads a result, behind a Relu or Clip where one follows."""
    value = node.outputs[0]
    reader = only_reader(value)
    operator = None if reader is None else OPERATORS.get(reader.op_type)
    if reader is not None and operator is not None and operator.bounds is not None:
        value = reader.outputs[0]
    uses = list(value.uses())
    return value.is_graph_output() or any(use.node.op_type not in QUANTIZERS for use in uses)


def find_mixed_types(view: TargetView, rule: rules.EqualTypes) -> Iterator[Breach]:
    """Find operators whose activations have several number types."""
    for node in view.of_types(rule.ops):
        read = view.activations(node)
        operator = OPERATORS.get(node.op_type)
        if operator is not None and operator.linear is not None:
            read = read[:1]  # the second factor may have fewer bits
        sides = [*read, *view.behind(node)]
        names = dict.fromkeys(str(type_of(side)) for side in sides)
        if len(names) > 1:
            yield Breach(name_of(node), f"reads and writes {' and '.join(names)}", "one type")


def find_rescaled(view: TargetView, rule: rules.EqualParameters) -> Iterator[Breach]:
    """Find operators that move values from one scale to another."""
    for node in view.of_types(rule.ops):
        if any(view.attribute(node, name) != value for name, value in rule.attributes.items()):
            continue
        source = view.quantizers.quantizer_before(node, 0)
        for behind in view.behind(node):
            if source is None or source.scale is None or behind.scale is None:
                continue
            same = np.array_equal(source.scale.reshape(-1), behind.scale.reshape(-1))
            if not same or _zero(source) != _zero(behind):
                found = f"scale {_first(source):g} before it and {_first(behind):g} behind"
                if same:
                    found = f"zero point {_zero(source)} before it and {_zero(behind)} behind"
                yield Breach(name_of(node), found, "equal ones")


def find_unequal_scales(view: TargetView, rule: rules.SameScale) -> Iterator[Breach]:
    """Find operators whose inputs have several scales."""
    for node in view.of_types(rule.ops):
        computed = (one for one in view.activations(node) if not view.is_of_constant(one))
        given = (quantizer.scale for quantizer in computed)
        scales = {float(one) for scale in given if scale is not None for one in scale.reshape(-1)}
        if len(scales) > 1:
            yield Breach(name_of(node), f"inputs of {len(scales)} scales", "one scale")


def find_unsigned_weights(view: TargetView, rule: rules.SignedWeights) -> Iterator[Breach]:
    """Find unsigned weights that are multiplied with signed activations."""
    for node in view.of_types(rule.ops):
        weight = view.weight(node)
        stored = None if weight is None else integers_of(weight)
        for source in view.activations(node)[:1]:
            read = integers_of(source)
            if read is not None and read.signed and stored is not None and not stored.signed:
                found = f"{read} activations, {stored} weight"
                yield Breach(name_of(node), found, "a signed weight")


def find_type_pairs(view: TargetView, rule: rules.TypePairs) -> Iterator[Breach]:
    """Find activations and second factors of types that do not go together."""
    for node in view.of_types(rule.ops):
        read = [view.quantizers.quantizer_before(node, index) for index in (0, 1)]
        types = [None if one is None else type_of(one) for one in read]
        if types[0] in rule.activation and types[1] in rule.weight:
            yield Breach(name_of(node), f"{types[0]} x {types[1]}", "fewer bits on one side")


def find_activations(view: TargetView, rule: rules.Activations) -> Iterator[Breach]:
    """Find a Relu or Clip that the quantizer behind it does not do the work of."""
    for node in view.of_types(rule.ops):
        reader = only_reader(node.outputs[0])
        operator = None if reader is None else OPERATORS.get(reader.op_type)
        if (
            reader is None
            or operator is None
            or operator.bounds is None
            or not view.before(node)[0]
        ):
            continue
        bounds = (0.0, None) if reader.op_type == "Relu" else clip_bounds(reader)
        for behind in view.behind(reader):
            qtype = integers_of(behind)
            if qtype is None or behind.scale is None or bounds is None:
                continue
            low = (qtype.lowest - _zero(behind)) * _first(behind)
            high = (qtype.highest - _zero(behind)) * _first(behind)
            slack = _first(behind) / 2
            below = bounds[0] is not None and low < bounds[0] - slack
            above = bounds[1] is not None and high > bounds[1] + slack
            if below or above:
                found = f"a {reader.op_type}, and behind it a range of {low:.3g}..{high:.3g}"
                yield Breach(name_of(node), found, "a range within what it lets through")


def find_float_operators(view: TargetView, rule: rules.FloatOperators) -> Iterator[Breach]:
    """Find pairs around operators that are computed in float."""
    for node in view.of_types(rule.ops):
        if view.activations(node) and view.behind(node):
            yield Breach(name_of(node), f"pairs around {node.op_type}", "none: it runs in float")


def find_pairs_in_groups(view: TargetView, rule: rules.Group) -> Iterator[Breach]:
    """Find pairs inside what is computed as one operation."""
    for node in view.of_types(rule.first):
        quantizer = only_reader(node.outputs[0])
        if quantizer is None or quantizer.op_type not in QUANTIZERS:
            continue
        readers = [reader for dequantizer in _users(quantizer) for reader in _users(dequantizer)]
        inside = [reader for reader in readers if reader.op_type in rule.then]
        # A swish reads it twice: x times its Sigmoid.
        gated = {reader.op_type for reader in readers} - {*rule.then} <= {"Mul"}
        if inside and (len(readers) == 1 or gated):
            found = f"a pair between it and {inside[0].op_type} {name_of(inside[0])!r}"
            yield Breach(name_of(node), found, "none")


def find_residuals(view: TargetView, rule: rules.Residual) -> Iterator[Breach]:
    """Find residual additions with a pair on the convolution's side, or none on the other."""
    for node in view.of_types(("Add",)):
        skip = find_skip_input(node)
        if skip is None or not _has_quantized_convolution(view, node.inputs[1 - skip]):
            continue
        read = view.before(node)
        if read[1 - skip] is not None:
            yield Breach(name_of(node), "a pair behind its convolution", "one on the skip only")
        elif read[skip] is None:
            name = getattr(node.inputs[skip], "name", "")
            yield Breach(name_of(node), f"the skip {name!r} in float", "a pair on the skip")


def _has_quantized_convolution(view: TargetView, value: ir.Value | None) -> bool:
    """Whether the convolution that a value comes from reads quantized values."""
    while value is not None and (node := value.producer()) is not None:
        if node.op_type in CONVOLUTIONS:
            return any(view.activations(node))
        value = node.inputs[0]
    return False


def find_quantized_readers(view: TargetView, rule: rules.QuantizedReaders) -> Iterator[Breach]:
    """Find results that are quantized for a reader which computes in float."""
    for node in view.of_types(rule.ops):
        if not view.behind(node):
            continue
        others = [one for one in _readers(node) if one.op_type not in rule.readers]
        if others:
            found = f"a pair between it and {others[0].op_type} {name_of(others[0])!r}"
            yield Breach(name_of(node), found, "none, but where a product reads it")


def _readers(node: ir.Node) -> Iterator[ir.Node]:
    """Return who reads the quantized results of a node, behind what only moves them."""
    waiting = [quantizer for quantizer in _users(node) if quantizer.op_type in QUANTIZERS]
    seen = {*waiting}
    while waiting:
        for user in _users(waiting.pop()):
            if user in seen:
                continue
            seen.add(user)
            operator = OPERATORS.get(user.op_type)
            if user.op_type in QUANTIZERS | DEQUANTIZERS or (operator and operator.moves):
                waiting.append(user)
            else:
                yield user


def _users(node: ir.Node) -> Iterator[ir.Node]:
    return (use.node for value in node.outputs for use in value.uses())


def find_unquantized(view: TargetView, rule: rules.Unquantized) -> Iterator[Breach]:
    """Find operators on floats without any pair, in a model that has some."""
    if not view.quantizers.found:
        return  # which is said once, for all of it
    for node in view.of_types(rule.ops):
        computed = [value for value in node.inputs if value is not None and not is_constant(value)]
        floats = [v for v in computed if v.dtype is None or v.dtype.is_floating_point()]
        if floats and not any(view.before(node)) and not view.behind(node):
            yield Breach(name_of(node), f"{node.op_type} without pairs", "pairs on all sides")


# Operators ------------------------------------------------------------------------------------


def find_unknown(view: TargetView, rule: rules.KnownOperators) -> Iterator[Breach]:
    """Find operators that the target has not."""
    known = {*rule.ops}
    for node in view.nodes:
        if node.op_type not in known:
            yield Breach(name_of(node), f"the operator {node.op_type}", "those that it has")


def find_refused(view: TargetView, rule: rules.RefusedOperators) -> Iterator[Breach]:
    """Find operators that must not be there."""
    for node in view.model.graph.all_nodes():
        if node.op_type in rule.ops:
            yield Breach(name_of(node), f"the operator {node.op_type}", "not this one")


def find_open_shapes(view: TargetView, rule: rules.StaticShapes) -> Iterator[Breach]:
    """Find sizes that are not known before the model runs."""
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


def _first(quantizer: Quantizer) -> float:
    assert quantizer.scale is not None
    return float(quantizer.scale.reshape(-1)[0])


def _zero(quantizer: Quantizer) -> int:
    return 0 if quantizer.zero_point is None else int(quantizer.zero_point.reshape(-1)[0])
