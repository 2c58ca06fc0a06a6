"""Where quantizers stand around operators: on all sides, on none, not inside a fused group."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from bitwright.decide.ops import CONVOLUTIONS, OPERATORS
from bitwright.decide.ops.quantized_view import Breach, QuantizedView, readers_of
from bitwright.decide.ops.residuals import find_skip_input
from bitwright.graph import DEQUANTIZERS, QUANTIZERS, is_constant, name_of
from bitwright.recipe import Recipe
from bitwright.targets.npu_operations import clip_bounds, only_reader
from bitwright.verification.rules.rule import Ask, Breaches, Changes, Rule


class Pairs(Rule, frozen=True, kw_only=True):
    """Where Q/DQ pairs stand around some operators.

    * `node_units`: before all inputs and behind the result, or nowhere; results of `float_results`
      may be float;
    * `unquantized`: on all sides of `ops`, which are computed in float without them;
    * `float_operators`: nowhere around `ops`, which are computed in float;
    * `quantized_readers`: behind `ops` only for `readers`, which compute on integers; what moves
      values passes them on;
    * `activations`: behind a Relu or Clip that reads `ops`, with a range that makes it redundant;
    * `group`: not between `first` and `then`, which are computed as one;
    * `residual`: at an Add behind a quantized convolution on the skip, and on nothing else.
    """

    ops: tuple[str, ...] = ()
    float_results: tuple[str, ...] = ()
    readers: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    then: tuple[str, ...] = ()


def _partial_units(rule: Pairs, view: QuantizedView, node: ir.Node) -> Breaches:
    read = view.before(node)
    if not any(read):
        return
    operator = OPERATORS.get(node.op_type)
    data = range(len(node.inputs)) if operator is None else operator.data_inputs(node)
    floats = [
        value.name
        for index in data
        if (value := node.inputs[index]) is not None
        and read[index] is None
        and not is_constant(value)
        and _is_float(value)
    ]
    if floats and view.activations(node):  # else only its weights are stored as integers
        yield f"reads {floats[0]!r} in float", "pairs before all inputs"
    elif _writes_float(node) and node.op_type not in rule.float_results and not floats:
        yield "its result is read in float", "a pair behind it"


def _is_float(value: ir.Value) -> bool:
    return value.dtype is None or value.dtype.is_floating_point()


def _writes_float(node: ir.Node) -> bool:
    """Whether something but quantizers reads a result, behind a Relu or Clip where one follows."""
    value = node.outputs[0]
    reader = only_reader(value)
    operator = None if reader is None else OPERATORS.get(reader.op_type)
    if reader is not None and operator is not None and operator.bounds is not None:
        value = reader.outputs[0]
    uses = list(value.uses())
    return value.is_graph_output() or any(use.node.op_type not in QUANTIZERS for use in uses)


def _quantize_all_sides(rule: Pairs, recipe: Recipe) -> Changes:
    """Put pairs on every side of operators that would else leave the accelerator."""
    if rule.float_results or recipe.place.isolated:
        return {}
    return {"place": {"isolated": True, "force_shared": True, "float_bias_add": False}}


def _unquantized(rule: Pairs, view: QuantizedView, node: ir.Node) -> Breaches:
    """An operator on floats has no pair, in a model that has some."""
    if not view.found:
        return  # which is said once, for all of it
    computed = [value for value in node.inputs if value is not None and not is_constant(value)]
    if any(map(_is_float, computed)) and not any(view.before(node)) and not view.behind(node):
        yield f"{node.op_type} without pairs", "pairs on all sides"


def _quantize_more(rule: Pairs, recipe: Recipe) -> Changes:
    """Quantize what the hardware computes in integers, also what others leave float."""
    if recipe.select.op_types is not None:
        return {}
    ops = dict.fromkeys((*recipe.select.more_op_types, *rule.ops))
    return {"select": {"more_op_types": tuple(ops)}}


def _quantized_in_vain(rule: Pairs, view: QuantizedView, node: ir.Node) -> Breaches:
    if view.activations(node) and view.behind(node):
        yield f"pairs around {node.op_type}", "none: it runs in float"


def _float_readers(rule: Pairs, view: QuantizedView, node: ir.Node) -> Breaches:
    """A result is quantized for a reader which computes in float."""
    if not view.behind(node):
        return
    others = [one for one in _final_readers(node) if one.op_type not in rule.readers]
    if others:
        found = f"a pair between it and {others[0].op_type} {name_of(others[0])!r}"
        yield found, "none, but where a product reads it"


def _final_readers(node: ir.Node) -> Iterator[ir.Node]:
    """Return who reads the quantized results of a node, behind what only moves them."""
    waiting = [quantizer for quantizer in readers_of(node) if quantizer.op_type in QUANTIZERS]
    seen = {*waiting}
    while waiting:
        for reader in readers_of(waiting.pop()):
            if reader in seen:
                continue
            seen.add(reader)
            operator = OPERATORS.get(reader.op_type)
            if reader.op_type in QUANTIZERS | DEQUANTIZERS or (operator and operator.moves):
                waiting.append(reader)
            else:
                yield reader


def _needed_activations(rule: Pairs, view: QuantizedView, node: ir.Node) -> Breaches:
    """A Relu or Clip does what the quantizer behind it does not do."""
    reader = only_reader(node.outputs[0])
    operator = None if reader is None else OPERATORS.get(reader.op_type)
    if reader is None or operator is None or operator.bounds is None:
        return
    bounds = (0.0, None) if reader.op_type == "Relu" else clip_bounds(reader)
    if bounds is None or not view.before(node)[0]:
        return
    for behind in view.behind(reader):
        qtype = behind.integers
        if qtype is None or behind.scale is None:
            continue
        low, high = (
            (end - behind.first_zero) * behind.first_scale for end in (qtype.lowest, qtype.highest)
        )
        slack = behind.first_scale / 2
        below = bounds[0] is not None and low < bounds[0] - slack
        above = bounds[1] is not None and high > bounds[1] + slack
        if below or above:
            found = f"a {reader.op_type}, and behind it a range of {low:.3g}..{high:.3g}"
            yield found, "a range within what it lets through"


def _inside_group(rule: Pairs, view: QuantizedView) -> Iterator[Breach]:
    for node in view.of_types(rule.first):
        quantizer = only_reader(node.outputs[0])
        if quantizer is None or quantizer.op_type not in QUANTIZERS:
            continue
        readers = [reader for below in readers_of(quantizer) for reader in readers_of(below)]
        inside = [reader for reader in readers if reader.op_type in rule.then]
        # A swish reads it twice: x times its Sigmoid.
        gated = {reader.op_type for reader in readers} - {*rule.then} <= {"Mul"}
        if inside and (len(readers) == 1 or gated):
            found = f"a pair between it and {inside[0].op_type} {name_of(inside[0])!r}"
            yield Breach(name_of(node), found, "none")


def _on_other_side_of_skip(rule: Pairs, view: QuantizedView) -> Iterator[Breach]:
    """A residual addition has a pair on the convolution's side, or none on the other."""
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


def _has_quantized_convolution(view: QuantizedView, value: ir.Value | None) -> bool:
    """Whether the convolution that a value comes from reads quantized values."""
    while value is not None and (node := value.producer()) is not None:
        if node.op_type in CONVOLUTIONS:
            return any(view.activations(node))
        value = node.inputs[0]
    return False


Pairs.ASKS = {
    "node_units": Ask(node=_partial_units, needs=("ops",), change=_quantize_all_sides),
    "unquantized": Ask(node=_unquantized, needs=("ops",), change=_quantize_more),
    "float_operators": Ask(node=_quantized_in_vain, needs=("ops",)),
    "quantized_readers": Ask(node=_float_readers, needs=("ops", "readers")),
    "activations": Ask(node=_needed_activations, needs=("ops",)),
    "group": Ask(model=_inside_group, needs=("first", "then")),
    "residual": Ask(model=_on_other_side_of_skip),
}
