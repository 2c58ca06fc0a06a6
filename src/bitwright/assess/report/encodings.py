"""Encodings: type, scale and zero point of every tensor of every node of a quantized model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from bitwright.assess.comparison.matching import match_tensors
from bitwright.assess.comparison.units import Units
from bitwright.graph import DEQUANTIZERS, ROUNDERS, PackedWeight, constant_of, packed_weight
from bitwright.graph.quantizers import Quantizer, quantizer_at, stored_weight
from bitwright.plan import QuantPlan
from bitwright.support.array_types import Array

_ENDING = "_quantized"


@dataclass(frozen=True, slots=True)
class Encoding:
    """One tensor of a node: its name in the float model, and what its integers stand for."""

    label: str
    """What it is to the node: "input", "weight", "bias" or "output"."""
    tensor: str
    qtype: str
    scale: Array
    zero_point: Array
    axis: int | None = None
    """The axis of a weight that the scales belong to."""
    stored: Array | None = None
    """The numbers that the integers of a constant stand for."""
    packed: PackedWeight | None = None
    """A weight in low-bit blocks instead; it has a scale for each block."""
    transposed: bool = False
    """Whether the float model has such a weight transposed."""


def read_encodings(units: Units) -> dict[str, list[Encoding]]:
    """Return node of the quantized model -> its quantized inputs, weights and outputs.

    Only what has constant scales is there: a dynamic quantizer has none before it runs.
    """
    encodings = _NodeEncodings(units)
    return {
        node.name or node.outputs[0].name or "": list(encodings.read(node))
        for node in units.quantized.graph
    }


def planned_weights(
    plan: QuantPlan, weight: Callable[[str], Array | None]
) -> dict[str, list[Encoding]]:
    """Return node -> its weights as a plan stores them, in whatever form the model has them."""
    found: dict[str, list[Encoding]] = {}
    for name, node in plan.nodes.items():
        for key in node.inputs:
            entry = None if key is None else plan.tensors.get(key)
            array = None if entry is None else weight(entry.tensor)
            if key is None or entry is None or entry.role != "weight" or array is None:
                continue
            if not entry.qtype.needs_range:
                continue
            stored = plan.parameters(key)
            found.setdefault(name, []).append(
                Encoding(
                    "weight",
                    entry.tensor,
                    entry.qtype.name,
                    np.asarray(stored.scale, np.float64),
                    np.asarray(stored.zero_point, np.int64),
                    None if stored.block_size or stored.axis is None else stored.axis % array.ndim,
                    array,
                )
            )
    return found


class _NodeEncodings:
    """Reads the encodings of nodes, under the names that tensors have in the float model."""

    def __init__(self, units: Units) -> None:
        self._graph = units.graph
        self._floats = {cut.main: cut.float_main for cut in units.cuts if cut.main is not None}
        inputs = {value.name for value in units.float_model.graph.inputs}
        self._names = {
            value: value.name or ""
            for value in units.quantized.graph.inputs
            if value.name in inputs
        }
        for value, original in match_tensors(units.float_model, self._graph).items():
            self._names[value] = original.name or ""

    def read(self, node: ir.Node) -> Iterator[Encoding]:
        yield from self._blocks(node)
        weight = None if node.op_type in DEQUANTIZERS else stored_weight(node)
        for index, value in enumerate(node.inputs):
            if value is not None:
                own = weight if weight is not None and value is weight.values else None
                yield from self._input(index, value, own)
        for value in node.outputs[:1]:
            rounder = next((use.node for use in value.uses() if use.node.op_type in ROUNDERS), None)
            quantizer = self._graph.quantizer_of(value)
            if rounder is not None:
                yield from self._rounded("output", rounder)
            else:
                integers = value if quantizer is None else quantizer.outputs[0]
                yield from self._activation("output", integers)

    def _input(self, index: int, value: ir.Value, stored: Quantizer | None) -> Iterator[Encoding]:
        maker = value.producer()
        if maker is not None and maker.op_type in ROUNDERS:
            yield from self._rounded("input", maker)
            return
        if maker is not None and maker.op_type in DEQUANTIZERS:
            stored, value = stored_weight(maker), maker.inputs[0] or value
        if stored is None:
            yield from self._activation("input", value)
            return
        label = "bias" if index > 1 and stored.type_name == "int32" else "weight"
        name = ("" if stored.values is None else stored.values.name or "").removesuffix(_ENDING)
        axis = None if stored.block_size else stored.axis
        yield from _encode(label, name, stored, axis, stored.numbers())

    def _blocks(self, node: ir.Node) -> Iterator[Encoding]:
        """Yield the weight that a node keeps in blocks, by the name of the float one."""
        packed, original = packed_weight(node), self._floats.get(node)
        if packed is None or original is None:
            return
        matrices = [v for v in original.inputs if (a := constant_of(v)) is not None and a.ndim == 2]
        if not matrices or matrices[0] is None:
            return
        sizes = np.abs(packed.tensors.scales)
        kind = f"uint{packed.tensors.bits} in blocks of {packed.tensors.block_size}"
        yield Encoding(
            "weight",
            matrices[0].name or "",
            kind,
            np.array([sizes.min(), sizes.max()], np.float64),
            np.array(1 << (packed.tensors.bits - 1)),
            packed=packed,
            transposed=packed.is_table or bool(original.attributes.get_int("transB", 0)),
        )

    def _rounded(self, label: str, rounder: ir.Node) -> Iterator[Encoding]:
        """Yield what one op rounds to a format, which has a scale only as FixNeuron."""
        source = rounder.inputs[0]
        if source is None:
            return
        stored = constant_of(source)
        name = self._names.get(source) if stored is None else (source.name or "")
        if name is None or (stored is not None and stored.ndim < 2):
            return
        if stored is not None:
            label, name = "weight", name.removesuffix(_ENDING)
        found = quantizer_at(rounder)
        if found.scale_value is not None and found.zero_value is not None:
            yield from _encode(label, name, found, found.axis, stored)
        else:
            format_name = _block_format(rounder)
            yield Encoding(label, name, format_name, np.zeros(0), np.zeros(0), None, stored)

    def _activation(self, label: str, integers: ir.Value) -> Iterator[Encoding]:
        """Yield the encoding of an integer tensor, if it is one and known in the float model."""
        quantizer = self._graph.parameters.get(integers)
        name = self._names.get(self._graph.source_of(integers), self._names.get(integers))
        if name is not None and quantizer is not None:
            yield from _encode(label, name, quantizer)


def _encode(
    label: str,
    name: str,
    quantizer: Quantizer,
    axis: int | None = None,
    stored: Array | None = None,
) -> Iterator[Encoding]:
    """Yield an encoding, where scale and zero point are constant; `axis` is that of several."""
    found, qtype = quantizer.constants(), quantizer.qtype
    if found is not None and qtype is not None:
        several = found[1].size > 1
        yield Encoding(label, name, qtype.name, *found, axis if several else None, stored)


def _block_format(rounder: ir.Node) -> str:
    """Return a number format of blocks in words."""
    element = rounder.attributes.get_string("element_dtype", "")
    kind = element or f"{rounder.attributes.get_int('bit_width', 16)} bits"
    return f"{kind} in blocks of {rounder.attributes.get_int('block_size', 8)} with an exponent"
