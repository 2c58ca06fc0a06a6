"""Layout of a model from quantization-aware training: its trained scales become entries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import onnx_ir as ir

from bitwright.decide.layout.entries import Entry, Layout, plan_node
from bitwright.decide.layout.trained_scales import (
    TrainedScales,
    Use,
    as_override,
    only_moves,
    same_scale,
)
from bitwright.decide.ops import RULES, OpRule
from bitwright.graph import iter_values
from bitwright.graph.constants import constant_of, is_constant
from bitwright.numerics.types import INT8, UINT8, QType
from bitwright.plan import Action, NodePlan, Parameters
from bitwright.recipe import Override, Recipe


def trained_recipe(reads: Mapping[Use, Parameters], recipe: Recipe) -> Recipe:
    """Return the recipe with the types that most of the trained tensors have."""
    kinds: dict[str, list[QType]] = {"activation": [], "weight": []}
    for (node, index), parameters in reads.items():
        role = "activation" if not is_constant(node.inputs[index]) else "weight"
        kinds[role].append(parameters.qtype)
    most = {role: max(types, key=types.count) for role, types in kinds.items() if types}
    if most.get("activation") is INT8 and most.get("weight", INT8) is UINT8:
        most["weight"] = INT8
    channels = any(p.axis is not None for p in reads.values())
    return recipe.replace(**most, per_channel=channels)


def lay_out_trained(
    model: ir.Model,
    reads: Mapping[Use, Parameters],
    results: Mapping[str, Parameters],
    recipe: Recipe,
) -> tuple[Layout, list[str]]:
    """Return the layout that the trained scales make, and what a user may want to know of it.

    `reads` has the scale through which an input of a node reads, `results` that of a graph
    output. Nodes without them stay float, each with its reason.
    """
    names = {value: name for name, value in iter_values(model)}
    scales = TrainedScales(model, reads, results, recipe, names)
    return _TrainedLayout(model, scales, recipe, names).build(), scales.notes


class _TrainedLayout:
    def __init__(
        self, model: ir.Model, scales: TrainedScales, recipe: Recipe, names: Mapping[ir.Value, str]
    ) -> None:
        self._model = model
        self._nodes = list(model.graph.all_nodes())
        self._scales = scales
        self._recipe = recipe
        self._names = names
        self._layout = Layout()
        self._keys: dict[tuple[ir.Value, Override, int], str] = {}

    def build(self) -> Layout:
        self._enter()
        self._share()
        for node in self._nodes:
            self._layout.nodes[node.name or ""] = self._plan(node)
        for graph in self._model.graphs():
            for value in graph.outputs:
                if value in self._names:
                    found = self._scales.results.get(value.name or "")
                    key = None if found is None else self._key(value, found)
                    self._layout.outputs[self._names[value]] = key
        return self._layout

    # Entries ------------------------------------------------------------------------------

    def _enter(self) -> None:
        for (node, index), scale in self._scales.reads.items():
            value = node.inputs[index]
            assert value is not None
            self._key(value, scale)
        for value, scale in self._scales.written.items():
            if value.is_graph_output() and value.name in self._scales.results:
                self._key(value, scale)

    def _key(self, value: ir.Value, scale: Parameters) -> str:
        """Return the entry of a tensor under a scale, made at its first use."""
        given = as_override(scale)
        wanted = (value, given, scale.block_size)
        if wanted not in self._keys:
            name = key = self._names[value]
            number = 0
            while key in self._layout.entries:
                number += 1
                key = f"{name}@{number}"
            role: Literal["activation", "weight"] = (
                "activation" if not is_constant(value) else "weight"
            )
            self._layout.entries[key] = Entry(
                name, value, role, scale.qtype, scale.axis, scale.block_size, override=given
            )
            self._keys[wanted] = key
        return self._keys[wanted]

    def _share(self) -> None:
        """Link entries that are one scale: what clips to what it clips, moves to what it moves."""
        links: dict[str, str] = {}
        for node in self._nodes:
            rule = RULES.get(node.op_type)
            if rule is None or (node, 0) not in self._scales.reads or not node.outputs:
                continue
            source, target = node.inputs[0], node.outputs[0]
            assert source is not None
            before, behind = self._scales.reads[node, 0], self._scales.written.get(target)
            if behind is None or not same_scale(before, behind) or is_constant(source):
                continue
            above, below = self._key(source, before), self._key(target, behind)
            if rule.bounds is not None:
                links[above] = below
                if len(source.uses()) == 1 and not source.is_graph_output():
                    producer = source.producer()
                    if producer is not None and self._scales.reads_integers(producer):
                        self._layout.entries[above].absorbed_by = node.name
            elif only_moves(node, rule) and node.op_type != "Concat":
                links.setdefault(below, above)
        entries = self._layout.entries
        for key, other in links.items():
            if self._layout.root(other) != key:
                entries[key].same_as = other
                entries[key].override = None

    def _plan(self, node: ir.Node) -> NodePlan:
        inputs: list[str | None] = [None] * len(node.inputs)
        for index, value in enumerate(node.inputs):
            scale = self._scales.reads.get((node, index))
            if value is not None and scale is not None:
                inputs[index] = self._key(value, scale)
        outputs: list[str | None] = [
            self._key(value, self._scales.written[value]) if value in self._scales.written else None
            for value in node.outputs
        ]
        with_pairs = self._recipe.output_format.standard_pairs
        reason = _why_float(node, self._scales, outputs, with_pairs=with_pairs)
        rule = RULES.get(node.op_type)
        if rule is not None and rule.bias is not None and reason is None:
            self._add_bias(node, rule, inputs)
        action: Action = "quantize" if reason is None else "float"
        return plan_node(node, inputs, outputs, action=action, reason=reason)

    def _add_bias(self, node: ir.Node, rule: OpRule, inputs: list[str | None]) -> None:
        index = rule.bias
        if index is None or index >= len(node.inputs) or inputs[index] is not None:
            return
        value, weight = node.inputs[index], rule.weights[-1]
        bias = constant_of(value)
        if value is None or bias is None or None in (inputs[0], inputs[weight]):
            return
        if np.ndim(self._scales.reads[node, 0].scale):
            return
        inputs[index] = self._layout.enter_bias(
            self._names[value], value, node, rule, (inputs[0] or "", inputs[weight] or "")
        )


# Why a node stays float ------------------------------------------------------------------


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


def _why_float(
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
