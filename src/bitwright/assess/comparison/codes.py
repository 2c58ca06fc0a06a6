"""The integers of a quantized model, whoever made it: which stand for numbers, and for which."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from bitwright.assess.comparison.packed import packed_weight
from bitwright.assess.sums import Codes
from bitwright.decide.ops import OPERATORS, op_types
from bitwright.decide.ops.quantized import (
    DEQUANTIZERS,
    INTEGER_OPS,
    QUANTIZERS,
    ROUNDERS,
    is_integer_op,
)
from bitwright.graph.constants import constant_of, input_at, is_constant
from bitwright.numerics import dequantize

__all__ = ["QuantizedGraph"]

_PLUMBING = QUANTIZERS | DEQUANTIZERS | ROUNDERS | {"DynamicQuantizeLinear"}
# They move integers and keep what these stand for.
_MOVES = op_types(lambda op: op.keeps_scale)


class QuantizedGraph:
    """A quantized model seen through its quantizers: what each integer tensor means."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.nodes = list(model.graph)

    @cached_property
    def parameters(self) -> dict[ir.Value, tuple[ir.Value, ir.Value | None]]:
        """Integer activation -> the values of its scale and zero point."""
        found: dict[ir.Value, tuple[ir.Value, ir.Value | None]] = {}
        for node in self.nodes:
            integer_op = INTEGER_OPS.get(node.op_type)
            at = None if integer_op is None else integer_op.result
            at = (1, 2) if node.op_type in QUANTIZERS else at
            if at is not None:
                scale, zero_point = input_at(node, at[0]), input_at(node, at[1])
                if scale is not None:
                    found[node.outputs[0]] = scale, zero_point
            elif node.op_type in _MOVES and (first := input_at(node, 0)) in found:
                assert first is not None
                for index in OPERATORS[node.op_type].output_indices(node):
                    found[node.outputs[index]] = found[first]
        return found

    def codes_of(self, value: ir.Value) -> Codes | None:
        """Return what the integers of a tensor stand for, where one constant scale says it."""
        scale, zero_point = self.parameters.get(value, (None, None))
        factor, zero = constant_of(scale), constant_of(zero_point)
        if factor is None or factor.size != 1 or (zero is None and zero_point is not None):
            return None
        dtype = value.dtype if zero_point is None else zero_point.dtype
        kind = (dtype or ir.DataType.UINT8).numpy()
        if np.dtype(kind).kind not in "iu" or np.dtype(kind).itemsize > 2:
            return None
        info = np.iinfo(kind)
        offset = 0 if zero is None else int(zero.reshape(-1)[0])
        return Codes(float(factor.reshape(-1)[0]), offset, int(info.min), int(info.max))

    def origin(self, value: ir.Value) -> ir.Value:
        """Return the tensor that a value is a rounded or dequantized form of."""
        while True:
            maker = value.producer()
            if maker is None or not is_plumbing(maker):
                return value
            source = maker.inputs[0]
            if source is None or (
                maker.op_type == "DynamicQuantizeLinear" and maker.outputs[0] is not value
            ):
                return value
            value = source

    def quantizer_of(self, value: ir.Value) -> ir.Node | None:
        """Return the node that quantizes a float tensor."""
        return next(
            (use.node for use in value.uses() if use.node.op_type in QUANTIZERS and use.idx == 0),
            None,
        )

    def is_quantized(self, value: ir.Value) -> bool:
        """Return whether a tensor is quantized, or rounded to a format, before it is read."""
        return value in self.parameters or any(
            use.node.op_type in QUANTIZERS | ROUNDERS and use.idx == 0 for use in value.uses()
        )

    def works_on_integers(self, node: ir.Node) -> bool:
        """Return whether a node computes with integers, or stands where the runtime makes it so."""
        if is_integer_op(node.op_type) or is_plumbing(node) or node.outputs[0] in self.parameters:
            return True
        makers = [value.producer() for value in node.inputs if value is not None]
        rounding = DEQUANTIZERS | ROUNDERS
        reads = [maker for maker in makers if maker is not None and maker.op_type in rounding]
        if any(maker.inputs[0] is not None and maker.inputs[0].is_initializer() for maker in reads):
            return True
        return bool(reads) and any(self.is_quantized(output) for output in node.outputs)

    def weight(self, value: ir.Value | None) -> npt.NDArray[Any] | None:
        """Return the numbers of a constant input as the node sees them, dequantized if need be."""
        if value is None:
            return None
        maker = value.producer()
        if maker is None or maker.op_type == "Constant":
            array = constant_of(value)
            return array if array is not None and array.dtype.kind == "f" else None
        if maker.op_type not in DEQUANTIZERS:
            return None
        stored, scale = maker.inputs[0], input_at(maker, 1)
        assert stored is not None
        integers, factor = constant_of(stored), constant_of(scale)
        zero = constant_of(input_at(maker, 2))
        if factor is None:
            return None
        if integers is None:  # a weight kept in float behind a pair
            quantizer = stored.producer()
            if quantizer is None or quantizer.op_type not in QUANTIZERS:
                return None
            return None if constant_of(quantizer.inputs[0]) is None else self._through_pair(maker)
        return _restore(
            integers,
            factor,
            zero,
            maker.attributes.get_int("axis", 1),
            maker.attributes.get_int("block_size", 0),
        )

    def weights_of(self, node: ir.Node) -> list[npt.NDArray[Any]]:
        """Return the numbers of all constants that a node reads, its integers dequantized."""
        found = [array for v in node.inputs if (array := self.weight(v)) is not None]
        integer_op = INTEGER_OPS.get(node.op_type)
        axis = None if integer_op is None else integer_op.weight_axis
        if axis is not None:
            integers, factor, zero = (constant_of(input_at(node, index)) for index in (3, 4, 5))
            if integers is not None and factor is not None:
                turned = node.op_type == "QGemm" and node.attributes.get_int("transB", 0) == 1
                axis = 0 if turned else axis % integers.ndim
                found.append(_restore(integers, factor, zero, axis))
        elif (packed := packed_weight(node)) is not None:
            found.append(packed.numbers())
        return found

    def _through_pair(self, dequantizer: ir.Node) -> npt.NDArray[Any] | None:
        """Return what a constant becomes behind a quantizer and a dequantizer."""
        from bitwright.graph import open_session, run_session

        stored = dequantizer.inputs[0]
        assert stored is not None
        maker = stored.producer()
        assert maker is not None and dequantizer.outputs[0].name
        if dequantizer.domain not in ("", "com.microsoft"):
            return None
        graph = ir.convenience.extract(self.model.graph, [], [dequantizer.outputs[0].name])
        graph.opset_imports.update(self.model.opset_imports)
        part = ir.Model(graph, ir_version=self.model.ir_version)
        return run_session(open_session(part), {})[dequantizer.outputs[0].name]


def is_plumbing(node: ir.Node) -> bool:
    """Return whether a node only turns numbers into integers or back, or rounds to a format."""
    return node.op_type in _PLUMBING


def plain_op_type(node: ir.Node) -> str:
    """Return the op that a node does, whatever it computes with.

    >>> plain_op_type(ir.node("QLinearConv", []))
    'Conv'
    """
    integer_op = INTEGER_OPS.get(node.op_type)
    return node.op_type.removeprefix("QLinear") if integer_op is None else integer_op.computes


def activations_of(node: ir.Node) -> list[ir.Value]:
    """Return what a node reads and what is not known before the model runs."""
    return [value for value in node.inputs if value is not None and not _is_fixed(value)]


def _is_fixed(value: ir.Value) -> bool:
    """Return whether a value is a constant, or the dequantized form of one."""
    maker = value.producer()
    while maker is not None and is_plumbing(maker) and maker.inputs[0] is not None:
        value = maker.inputs[0]
        maker = value.producer()
    return is_constant(value)


def _restore(
    integers: npt.NDArray[Any],
    scale: npt.NDArray[Any],
    zero: npt.NDArray[Any] | None,
    axis: int,
    block_size: int = 0,
) -> npt.NDArray[Any]:
    return dequantize(
        integers.astype(np.int64),
        scale.astype(np.float32),
        0 if zero is None else zero.astype(np.int64),
        axis=axis,
        block_size=block_size,
    )
