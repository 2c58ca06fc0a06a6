"""Quantization-aware training: remove the Q/DQ pairs of a model, and keep the trained scales.

Activations lose their pairs, and each reader remembers through which scale it read. Weights come
out as the values they had behind their pair: on their grid, so that rounding them again under the
trained scale gives the trained integers, bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from bitwright.decide.ops import op_types
from bitwright.errors import ModelError
from bitwright.graph import NameScope, infer_shapes, iter_graphs
from bitwright.graph.constants import is_constant
from bitwright.graph.editing import (
    add_initializer,
    drop_if_unused,
    graph_of,
    insert_after,
    like,
    remove_nodes,
)
from bitwright.numerics.quantize import dequantize, quantize
from bitwright.plan import Parameters
from bitwright.prepare.fold_batch_norm import fold_batch_norm
from bitwright.prepare.fold_gemm_scalars import fold_gemm_scalars
from bitwright.prepare.fold_scale_shift import fold_scale_shift
from bitwright.prepare.pairs import (
    Pair,
    is_dequantizer,
    is_quantizer,
    lift_dequantizers,
    read_pair,
    same_parameters,
    signature,
)
from bitwright.prepare.trained_weights import constant_array, move_axis, move_values, rescale
from bitwright.support.array_types import Array

Use = tuple[ir.Node, int]

# Their constant bias is stored at (input scale x weight scale), whatever it was trained with.
_BIASED = op_types(lambda op: op.bias is not None)
# What moves a constant, and is computed once and for all.
_RESHAPING = op_types(lambda op: op.reshapes)


@dataclass(slots=True)
class Trained:
    """The scale through which each node input, and each graph output, is read."""

    reads: dict[Use, Parameters] = field(default_factory=dict)
    results: dict[str, Parameters] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def read_trained(model: ir.Model) -> Trained:
    """Take every Q/DQ pair out of the model, in place, and return what it said.

    Pairs in a row are one where one of them covers the range of the other: the narrower stays,
    which moves a value by half a step of the wider at most. (The runtime would merge them by a
    scale of its own.) What is folded into a weight (a batch norm, a scale) multiplies its trained
    scale and leaves its integers. Quantizers that belong to no pair stay where they are, with a
    note.
    """
    trained = _PairRemover(model).remove_all()
    infer_shapes(model)
    return trained


class _PairRemover:
    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._names = NameScope(model)
        self._trained = Trained()
        self._made: dict[Any, ir.Value] = {}

    def remove_all(self) -> Trained:
        for _, graph in iter_graphs(self._model):
            lift_dequantizers(graph)
        refused: dict[str, str] = {}
        found = self._remove_pairs(refused, lambda pair: is_constant(pair.source))
        self._fold()
        found += self._remove_pairs(refused, lambda pair: True)
        if not found:
            why = f" ({next(iter(refused.values()))})" if refused else ""
            raise ModelError(
                f"the model has no Q/DQ pairs from training{why}; quantize it with calibration "
                "data instead."
            )
        trained = self._trained
        for node, index in list(trained.reads):
            if node.graph is None or node.inputs[index] is None:
                del trained.reads[node, index]
        self._chain_differing_pairs()
        trained.notes.insert(0, f"read {found} Q/DQ pair{'' if found == 1 else 's'} from training")
        for reason in list(dict.fromkeys(refused.values()))[:3]:
            trained.notes.append(f"left as it is: {reason}")
        self._model.graph.sort()  # bodies, too
        return trained

    def _remove_pairs(self, refused: dict[str, str], wanted: Callable[[Pair], bool]) -> int:
        """Take out the pairs of one kind, those before others first."""
        found = 0
        for _, graph in iter_graphs(self._model):
            for node in list(graph):
                if not is_dequantizer(node):
                    continue
                pair = read_pair(node)
                if isinstance(pair, str):
                    refused[node.name or ""] = pair
                    continue
                if not wanted(pair):
                    continue
                refused.pop(node.name or "", None)
                if is_constant(pair.source):
                    if pair.result.is_graph_output():
                        refused[node.name or ""] = f"{node.name!r} writes a constant graph output"
                        continue
                    self._remove_constant_pair(pair)
                else:
                    self._remove_activation_pair(pair)
                found += 1
                self._remove_unread(node)
        return found

    def _remove_unread(self, node: ir.Node | None) -> None:
        """Remove a pair from its end on, as far as nothing else reads it."""
        while node is not None and (
            is_dequantizer(node) or is_quantizer(node) or node.op_type == "Clip"
        ):
            if any(v.uses() or v.is_graph_output() for v in node.outputs):
                return
            source = node.inputs[0]
            for index in range(len(node.inputs)):
                self._trained.reads.pop((node, index), None)
            remove_nodes([node])
            node = None if source is None else source.producer()

    # Constants ----------------------------------------------------------------------------

    def _remove_constant_pair(self, pair: Pair) -> None:
        """Put the dequantized values in the place of the pair."""
        parameters = _with_axis(pair.parameters, pair.source)
        array = constant_array(pair.source)
        dtype = pair.result.dtype or ir.DataType.FLOAT
        axis, block = parameters.axis, parameters.block_size
        scale = np.asarray(parameters.scale).astype(np.float32)
        if pair.quantizer is not None:
            array = quantize(
                array, scale, parameters.zero_point, parameters.qtype, axis=axis, block_size=block
            )
        if pair.levels is not None:
            array = np.clip(array, *pair.levels).astype(array.dtype)
        floats = dequantize(
            array, scale, parameters.zero_point, axis=axis, block_size=block, dtype=dtype.numpy()
        )
        key = (pair.source, pair.levels, signature(parameters), dtype)
        if key not in self._made:
            self._made[key] = self._store(pair, floats)
        self._replace_reads(pair.result, self._made[key], parameters)

    def _store(self, pair: Pair, floats: Array) -> ir.Value:
        """Return an initializer of these values, under the old one's name where that is free."""
        old = pair.source
        label = (old.name or "weight").removesuffix("_quantized")
        graph = old.graph
        if len(old.uses()) == 1 and old.name == label and isinstance(graph, ir.Graph):
            graph.initializers.pop(label)
            old.name = None
            return add_initializer(graph, None, label, floats)
        return add_initializer(graph_of(pair.result), self._names, label, floats)

    def _replace_reads(self, old: ir.Value, new: ir.Value, parameters: Parameters | None) -> None:
        """Let the readers of one value read a constant, each as its kind needs it."""
        for node, index in list(old.uses()):
            node.replace_input_with(index, new)
            if parameters is None or (index == 2 and node.op_type in _BIASED):
                continue
            if is_quantizer(node):
                continue  # the pair that it opens takes the values as they now are
            if node.op_type in _RESHAPING and self._move_constant(node, parameters):
                continue
            if all(v is None or is_constant(v) for v in node.inputs):
                continue  # what is computed from it is a constant without a grid
            self._trained.reads[node, index] = parameters
        drop_if_unused(new)

    def _move_constant(self, node: ir.Node, parameters: Parameters) -> bool:
        """Fold an op that moves the values of a constant, and move its scale with them."""
        source, result = node.inputs[0], node.outputs[0]
        if result.is_graph_output() or not all(v is None or is_constant(v) for v in node.inputs):
            return False
        array = constant_array(source)
        moved = move_values(node, array)
        if moved is None:
            return False
        axis = move_axis(node, array.shape, moved.shape, parameters)
        carried = None
        if axis is not None or not np.ndim(parameters.scale):
            carried = replace(parameters, axis=axis)
        name = (source.name if source else None) or "weight"
        value = add_initializer(graph_of(result), self._names, name, moved)
        self._replace_reads(result, value, carried)
        remove_nodes([node])
        return True

    def _fold(self) -> None:
        """Fold what stands behind trained weights, as exporters leave batch norms there."""
        before = {use: constant_array(use[0].inputs[use[1]]) for use in self._trained.reads}
        changed = 0
        while more := (
            fold_batch_norm(self._model).changed
            + fold_scale_shift(self._model, ahead=False).changed
            + fold_gemm_scalars(self._model).changed
        ):
            changed += more
        if not changed:
            return
        for (node, index), old in before.items():
            parameters = self._trained.reads[node, index]
            new = None if node.graph is None else constant_array(node.inputs[index])
            if new is None or new is old or np.array_equal(new, old):
                continue
            scaled = rescale(node, old, new, parameters)
            if scaled is None:
                del self._trained.reads[node, index]
                self._trained.notes.append(
                    f"left the weight of {node.name!r} float: what was folded into it does not "
                    "fit its trained scale"
                )
            else:
                self._trained.reads[node, index] = scaled

    # Activations --------------------------------------------------------------------------

    def _remove_activation_pair(self, pair: Pair) -> None:
        """Remove the pair of an activation: its readers read the source, and the scale is kept."""
        assert pair.quantizer is not None
        parameters = _with_axis(pair.parameters, pair.source)
        source = pair.source
        earlier = self._trained.reads.get((pair.quantizer, 0))
        if earlier is not None and not same_parameters(earlier, parameters):
            if _covers(parameters, earlier):
                parameters = earlier
            elif not _covers(earlier, parameters):
                source = self._between(source, earlier, parameters)
        if pair.levels is not None:
            source = self._clipped(source, pair, parameters)
        if pair.result.is_graph_output():
            source = self._name_result(source, pair.result)
            assert source.name is not None
            self._trained.results[source.name] = parameters
        for node, index in list(pair.result.uses()):
            node.replace_input_with(index, source)
            self._trained.reads[node, index] = parameters

    def _between(self, source: ir.Value, before: Parameters, behind: Parameters) -> ir.Value:
        """Return a copy of a tensor for a second pair behind its first."""
        key = (source, signature(before), signature(behind))
        if key not in self._made:
            output = self._append("Identity", source)
            producer = output.producer()
            assert producer is not None
            self._trained.reads[producer, 0] = before
            self._made[key] = output
        return self._made[key]

    def _clipped(self, source: ir.Value, pair: Pair, parameters: Parameters) -> ir.Value:
        """Return the tensor cut to what the levels of the pair let through."""
        assert pair.levels is not None
        key = (source, pair.levels, signature(parameters))
        if key not in self._made:
            if np.ndim(parameters.scale):
                raise ModelError(
                    f"tensor {source.name!r} has a scale for each channel and a Clip inside its "
                    "pair, which is not supported; export it without the Clip."
                )
            dtype = (source.dtype or ir.DataType.FLOAT).numpy()
            levels = np.array(pair.levels)
            ends = dequantize(levels, np.float32(parameters.scale), parameters.zero_point)
            bounds = [
                add_initializer(
                    graph_of(source), self._names, f"{source.name}_{word}", np.asarray(end, dtype)
                )
                for word, end in zip(("lowest", "highest"), ends, strict=True)
            ]
            self._made[key] = self._append("Clip", source, *bounds)
        return self._made[key]

    def _append(self, op_type: str, source: ir.Value, *others: ir.Value) -> ir.Value:
        """Add a node right behind the tensor that it reads."""
        name = self._names.fresh(f"{source.name}_{op_type}")
        output = like(source, self._names.fresh(f"{name}_output"))
        node = ir.node(op_type, [source, *others], outputs=[output], name=name)
        insert_after(graph_of(source), node, source.producer())
        return output

    def _name_result(self, source: ir.Value, result: ir.Value) -> ir.Value:
        """Let a graph output be read before its pair, under its own name."""
        producer = source.producer()
        if producer is None or source.is_graph_output() or graph_of(source) is not graph_of(result):
            source = self._append("Identity", source)
        name, graph = result.name, graph_of(result)
        assert name is not None
        result.name = self._names.fresh(f"{name}_dequantized")
        source.name = name
        source.shape = source.shape if result.shape is None else result.shape
        for index, value in enumerate(graph.outputs):
            if value is result:
                graph.outputs[index] = source
        return source

    def _chain_differing_pairs(self) -> None:
        """Put pairs of one tensor that differ behind its widest one.

        A runtime fuses the node that writes a tensor with one quantizer, not with two.
        """
        by_value: dict[ir.Value, dict[Any, list[Use]]] = {}
        for (node, index), parameters in self._trained.reads.items():
            value = node.inputs[index]
            if value is not None and value.producer() is not None:
                groups = by_value.setdefault(value, {})
                groups.setdefault(signature(parameters), []).append((node, index))
        for value, groups in by_value.items():
            parameters_read = [self._trained.reads[uses[0]] for uses in groups.values()]
            if value.is_graph_output() and (own := self._trained.results.get(value.name or "")):
                widest = own
            else:
                widest = max(
                    parameters_read,
                    key=lambda p: float(np.max(p.scale)) * (p.qtype.highest - p.qtype.lowest),
                )
            if len(groups) < 2 and same_parameters(parameters_read[0], widest):
                continue
            if any(np.ndim(p.scale) for p in (*parameters_read, widest)):
                continue
            for uses in groups.values():
                own = self._trained.reads[uses[0]]
                if same_parameters(own, widest):
                    continue
                copy = self._between(value, widest, own)
                for node, index in uses:
                    node.replace_input_with(index, copy)
            self._trained.notes.append(
                f"tensor {value.name!r} has pairs that differ; all read through the widest one"
            )


def _covers(one: Parameters, two: Parameters) -> bool:
    """Return whether what the second can represent lies in the range of the first."""
    if np.ndim(one.scale) or np.ndim(two.scale) or not one.qtype.is_integer:
        return False
    (low, high), (inner_low, inner_high) = (
        [(end - p.zero_point) * p.scale for end in (p.qtype.lowest, p.qtype.highest)]
        for p in (one, two)
    )
    return bool(low <= inner_low and inner_high <= high)


def _with_axis(parameters: Parameters, value: ir.Value) -> Parameters:
    """Return the parameters with an axis that counts from the front."""
    if parameters.axis is None or parameters.axis >= 0 or value.shape is None:
        return parameters
    return replace(parameters, axis=parameters.axis + len(value.shape))
