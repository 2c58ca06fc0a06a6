"""Why a node of a trained model stays float: a table of reasons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import onnx_ir as ir

from bitwright.decide.layout.trained_scales import TrainedScales, only_moves, same_scale
from bitwright.decide.ops import RULES, OpRule
from bitwright.graph.constants import is_constant

__all__ = ["why_float"]


@dataclass(frozen=True)
class _Candidate:
    node: ir.Node
    rule: OpRule
    scales: TrainedScales
    takes_float_inputs: bool
    """Whether the format lets a node read quantized weights and float activations."""
    outputs: Sequence[str | None]

    @cached_property
    def data(self) -> list[int]:
        """The inputs that are floats to compute with."""
        return list(self.scales.data_inputs(self.node, self.rule))

    @cached_property
    def missing(self) -> list[int]:
        """Those of them without a trained scale."""
        return [index for index in self.data if (self.node, index) not in self.scales.reads]

    @cached_property
    def weights(self) -> list[int]:
        """The inputs for weights that have a trained scale."""
        return [i for i in self.rule.weights if (self.node, i) in self.scales.reads]

    @property
    def writes_integers(self) -> bool:
        """Whether its kernel wants a scale for its result; matrix products can give floats."""
        return not (self.missing or self.rule.outputs == () or self.rule.linear == "matrix")


def why_float(
    node: ir.Node, scales: TrainedScales, outputs: Sequence[str | None], *, with_pairs: bool
) -> str | None:
    """Return why a node is left float, or None if it works on integers."""
    if node in scales.refused:
        return scales.refused[node]
    rule = RULES.get(node.op_type)
    if rule is None:
        return f"there is no integer {node.op_type}"
    candidate = _Candidate(node, rule, scales, with_pairs, outputs)
    return next((why for reason in _REASONS if (why := reason(candidate)) is not None), None)


def _is_refused_by_its_rule(c: _Candidate) -> str | None:
    refusal = None if c.rule.refuse is None else c.rule.refuse(c.node)
    return None if refusal is None else refusal.reason


def _reads_no_floats(c: _Candidate) -> str | None:
    return None if c.data else "it works on no floats"


def _has_input_without_scale(c: _Candidate) -> str | None:
    stored = any(is_constant(c.node.inputs[index]) for index in c.weights)
    if not c.missing or (stored and c.takes_float_inputs):
        return None
    value = c.node.inputs[c.missing[0]]
    kind = "weight" if c.missing[0] in c.rule.weights and is_constant(value) else "input"
    return f"its {kind} {'' if value is None else value.name!r} has no trained scale"


def _has_channelwise_input(c: _Candidate) -> str | None:
    activations = [index for index in c.data if index not in (*c.missing, *c.weights)]
    if any(c.scales.reads[c.node, index].axis is not None for index in activations):
        return "its input has a scale for each channel, which no integer kernel takes"
    return None


def _has_output_without_scale(c: _Candidate) -> str | None:
    for index in c.rule.output_indices(c.node) if c.writes_integers else ():
        value = c.node.outputs[index]
        if c.outputs[index] is None and (value.uses() or value.is_graph_output()):
            return f"its output {value.name!r} has no trained scale"
    return None


def _changes_scale(c: _Candidate) -> str | None:
    if not c.writes_integers or not only_moves(c.node, c.rule):
        return None
    before = c.scales.reads[c.node, c.data[0]]
    behind = c.scales.written[c.node.outputs[0]]
    if same_scale(before, behind) or is_constant(c.node.inputs[c.data[0]]):
        return None
    return "its trained scales before and behind it differ"


_REASONS: tuple[Callable[[_Candidate], str | None], ...] = (
    _is_refused_by_its_rule,
    _reads_no_floats,
    _has_input_without_scale,
    _has_channelwise_input,
    _has_output_without_scale,
    _changes_scale,
)
