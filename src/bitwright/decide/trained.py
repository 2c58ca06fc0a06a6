"""Which tensors are quantized where training has already said how.

Every trained scale is kept as it is. Where ops only move or clip values, a scale on one side is
also given to the other: that changes no value, and lets the runtime work on integers throughout.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import onnx_ir as ir

from bitwright.decide.entries import Entry, Layout
from bitwright.decide.ops import RULES, OpRule, Skip, constant
from bitwright.decide.parameters import widened_for_bias
from bitwright.decide.selection import Selector
from bitwright.graph import iter_values
from bitwright.numerics.quantize import dequantize, fake_quantize
from bitwright.numerics.types import INT8, UINT8, QType
from bitwright.plan import NodePlan, Parameters
from bitwright.recipe import Override, Recipe

__all__ = ["lay_out_trained", "trained_recipe"]

Use = tuple[ir.Node, int]

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
# What asks a tensor for its shape needs no values.
_SHAPE_OPS = frozenset({"Shape", "Size"})
# Their integer kernels can give floats.
_FLOAT_RESULTS = frozenset({"MatMul", "Gemm"})


def trained_recipe(reads: Mapping[Use, Parameters], recipe: Recipe) -> Recipe:
    """Return the recipe with the types that most of the trained tensors have."""
    kinds: dict[str, list[QType]] = {"activation": [], "weight": []}
    for (node, index), parameters in reads.items():
        role = "activation" if constant(node.inputs[index]) is None else "weight"
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
    builder = _TrainedLayout(model, reads, results, recipe)
    return builder.build(), builder.notes


class _TrainedLayout:
    def __init__(
        self,
        model: ir.Model,
        reads: Mapping[Use, Parameters],
        results: Mapping[str, Parameters],
        recipe: Recipe,
    ) -> None:
        self.notes: list[str] = []
        self._model = model
        self._nodes = list(model.graph.all_nodes())
        self._reads = dict(reads)
        self._names = {value: name for name, value in iter_values(model)}
        self._layout = Layout()
        self._keys: dict[tuple[ir.Value, Override, int], str] = {}
        self._recipe = recipe
        self._refused: dict[ir.Node, str] = {}
        self._excluded: set[ir.Node] = set()
        self._written: dict[ir.Value, Parameters] = {}
        """The one scale of a tensor that a node writes."""
        self._results = dict(results)

    def build(self) -> Layout:
        self._exclude()
        self._fit_kernels()
        self._find_written()
        while sum(self._spread(node) for node in self._nodes):
            pass
        self._read_through()
        self._enter()
        self._share()
        for node in self._nodes:
            self._layout.nodes[node.name or ""] = self._plan(node)
        for graph in self._model.graphs():
            for value in graph.outputs:
                if value in self._names:
                    found = self._results.get(value.name or "")
                    key = None if found is None else self._key(value, found)
                    self._layout.outputs[self._names[value]] = key
        return self._layout

    def _exclude(self) -> None:
        """Let the nodes that the user named compute in float, with float weights.

        What they read stays as trained, so that the nodes before them can write integers.
        """
        select = self._recipe.select
        selector = Selector(self._nodes, select)
        for node in self._nodes:
            reason = selector.kept_float(node)
            if reason is None and select.op_types is not None:
                reason = selector.not_chosen(node)
            if reason is not None:
                self._refused[node] = reason
                self._excluded.add(node)
        for node, index in list(self._reads):
            if node in self._excluded and constant(node.inputs[index]) is not None:
                del self._reads[node, index]

    def _find_written(self) -> None:
        for (node, index), parameters in self._reads.items():
            value = node.inputs[index]
            if value is not None and constant(value) is None:
                self._written.setdefault(value, parameters)
        for graph in self._model.graphs():
            for value in graph.outputs:
                if value.name is not None and value.name in self._results:
                    self._written[value] = self._results[value.name]

    # Kernels ------------------------------------------------------------------------------

    def _fit_kernels(self) -> None:
        """Write weights as the integer kernels take them; those that none takes stay float.

        Weights lie on their grid already, so a float weight computes what was trained.
        """
        for (node, index), parameters in list(self._reads.items()):
            rule = RULES.get(node.op_type)
            if rule is None or index not in rule.weights or constant(node.inputs[index]) is None:
                continue
            source = self._reads.get((node, 0)) if index else None
            if parameters.qtype is UINT8 and source is not None and source.qtype is INT8:
                # The same grid with signed integers, for which there are kernels.
                parameters = replace(
                    parameters, qtype=INT8, zero_point=np.asarray(parameters.zero_point) - 128
                )
                self._reads[node, index] = parameters
            reason = _misfit(node, index, rule, parameters)
            if reason is not None:
                self._refused[node] = reason
                del self._reads[node, index]
            elif source is not None:
                self._make_room_for_bias(node, index, rule, source)

    def _make_room_for_bias(
        self, node: ir.Node, index: int, rule: OpRule, source: Parameters
    ) -> None:
        """Enlarge the scale of a weight that is next to nothing beside its bias.

        At its own scale the bias would overflow int32, and the runtime does not look. What the
        weight loses is a billionth of the bias.
        """
        weight, place = self._reads[node, index], rule.bias
        bias = None if place is None or place >= len(node.inputs) else constant(node.inputs[place])
        tile = 1 if rule.tile is None else rule.tile(node)
        scale = np.asarray(weight.scale)
        if bias is None or np.ndim(source.scale) or weight.block_size or scale.ndim > 1:
            return
        if scale.ndim and (bias.ndim == 0 or bias.shape[-1] != scale.size * tile):
            return
        wider = widened_for_bias(scale, source.scale, bias, tile)
        if wider is not None:
            self._reads[node, index] = replace(weight, scale=wider)
            self.notes.append(
                f"enlarged the weight scale of {node.name!r} where its bias overflowed int32"
            )

    # Spreading ----------------------------------------------------------------------------

    def _spread(self, node: ir.Node) -> bool:
        """Give the scale on one side of an op that moves or clips to its other side."""
        rule = RULES.get(node.op_type)
        if rule is None or node in self._excluded:
            return False
        if not _moves(node, rule) and rule.bounds is None:
            return False
        inputs = list(self._data_inputs(node, rule))
        outputs = [
            value
            for index, value in enumerate(node.outputs)
            if (rule.outputs is None or index in rule.outputs)
            and (value.uses() or value.is_graph_output())
        ]
        before = {index: self._reads.get((node, index)) for index in inputs}
        scale = _common(list(before.values()))
        if scale is not None and _keeps_grid(node, rule, scale):
            return sum(self._pass_on(value, scale) for value in outputs) > 0
        scale = _common([self._written.get(value) for value in outputs])
        if scale is None or not all(b is None or _same(b, scale) for b in before.values()):
            return False
        open_inputs = [index for index, found in before.items() if found is None]
        return sum(self._pass_back((node, index), scale) for index in open_inputs) > 0

    def _pass_on(self, value: ir.Value, scale: Parameters) -> bool:
        if value in self._written or not value.uses():
            return False
        self._written[value] = scale
        for use in value.uses():
            self._reads.setdefault((use.node, use.idx), scale)
        return True

    def _pass_back(self, use: Use, scale: Parameters) -> bool:
        value = use[0].inputs[use[1]]
        if value is None or constant(value) is not None:
            return False
        if not _same(self._written.get(value, scale), scale):
            return False
        self._written[value] = scale
        self._reads[use] = scale
        return True

    def _read_through(self) -> None:
        """Let all read the quantized tensor where a node can write it as integers.

        Its float twin beside it would keep the whole node in float.
        """
        joined = []
        for value, scale in self._written.items():
            producer = value.producer()
            if producer is None or np.ndim(scale.scale) or not self._reads_integers(producer):
                continue
            loose = [
                (use.node, use.idx)
                for use in value.uses()
                if (use.node, use.idx) not in self._reads and use.node.op_type not in _SHAPE_OPS
            ]
            output = value.is_graph_output() and value.name not in self._results
            if loose or output:
                joined.append(self._names[value])
            self._reads.update(dict.fromkeys(loose, scale))
            if output and value.name is not None:
                self._results[value.name] = scale
        if joined:
            shown = ", ".join(joined[:3]) + (", …" if len(joined) > 3 else "")
            self.notes.append(
                f"readers without a pair of their own read the dequantized tensor: {shown}"
            )

    def _reads_integers(self, node: ir.Node) -> bool:
        rule = RULES.get(node.op_type)
        if rule is None or node in self._refused:
            return False
        return all((node, index) in self._reads for index in self._data_inputs(node, rule))

    def _data_inputs(self, node: ir.Node, rule: OpRule) -> Iterator[int]:
        wanted = range(len(node.inputs)) if rule.data is None else {*rule.data, *rule.weights}
        for index in sorted(wanted):
            value = node.inputs[index] if index < len(node.inputs) else None
            if value is not None and value.dtype in _FLOATS:
                yield index

    # Entries ------------------------------------------------------------------------------

    def _enter(self) -> None:
        for (node, index), scale in self._reads.items():
            value = node.inputs[index]
            assert value is not None
            self._key(value, scale)
        for value, scale in self._written.items():
            if value.is_graph_output() and value.name in self._results:
                self._key(value, scale)

    def _key(self, value: ir.Value, scale: Parameters) -> str:
        """Return the entry of a tensor under a scale, made at its first use."""
        given = _override(scale)
        wanted = (value, given, scale.block_size)
        if wanted not in self._keys:
            name = key = self._names[value]
            number = 0
            while key in self._layout.entries:
                number += 1
                key = f"{name}@{number}"
            role: Literal["activation", "weight"] = (
                "activation" if constant(value) is None else "weight"
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
            if rule is None or (node, 0) not in self._reads or not node.outputs:
                continue
            source, target = node.inputs[0], node.outputs[0]
            assert source is not None
            before, behind = self._reads[node, 0], self._written.get(target)
            if behind is None or not _same(before, behind) or constant(source) is not None:
                continue
            above, below = self._key(source, before), self._key(target, behind)
            if rule.bounds is not None:
                links[above] = below
                if len(source.uses()) == 1 and not source.is_graph_output():
                    producer = source.producer()
                    if producer is not None and self._reads_integers(producer):
                        self._layout.entries[above].absorbed_by = node.name
            elif _moves(node, rule) and node.op_type != "Concat":
                links.setdefault(below, above)
        entries = self._layout.entries
        for key, other in links.items():
            root = entries[other]
            while root.shares is not None:
                root = entries[root.shares]
            if root is not entries[key]:
                entries[key].shares = other
                entries[key].override = None

    def _plan(self, node: ir.Node) -> NodePlan:
        inputs: list[str | None] = [None] * len(node.inputs)
        for index, value in enumerate(node.inputs):
            scale = self._reads.get((node, index))
            if value is not None and scale is not None:
                inputs[index] = self._key(value, scale)
        outputs: list[str | None] = [
            self._key(value, self._written[value]) if value in self._written else None
            for value in node.outputs
        ]
        reason = self._reason(node, outputs)
        rule = RULES.get(node.op_type)
        if rule is not None and rule.bias is not None and reason is None:
            self._add_bias(node, rule, inputs)
        return NodePlan(
            op=node.op_type,
            action="quantize" if reason is None else "float",
            reason=reason,
            inputs=tuple(inputs),
            outputs=tuple(outputs),
        )

    def _reason(self, node: ir.Node, outputs: list[str | None]) -> str | None:
        """Return why a node is left float, or None if it works on integers."""
        rule = RULES.get(node.op_type)
        if node in self._refused:
            return self._refused[node]
        if rule is None:
            return f"there is no integer {node.op_type}"
        if rule.refuse is not None and (refusal := rule.refuse(node)) is not None:
            return refusal.reason
        data = list(self._data_inputs(node, rule))
        missing = [index for index in data if (node, index) not in self._reads]
        if not data:
            return "it works on no floats"
        stored = [i for i in rule.weights if (node, i) in self._reads and i not in missing]
        only_weights = any(constant(node.inputs[i]) is not None for i in stored)
        if missing and not (only_weights and self._recipe.format == "qdq"):
            value = node.inputs[missing[0]]
            is_weight = missing[0] in rule.weights and constant(value) is not None
            kind = "weight" if is_weight else "input"
            name = "" if value is None else value.name
            return f"its {kind} {name!r} has no trained scale"
        activations = [self._reads[node, i] for i in data if i not in (*missing, *stored)]
        if any(scale.axis is not None for scale in activations):
            return "its input has a scale for each channel, which no integer kernel takes"
        if missing or rule.outputs == () or node.op_type in _FLOAT_RESULTS:
            return None
        for index, value in enumerate(node.outputs):
            wanted = rule.outputs is None or index in rule.outputs
            if wanted and outputs[index] is None and (value.uses() or value.is_graph_output()):
                return f"its output {value.name!r} has no trained scale"
        if _moves(node, rule):
            before, behind = self._reads[node, data[0]], self._written[node.outputs[0]]
            if not _same(before, behind) and constant(node.inputs[data[0]]) is None:
                return "its trained scales before and behind it differ"
        return None

    def _add_bias(self, node: ir.Node, rule: OpRule, inputs: list[str | None]) -> None:
        index = rule.bias
        if index is None or index >= len(node.inputs) or inputs[index] is not None:
            return
        value, weight = node.inputs[index], rule.weights[-1]
        bias = constant(value)
        if value is None or bias is None or None in (inputs[0], inputs[weight]):
            return
        if np.ndim(self._reads[node, 0].scale):
            return
        inputs[index] = self._layout.enter_bias(
            self._names[value], value, node, rule, (inputs[0] or "", inputs[weight] or "")
        )


def _misfit(node: ir.Node, index: int, rule: OpRule, parameters: Parameters) -> str | None:
    """Return why no integer kernel takes a weight as it was trained."""
    if parameters.axis is None or parameters.block_size or parameters.qtype.bits != 8:
        return None
    own = None if rule.channel_axis is None else rule.channel_axis(node, index)
    if rule.fixed_axis and parameters.axis != own:
        return f"its weight has scales along axis {parameters.axis}, which its kernel misreads"
    return None


def _moves(node: ir.Node, rule: OpRule) -> bool:
    """Whether an op only moves values: exactly, so that its sides can have one scale."""
    if node.op_type == "Concat":
        return True
    if node.op_type == "Resize":
        mode = node.attributes.get("mode")
        return mode is None or mode.value == "nearest"
    return rule.shares(node) if callable(rule.shares) else rule.shares


def _keeps_grid(node: ir.Node, rule: OpRule, scale: Parameters) -> bool:
    """Whether what an op makes of values on the grid lies on the grid."""
    if rule.bounds is None:
        return True
    bounds = rule.bounds(node)
    if isinstance(bounds, Skip):
        return False
    ends = np.array(bounds, np.float32)
    grid = (np.float32(scale.scale), scale.zero_point)
    cut = fake_quantize(ends, *grid, scale.qtype)
    low, high = dequantize(np.array([scale.qtype.lowest, scale.qtype.highest], np.int64), *grid)
    near = np.abs(cut - np.nan_to_num(ends, posinf=0, neginf=0)) <= 1e-5 * scale.scale
    return bool((near[0] or ends[0] <= low) and (near[1] or ends[1] >= high))


def _common(scales: list[Parameters | None]) -> Parameters | None:
    """Return the one scale that all have, if it is one for the whole tensor."""
    first = scales[0] if scales else None
    if first is None or np.ndim(first.scale):
        return None
    return first if all(s is not None and _same(s, first) for s in scales) else None


def _same(one: Parameters, two: Parameters) -> bool:
    return _override(one) == _override(two) and one.block_size == two.block_size


def _override(scale: Parameters) -> Override:
    return Override(
        qtype=scale.qtype,
        scale=_tupled(np.asarray(scale.scale).tolist()),
        zero_point=_tupled(np.asarray(scale.zero_point).tolist()),
        axis=scale.axis,
    )


def _tupled(values: Any) -> Any:
    return tuple(_tupled(item) for item in values) if isinstance(values, list) else values
