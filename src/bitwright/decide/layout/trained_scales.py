"""Trained scales: each is kept, and propagated through operators that only move or clip.

Where ops do no more than that, a scale on one side is also given to the other: that changes no
value, and lets the runtime work on integers throughout.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from bitwright.decide.layout.selection import Selector
from bitwright.decide.ops import RULES, OpRule
from bitwright.decide.scales.biases import widened_for_bias
from bitwright.graph.constants import constant_of, input_at, is_constant
from bitwright.numerics import INT8, UINT8, dequantize, fake_quantize
from bitwright.plan import Parameters
from bitwright.recipe import Override, Recipe

Use = tuple[ir.Node, int]
"""A node, and which of its inputs."""

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
# What asks a tensor for its shape needs no values.
_SHAPE_OPS = frozenset({"Shape", "Size"})


class TrainedScales:
    """The scale of each read, each written tensor and each result, and the nodes without one."""

    def __init__(
        self,
        model: ir.Model,
        reads: Mapping[Use, Parameters],
        results: Mapping[str, Parameters],
        recipe: Recipe,
        names: Mapping[ir.Value, str],
    ) -> None:
        self.reads = dict(reads)
        self.results = dict(results)
        self.written: dict[ir.Value, Parameters] = {}
        """The one scale of a tensor that a node writes."""
        self.refused: dict[ir.Node, str] = {}
        """Nodes that stay float whatever their scales, and why."""
        self.excluded: set[ir.Node] = set()
        self.notes: list[str] = []
        self._model = model
        self._nodes = list(model.graph.all_nodes())
        self._names = names
        self._exclude(recipe)
        self._fit_kernels()
        self._find_written()
        while sum(self._propagate(node) for node in self._nodes):
            pass
        self._read_through()

    def _exclude(self, recipe: Recipe) -> None:
        """Let the nodes that the user named compute in float, with float weights.

        What they read stays as trained, so that the nodes before them can write integers.
        """
        select = recipe.select
        selector = Selector(self._nodes, select)
        for node in self._nodes:
            reason = selector.kept_float(node)
            if reason is None and select.op_types is not None:
                reason = selector.not_chosen(node)
            if reason is not None:
                self.refused[node] = reason
                self.excluded.add(node)
        for node, index in list(self.reads):
            if node in self.excluded and is_constant(node.inputs[index]):
                del self.reads[node, index]

    def _find_written(self) -> None:
        for (node, index), parameters in self.reads.items():
            value = node.inputs[index]
            if value is not None and not is_constant(value):
                self.written.setdefault(value, parameters)
        for graph in self._model.graphs():
            for value in graph.outputs:
                if value.name is not None and value.name in self.results:
                    self.written[value] = self.results[value.name]

    # Kernels ------------------------------------------------------------------------------

    def _fit_kernels(self) -> None:
        """Write weights as the integer kernels take them; those that none takes stay float.

        Weights lie on their grid already, so a float weight computes what was trained.
        """
        for (node, index), parameters in list(self.reads.items()):
            rule = RULES.get(node.op_type)
            if rule is None or index not in rule.weights or not is_constant(node.inputs[index]):
                continue
            source = self.reads.get((node, 0)) if index else None
            if parameters.qtype is UINT8 and source is not None and source.qtype is INT8:
                # The same grid with signed integers, for which there are kernels.
                parameters = replace(
                    parameters, qtype=INT8, zero_point=np.asarray(parameters.zero_point) - 128
                )
                self.reads[node, index] = parameters
            reason = _kernel_refusal(node, index, rule, parameters)
            if reason is not None:
                self.refused[node] = reason
                del self.reads[node, index]
            elif source is not None:
                self._prevent_bias_overflow(node, index, rule, source)

    def _prevent_bias_overflow(
        self, node: ir.Node, index: int, rule: OpRule, source: Parameters
    ) -> None:
        """Enlarge the scale of a weight that is next to nothing beside its bias.

        At its own scale the bias would overflow int32, and the runtime does not look. What the
        weight loses is a billionth of the bias.
        """
        weight, place = self.reads[node, index], rule.bias
        bias = None if place is None else constant_of(input_at(node, place))
        tile = 1 if rule.tile is None else rule.tile(node)
        scale = np.asarray(weight.scale)
        if bias is None or np.ndim(source.scale) or weight.block_size or scale.ndim > 1:
            return
        if scale.ndim and (bias.ndim == 0 or bias.shape[-1] != scale.size * tile):
            return
        wider = widened_for_bias(scale, source.scale, bias, tile)
        if wider is not None:
            self.reads[node, index] = replace(weight, scale=wider)
            self.notes.append(
                f"enlarged the weight scale of {node.name!r} where its bias overflowed int32"
            )

    # Propagation -------------------------------------------------------------------------

    def _propagate(self, node: ir.Node) -> bool:
        """Give the scale on one side of an op that moves or clips to its other side."""
        rule = RULES.get(node.op_type)
        if rule is None or node in self.excluded:
            return False
        if not only_moves(node, rule) and rule.bounds is None:
            return False
        inputs = list(self.data_inputs(node, rule))
        results = (node.outputs[index] for index in rule.output_indices(node))
        outputs = [value for value in results if value.uses() or value.is_graph_output()]
        before = {index: self.reads.get((node, index)) for index in inputs}
        scale = _common(list(before.values()))
        if scale is not None and _keeps_grid(node, rule, scale):
            return sum(self._propagate_down(value, scale) for value in outputs) > 0
        scale = _common([self.written.get(value) for value in outputs])
        if scale is None or not all(b is None or same_scale(b, scale) for b in before.values()):
            return False
        open_inputs = [index for index, found in before.items() if found is None]
        return sum(self._propagate_up((node, index), scale) for index in open_inputs) > 0

    def _propagate_down(self, value: ir.Value, scale: Parameters) -> bool:
        if value in self.written or not value.uses():
            return False
        self.written[value] = scale
        for use in value.uses():
            self.reads.setdefault((use.node, use.idx), scale)
        return True

    def _propagate_up(self, use: Use, scale: Parameters) -> bool:
        value = use[0].inputs[use[1]]
        if value is None or is_constant(value):
            return False
        if not same_scale(self.written.get(value, scale), scale):
            return False
        self.written[value] = scale
        self.reads[use] = scale
        return True

    def _read_through(self) -> None:
        """Let all read the quantized tensor where a node can write it as integers.

        The float tensor beside it would keep the whole node in float.
        """
        joined = []
        for value, scale in self.written.items():
            producer = value.producer()
            if producer is None or np.ndim(scale.scale) or not self.reads_integers(producer):
                continue
            without_scale = [
                (use.node, use.idx)
                for use in value.uses()
                if (use.node, use.idx) not in self.reads and use.node.op_type not in _SHAPE_OPS
            ]
            output = value.is_graph_output() and value.name not in self.results
            if without_scale or output:
                joined.append(self._names[value])
            self.reads.update(dict.fromkeys(without_scale, scale))
            if output and value.name is not None:
                self.results[value.name] = scale
        if joined:
            shown = ", ".join(joined[:3]) + (", …" if len(joined) > 3 else "")
            self.notes.append(
                f"readers without a pair of their own read the dequantized tensor: {shown}"
            )

    def reads_integers(self, node: ir.Node) -> bool:
        """Whether all that a node computes with has a scale, and nothing speaks against it."""
        rule = RULES.get(node.op_type)
        if rule is None or node in self.refused:
            return False
        return all((node, index) in self.reads for index in self.data_inputs(node, rule))

    def data_inputs(self, node: ir.Node, rule: OpRule) -> Iterator[int]:
        """Yield the inputs of a node that are floats to compute with."""
        for index in rule.data_inputs(node):
            value = node.inputs[index]
            if value is not None and value.dtype in _FLOATS:
                yield index


def _kernel_refusal(node: ir.Node, index: int, rule: OpRule, parameters: Parameters) -> str | None:
    """Return why no integer kernel takes a weight as it was trained."""
    if parameters.axis is None or parameters.block_size or parameters.qtype.bits != 8:
        return None
    own = None if rule.channel_axis is None else rule.channel_axis(node, index)
    if rule.fixed_axis and parameters.axis != own:
        return f"its weight has scales along axis {parameters.axis}, which its kernel misreads"
    return None


def only_moves(node: ir.Node, rule: OpRule) -> bool:
    """Return whether an op only moves values: exactly, so that its sides can have one scale."""
    if node.op_type == "Concat":
        return True
    if node.op_type == "Resize":
        return node.attributes.get_string("mode", "nearest") == "nearest"
    return rule.keeps_scale_of(node)


def _keeps_grid(node: ir.Node, rule: OpRule, scale: Parameters) -> bool:
    """Whether what an op makes of values on the grid lies on the grid."""
    if rule.bounds is None:
        return True
    bounds = rule.bounds(node)
    if bounds is None:
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
    return first if all(s is not None and same_scale(s, first) for s in scales) else None


def same_scale(one: Parameters, two: Parameters) -> bool:
    """Return whether two tensors are quantized in exactly the same way."""
    return as_override(one) == as_override(two) and one.block_size == two.block_size


def as_override(scale: Parameters) -> Override:
    """Return the parameters as a recipe would prescribe them: a value that can be compared."""
    return Override(
        qtype=scale.qtype,
        scale=_tupled(np.asarray(scale.scale).tolist()),
        zero_point=_tupled(np.asarray(scale.zero_point).tolist()),
        axis=scale.axis,
    )


def _tupled(values: Any) -> Any:
    return tuple(_tupled(item) for item in values) if isinstance(values, list) else values
