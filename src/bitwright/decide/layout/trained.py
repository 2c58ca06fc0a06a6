"""Layout of a model from quantization-aware training: its trained scales become entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from bitwright.graph import constant_of, is_constant, iter_values
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


def _why_float(
    node: ir.Node, scales: TrainedScales, outputs: Sequence[str | None], *, with_pairs: bool
) -> str | None:
    """Return why a node is left float, or None if it works on integers.

    `with_pairs` says that the format lets it read quantized weights and float activations.
    """
    if node in scales.refused:
        return scales.refused[node]
    rule = RULES.get(node.op_type)
    if rule is None:
        return f"there is no integer {node.op_type}"
    if (refusal := None if rule.refuse is None else rule.refuse(node)) is not None:
        return refusal.reason
    data = list(scales.data_inputs(node, rule))
    if not data:
        return "it works on no floats"
    known = [index for index in data if (node, index) in scales.reads]
    missing = [index for index in data if index not in known]
    weights = [index for index in rule.weights if (node, index) in scales.reads]
    stored = any(is_constant(node.inputs[index]) for index in weights)
    if missing and not (stored and with_pairs):
        value = node.inputs[missing[0]]
        kind = "weight" if missing[0] in rule.weights and is_constant(value) else "input"
        return f"its {kind} {'' if value is None else value.name!r} has no trained scale"
    activations = (index for index in known if index not in weights)
    if any(scales.reads[node, index].axis is not None for index in activations):
        return "its input has a scale for each channel, which no integer kernel takes"
    # A product of matrices can give floats.
    if missing or rule.outputs == () or rule.linear == "matrix":
        return None
    return _why_no_integers_written(node, rule, scales, outputs, data[0])


def _why_no_integers_written(
    node: ir.Node, rule: OpRule, scales: TrainedScales, outputs: Sequence[str | None], first: int
) -> str | None:
    """Return why the kernel of a node cannot write integers; `first` is the input that it moves."""
    for index in rule.output_indices(node):
        value = node.outputs[index]
        if outputs[index] is None and (value.uses() or value.is_graph_output()):
            return f"its output {value.name!r} has no trained scale"
    if not only_moves(node, rule) or is_constant(node.inputs[first]):
        return None
    same = same_scale(scales.reads[node, first], scales.written[node.outputs[0]])
    return None if same else "its trained scales before and behind it differ"
