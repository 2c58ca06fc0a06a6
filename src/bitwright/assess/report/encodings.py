"""How a quantized model, whoever made it, stores the tensors of each of its nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from bitwright.assess.comparison.matching import match_tensors
from bitwright.assess.comparison.packed import PackedWeight, packed_weight
from bitwright.assess.comparison.units import Units
from bitwright.decide.ops.quantized import DEQUANTIZERS, INTEGER_OPS, ROUNDERS
from bitwright.graph.constants import constant_of, input_at
from bitwright.numerics import dequantize
from bitwright.numerics.types import QTYPES
from bitwright.plan import QuantPlan

__all__ = ["Encoding", "planned_weights", "read_encodings"]

Array = npt.NDArray[Any]

# Integer op -> where a weight, its scale and its zero point stand among the inputs.
_WEIGHTS = {op.op_type: op.weight for op in INTEGER_OPS.values() if op.weight and op.result}
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
    """A weight in blocks of few bits instead; it has a scale for each block."""
    turned: bool = False
    """Whether the float model has such a weight the other way round."""


def read_encodings(units: Units) -> dict[str, list[Encoding]]:
    """Return node of the quantized model -> its quantized inputs, weights and outputs.

    Only what has constant scales is there: a dynamic quantizer has none before it runs.
    """
    return _Reader(units).read()


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


class _Reader:
    def __init__(self, units: Units) -> None:
        self._graph = units.graph
        self._floats = {cut.main: cut.plain_main for cut in units.cuts if cut.main is not None}
        matched = match_tensors(units.plain, self._graph)
        self._names = {value: original.name or "" for value, original in matched.items()}
        inputs = {value.name for value in units.plain.graph.inputs}
        for value in units.quantized.graph.inputs:
            if value.name in inputs:
                self._names.setdefault(value, value.name or "")

    def read(self) -> dict[str, list[Encoding]]:
        return {
            node.name or node.outputs[0].name or "": list(self._encodings(node))
            for node in self._graph.nodes
        }

    def _encodings(self, node: ir.Node) -> Iterator[Encoding]:
        yield from self._blocks(node)
        weight = _WEIGHTS.get(node.op_type)
        for index, value in enumerate(node.inputs):
            if value is None:
                continue
            if weight is not None and index == weight[0] and constant_of(value) is not None:
                scale, zero_point = (None if at is None else node.inputs[at] for at in weight[1:])
                yield from self._constant(value, scale, zero_point, index, 0)
                continue
            maker = value.producer()
            if maker is not None and maker.op_type in ROUNDERS:
                yield from self._rounded("input", maker)
                continue
            if maker is None or maker.op_type not in DEQUANTIZERS:
                yield from self._activation("input", value)
                continue
            stored = maker.inputs[0]
            assert stored is not None
            if constant_of(stored) is None:
                yield from self._activation("input", stored)
            else:
                zero = input_at(maker, 2)
                axis = maker.attributes.get_int("axis", 1)
                block = maker.attributes.get_int("block_size", 0)
                yield from self._constant(stored, maker.inputs[1], zero, index, axis, block)
        for value in node.outputs[:1]:
            rounder = next((use.node for use in value.uses() if use.node.op_type in ROUNDERS), None)
            if rounder is not None:
                yield from self._rounded("output", rounder)
                continue
            quantizer = self._graph.quantizer_of(value)
            yield from self._activation(
                "output", value if quantizer is None else quantizer.outputs[0]
            )

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
            turned=packed.is_table or bool(original.attributes.get_int("transB", 0)),
        )

    def _rounded(self, label: str, rounder: ir.Node) -> Iterator[Encoding]:
        """Yield what one op rounds to a format, which has a scale only as FixNeuron."""
        source, scale, zero_point = ([*rounder.inputs, None, None])[:3]
        if source is None:
            return
        stored = constant_of(source)
        name = self._names.get(source) if stored is None else (source.name or "")
        numbers = None if zero_point is None else _numbers(scale, zero_point, zero_point)
        if numbers is None:
            numbers = _block_format(rounder), np.zeros(0), np.zeros(0)
        axis = rounder.attributes.get_int("axis", 1) if numbers[1].size > 1 else None
        if name is None or (stored is not None and stored.ndim < 2):
            return
        if stored is not None:
            label, name = "weight", name.removesuffix(_ENDING)
        qtype, factor, zero = numbers
        yield Encoding(label, name, qtype, factor, zero, axis, stored)

    def _activation(self, label: str, integers: ir.Value) -> Iterator[Encoding]:
        """Yield the encoding of an integer tensor, if it is one and known in the float model."""
        scale, zero_point = self._graph.parameters.get(integers, (None, None))
        name = self._names.get(self._graph.origin(integers), self._names.get(integers))
        if name is not None and (numbers := _numbers(scale, zero_point, integers)) is not None:
            yield Encoding(label, name, *numbers)

    def _constant(
        self,
        stored: ir.Value,
        scale: ir.Value | None,
        zero_point: ir.Value | None,
        index: int,
        axis: int,
        block_size: int = 0,
    ) -> Iterator[Encoding]:
        integers = constant_of(stored)
        numbers = _numbers(scale, zero_point, stored)
        if integers is None or numbers is None:
            return
        qtype, factor, zero = numbers
        values = dequantize(
            integers.astype(np.int64), factor.astype(np.float32), zero, axis=axis,
            block_size=block_size,
        )  # fmt: skip
        label = "bias" if index > 1 and qtype == "int32" else "weight"
        name = (stored.name or "").removesuffix(_ENDING)
        per_channel = factor.size > 1 and not block_size
        yield Encoding(label, name, qtype, factor, zero, axis if per_channel else None, values)


def _numbers(
    scale: ir.Value | None, zero_point: ir.Value | None, integers: ir.Value
) -> tuple[str, Array, Array] | None:
    """Return the type, scale and zero point of an integer tensor, where they are constant."""
    factor = constant_of(scale)
    if factor is None or not factor.size:
        return None
    zero = constant_of(zero_point)
    dtype = integers.dtype if integers.dtype is not None else None
    if dtype is None and zero_point is not None:
        dtype = zero_point.dtype
    qtype = "uint8" if dtype is None else dtype.name.lower()
    if qtype not in QTYPES:
        return None
    factor = factor.astype(np.float64)
    whole = np.zeros(factor.shape, np.int64) if zero is None else zero.astype(np.int64)
    return qtype, factor, whole


def _block_format(rounder: ir.Node) -> str:
    """Return a number format of blocks in words.

    >>> _block_format(ir.node("MXFixNeuron", [], {"element_dtype": "int8", "block_size": 32}))
    'int8 in blocks of 32 with an exponent'
    """
    element = rounder.attributes.get_string("element_dtype", "")
    kind = element or f"{rounder.attributes.get_int('bit_width', 16)} bits"
    return f"{kind} in blocks of {rounder.attributes.get_int('block_size', 8)} with an exponent"
