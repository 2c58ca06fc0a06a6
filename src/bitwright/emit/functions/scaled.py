"""Bodies of VitisQuantizeLinear, VitisDequantizeLinear and FixNeuron for every number type.

A model has one body for each of these names: overloads would allow more, but ONNX Runtime before
1.27 takes any of them for all. So a body is written for the types that occur in the model. Types
of up to 16 bits are left to the standard operator, which the runtime fuses with its neighbours;
other types are divided, rounded, cut off and cast; and where types of several families meet under
one name, the nodes tell the one body in extra attributes what to do.

Numerics, whatever the body: x / scale in float32, to the nearest integer (half to even) for
integer types, plus the zero point, saturated to the type; then minus the zero point, times scale.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx_ir as ir
from onnx import parser

from bitwright.numerics.types import INT32, QType

VENDOR_DOMAIN = "com.vai.quantize"
QUARK_DOMAIN = "com.amd.quark"
"""Where the same operators stand today, under other names."""

Op = Literal["VitisQuantizeLinear", "VitisDequantizeLinear", "FixNeuron"]

_FLOAT, _DOUBLE, _BOOL = 1, 11, 9
_STANDARD_16_BITS = 21
"""The first opset whose QuantizeLinear takes 16 bits; before, only com.microsoft's does."""


@dataclass(frozen=True, slots=True)
class Use:
    """One way in which a model uses an operator: with which type, for how many scales."""

    qtype: QType
    per_channel: bool = False
    centred: bool = False
    """All zero points are 0."""
    is_bias: bool = False
    """What is dequantized is a constant of one axis at most."""


def scaled_function(op: Op, uses: Collection[Use], opset: int) -> ir.Function:
    """Return the one body that this operator needs in a model with these uses."""
    inputs = ["x", "scale", "zero_point"]
    if all(_is_standard(op, use) for use in uses):
        contrib = opset < _STANDARD_16_BITS and any(use.qtype.bits in (4, 16) for use in uses)
        lines = _standard_lines(op, "com.microsoft." if contrib else "")
        return write_function(op, inputs, lines, attributes=["axis"], opset=opset, contrib=contrib)
    attributes = ["axis", *distinguishing_attributes(op, uses, next(iter(uses)).qtype)]
    return write_function(op, inputs, _lines(op, uses), attributes=attributes, opset=opset)


def distinguishing_attributes(
    op: Op, uses: Collection[Use], qtype: QType
) -> dict[str, int | ir.TensorProtocol]:
    """Return what a node must say beside its axis: nothing, unless several types share a body."""
    if op == "VitisDequantizeLinear" or len({use.qtype for use in uses}) == 1:
        return {}
    if all(_is_standard(op, use) for use in uses):
        return {}
    dtype = np.float64 if _needs_double(uses) else np.float32
    return {
        "lowest": ir.tensor(np.array(qtype.lowest, dtype)),
        "highest": ir.tensor(np.array(qtype.highest, dtype)),
        "rounds": int(qtype.is_integer),
    }


def _is_standard(op: Op, use: Use) -> bool:
    """Whether ONNX's own operator does exactly this."""
    if use.qtype == INT32:
        # Pairs of activations move through their neighbours in the runtime, which would have to
        # write a QuantizeLinear that there is not; and it takes the int32 weights of a MatMul for
        # ones that its integer kernel has.
        return op == "VitisDequantizeLinear" and use.centred and use.is_bias
    return use.qtype.is_integer and use.qtype.bits <= 16


def _needs_double(uses: Collection[Use]) -> bool:
    return any(use.qtype.is_integer and use.qtype.bits == 32 for use in uses)


def _standard_lines(op: Op, domain: str) -> Iterator[str]:
    stored = "y"
    if op != "VitisDequantizeLinear":
        stored = "stored" if op == "FixNeuron" else "y"
        yield f"{stored} = {domain}QuantizeLinear <axis : int = @axis> (x, scale, zero_point)"
    if op != "VitisQuantizeLinear":
        source = "stored" if op == "FixNeuron" else "x"
        yield f"y = {domain}DequantizeLinear <axis : int = @axis> ({source}, scale, zero_point)"


def _lines(op: Op, uses: Collection[Use]) -> Iterator[str]:
    work = _DOUBLE if _needs_double(uses) else _FLOAT
    yield f"step0 = Cast <to = {_FLOAT}> (scale)"
    yield f"offset0 = Cast <to = {work}> (zero_point)"
    yield from _spread_lines(any(use.per_channel for use in uses))
    if op == "VitisQuantizeLinear":
        yield from _quantizing_lines(uses, work, "y")
    elif op == "VitisDequantizeLinear":
        yield from _dequantizing_lines("x", work)
    else:
        yield from _quantizing_lines(uses, work, "stored")
        yield from _dequantizing_lines("stored", work)


def _spread_lines(per_channel: bool) -> Iterator[str]:
    """Give the scale and the zero point the rank of x: all dimensions 1, but that of the axis."""
    if not per_channel:
        yield "step = Identity (step0)"
        yield "offset = Identity (offset0)"
        return
    yield from (
        "nothing = Constant <value_ints = [0]> ()",
        "one = Constant <value_ints = [1]> ()",
        "minus = Constant <value_ints = [-1]> ()",
        "end = Constant <value_ints = [9223372036854775807]> ()",
        "before = Shape <start : int = 0, end : int = @axis> (x)",
        "behind = Shape <start : int = @axis> (x)",
        "here = Slice (behind, nothing, one)",
        "after = Slice (behind, one, end)",
        # Shapes times 0, plus 1 or -1: a scalar x has no dimension, and gets none.
        "before0 = Mul (before, nothing)",
        "here0 = Mul (here, nothing)",
        "after0 = Mul (after, nothing)",
        "before1 = Add (before0, one)",
        "here1 = Add (here0, minus)",
        "after1 = Add (after0, one)",
        "shape = Concat <axis = 0> (before1, here1, after1)",
        "step = Reshape (step0, shape)",
        "offset = Reshape (offset0, shape)",
    )


def _quantizing_lines(uses: Collection[Use], work: int, result: str) -> Iterator[str]:
    types = {use.qtype for use in uses}
    kind, dtype = ("double", np.float64) if work == _DOUBLE else ("float", np.float32)
    yield f"values = Cast <to = {_FLOAT}> (x)"
    yield "quotient = Div (values, step)"
    if len(types) == 1:
        (qtype,) = types
        yield f"whole = {'Round' if qtype.is_integer else 'Identity'} (quotient)"
        for name in ("lowest", "highest"):
            number = float(dtype(getattr(qtype, name)))
            yield f"{name} = Constant <value = {kind} {{{number!r}}}> ()"
    else:
        yield "rounds0 = Constant <value_int : int = @rounds> ()"
        yield f"rounds = Cast <to = {_BOOL}> (rounds0)"
        yield "rounded = Round (quotient)"
        yield "whole = Where (rounds, rounded, quotient)"
        yield "lowest = Constant <value : tensor = @lowest> ()"
        yield "highest = Constant <value : tensor = @highest> ()"
    yield f"exact = Cast <to = {work}> (whole)"
    yield "shifted = Add (exact, offset)"
    yield "saturated = Clip (shifted, lowest, highest)"
    yield f"{result} = CastLike (saturated, zero_point)"


def _dequantizing_lines(source: str, work: int) -> Iterator[str]:
    yield f"number = Cast <to = {work}> ({source})"
    yield "centred = Sub (number, offset)"
    yield f"single = Cast <to = {_FLOAT}> (centred)"
    yield "product = Mul (single, step)"
    yield "y = CastLike (product, scale)"


def write_function(
    name: str,
    inputs: Sequence[str],
    lines: Iterable[str],
    *,
    attributes: Sequence[str],
    opset: int,
    contrib: bool = False,
) -> ir.Function:
    """Return a function of the vendor's domain with one output, y, from ONNX's textual syntax."""
    imports = f'"" : {opset}' + (', "com.microsoft" : 1' if contrib else "")
    given = f"<{', '.join(attributes)}> " if attributes else ""
    text = (
        f'<opset_import: [{imports}], domain: "{VENDOR_DOMAIN}">\n'
        f"{name} {given}({', '.join(inputs)}) => (y) {{\n  " + "\n  ".join(lines) + "\n}"
    )
    return ir.serde.deserialize_function(parser.parse_function(text))
