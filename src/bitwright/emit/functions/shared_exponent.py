"""Bodies of BFPFixNeuron and MXFixNeuron: what `numerics.shared_exponent` does, in ONNX.

The tensor becomes [outer, blocks, block, inner], so that every block lies along one axis, and is
put back in the end. The power of two below a number is found with four float operations,
without logarithms (Rump, Ogita, Oishi, "Accurate floating-point summation I", algorithm 3.5):
with q = (2^52 + 1) m it is q - (q - 2^-53 q). The paper's factor 1 - 2^-53 would do, too, but ONNX
Runtime takes it for 1 and drops the product.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

import onnx_ir as ir

from bitwright.emit.functions.scaled import write_function
from bitwright.errors import RecipeError
from bitwright.numerics.shared_exponent import (
    LOWEST_MICROSCALED,
    SHARED_EXPONENT_FORMATS,
    BlockFloat,
    ElementType,
    Microscaling,
    Rounding,
    SharedExponentFormat,
)
from bitwright.numerics.types import QType

_AXES_ARE_INPUTS = 18
"""The first opset in which the axes of ReduceMax are an input; those of ReduceSum always are."""
_FLOAT_MAX = (2 - 2.0**-23) * 2.0**127


def block_op(qtype: QType) -> str:
    """Return the operator that rounds to this format."""
    found = SHARED_EXPONENT_FORMATS[qtype.name]
    return "BFPFixNeuron" if isinstance(found, BlockFloat) else "MXFixNeuron"


def block_attributes(
    qtype: QType, axis: int, *, rounding: Rounding | None = None
) -> dict[str, int | str]:
    """Return the attributes that the operator has; a rounding of None is the format's."""
    found = _format_of(qtype, rounding)
    if isinstance(found, Microscaling):
        return {
            "element_dtype": found.element,
            "axis": axis,
            "block_size": found.block_size,
            "rounding_mode": found.rounding,
        }
    return {
        "bfp_method": "to_bfp_prime" if found.sub_block_size else "to_bfp",
        "axis": axis,
        "bit_width": found.bit_width,
        "block_size": found.block_size,
        "rounding_mode": found.rounding,
        "sub_block_size": found.sub_block_size or 2,
        "sub_block_shift_bits": found.shift_bits,
        "convert_to_bfloat_before_bfp": 0,
        "use_compiler_version_cpu_kernel": 0,
    }


def _format_of(qtype: QType, rounding: Rounding | None) -> SharedExponentFormat:
    found = SHARED_EXPONENT_FORMATS[qtype.name]
    return found if rounding is None else replace(found, rounding=rounding)


def distinguishing_block_attributes(
    types: Collection[QType], qtype: QType
) -> dict[str, int | float]:
    """Return what a node must say beside: nothing, unless several MX formats share a body."""
    found = SHARED_EXPONENT_FORMATS[qtype.name]
    if isinstance(found, BlockFloat) or len(set(types)) == 1:
        return {}
    return _element_numbers(found)


def block_function(
    types: Collection[QType], opset: int, *, rounding: Rounding | None = None
) -> ir.Function:
    """Return the one body that these formats of one operator need in a model.

    Bodies cannot be overloaded (see `scaled`), so formats of one operator must be told apart by
    their attributes: MX formats by their elements, block floats by their width.
    """
    first, *_ = types
    mixed = len(set(types)) > 1
    found = _format_of(first, rounding)
    if isinstance(found, Microscaling):
        lines = _microscaling_lines(found, opset, mixed=mixed)
    else:
        _refuse_other_blocks(found, [_format_of(qtype, rounding) for qtype in types], types)
        lines = _block_float_lines(found, opset, mixed=mixed)
    attributes = [*block_attributes(first, 1), *distinguishing_block_attributes(types, first)]
    return write_function(block_op(first), ["x"], lines, attributes=attributes, opset=opset)


def _refuse_other_blocks(
    first: BlockFloat, formats: Collection[SharedExponentFormat], types: Collection[QType]
) -> None:
    for other in formats:
        assert isinstance(other, BlockFloat)
        if replace(other, bit_width=first.bit_width) != first:
            names = " and ".join(sorted({qtype.name for qtype in types}))
            raise RecipeError(
                f"{names} are all written as BFPFixNeuron, each with blocks of its own, and a "
                "model can hold one kind of them; use one type throughout."
            )


# Blocks -----------------------------------------------------------------------------------


def _split_lines(format: SharedExponentFormat) -> Iterator[str]:
    """Cut x into `blocks`, the last ones filled up with zeros; and write what powers need."""
    size = format.block_size
    inside = "size"
    yield from (
        "values = Cast <to = 1> (x)",
        "nothing = Constant <value_ints = [0]> ()",
        "nothings = Constant <value_ints = [0, 0, 0, 0]> ()",
        "one = Constant <value_ints = [1]> ()",
        "ones = Constant <value_ints = [1, 1]> ()",
        "end = Constant <value_ints = [9223372036854775807]> ()",
        f"size = Constant <value_ints = [{size}]> ()",
        f"size_less_one = Constant <value_ints = [{size - 1}]> ()",
        # [outer, length * inner], then [outer, length, inner]; a 0 keeps what is there.
        "flat = Flatten <axis : int = @axis> (values)",
        "behind = Shape <start : int = @axis> (x)",
        "behind1 = Concat <axis = 0> (behind, ones)",
        "length = Slice (behind1, nothing, one)",
        "after = Slice (behind1, one, end)",
        "inner = ReduceProd (after)",
        "folded = Concat <axis = 0> (nothing, length, inner)",
        "matrix = Reshape (flat, folded)",
        "reach = Add (length, size_less_one)",
        "number = Div (reach, size)",
        "whole_length = Mul (number, size)",
        "missing = Sub (whole_length, length)",
        "pads = Concat <axis = 0> (nothings, missing, nothing)",
        "padded = Pad (matrix, pads)",
    )
    if isinstance(format, BlockFloat) and format.sub_block_size:
        pair = format.sub_block_size
        inside = "pairs"
        yield f"pairs = Constant <value_ints = [{size // pair}, {pair}]> ()"
    yield f"cut = Concat <axis = 0> (nothing, number, {inside}, inner)"
    yield "blocks = Reshape (padded, cut)"
    yield "magnitude = Abs (blocks)"
    yield f"largest = Constant <value = float {{{_FLOAT_MAX!r}}}> ()"
    # False for NaN, too.
    yield "finite = LessOrEqual (magnitude, largest)"
    yield "zero = Constant <value = float {0.0}> ()"
    yield f"phi = Constant <value = double {{{2.0**52 + 1!r}}}> ()"
    yield f"tiny = Constant <value = double {{{2.0**-53!r}}}> ()"
    yield f"least = Constant <value = double {{{2.0**-127!r}}}> ()"


def _join_lines() -> Iterator[str]:
    """Put the blocks back into the shape and type of x."""
    yield "long = Concat <axis = 0> (nothing, whole_length, inner)"
    yield "joined = Reshape (result, long)"
    yield "trimmed = Slice (joined, nothing, length, one)"
    yield "shape = Shape (x)"
    yield "restored = Reshape (trimmed, shape)"
    yield "y = CastLike (restored, x)"


def _reducing_lines(opset: int, op: str, source: str, result: str, *axes: int) -> Iterator[str]:
    if opset < _AXES_ARE_INPUTS and op != "ReduceSum":
        yield f"{result} = {op} <axes = {list(axes)}, keepdims = 1> ({source})"
    else:
        yield f"{result}_axes = Constant <value_ints = {list(axes)}> ()"
        yield f"{result} = {op} <keepdims = 1> ({source}, {result}_axes)"


def _power_lines(source: str, result: str) -> Iterator[str]:
    """Find 2^floor(log2 x) in double, and 2^-127 for zeros and subnormals."""
    yield f"{result}_wide = Cast <to = 11> ({source})"
    yield f"{result}_times = Mul ({result}_wide, phi)"
    yield f"{result}_little = Mul ({result}_times, tiny)"
    yield f"{result}_less = Sub ({result}_times, {result}_little)"
    yield f"{result}_any = Sub ({result}_times, {result}_less)"
    yield f"{result} = Max ({result}_any, least)"


def _rounding_lines(rounding: Rounding, source: str, result: str) -> Iterator[str]:
    if rounding == 2:
        yield f"{result} = Round ({source})"
    elif rounding == 1:
        # Adding a half would itself round: 0.49999997 + 0.5 is 1 in float32.
        yield f"{result}_twice = Add ({source}, {source})"
        yield f"{result}_floor = Floor ({result}_twice)"
        yield f"{result}_one = Constant <value = float {{1.0}}> ()"
        yield f"{result}_half = Constant <value = float {{0.5}}> ()"
        yield f"{result}_next = Add ({result}_floor, {result}_one)"
        yield f"{result}_halved = Mul ({result}_next, {result}_half)"
        yield f"{result} = Floor ({result}_halved)"
    else:
        # In integers, where casts and divisions go towards zero: (trunc(2x) +- 1) / 2.
        yield f"{result}_twice = Add ({source}, {source})"
        yield f"{result}_integer = Cast <to = 6> ({result}_twice)"
        yield f"{result}_sign = Sign ({result}_integer)"
        yield f"{result}_next = Add ({result}_integer, {result}_sign)"
        yield f"{result}_two = Constant <value = int32 {{2}}> ()"
        yield f"{result}_halved = Div ({result}_next, {result}_two)"
        yield f"{result} = Cast <to = 1> ({result}_halved)"


# Block floats -----------------------------------------------------------------------------


def _block_float_lines(format: BlockFloat, opset: int, *, mixed: bool) -> Iterator[str]:
    yield from _split_lines(format)
    yield from _mantissa_lines(format, mixed=mixed)
    if format.sub_block_size:
        yield from _shared_power_lines(format, opset)
    else:
        yield "kept = Identity (blocks)"
        yield "known = Where (finite, magnitude, zero)"
        yield from _reducing_lines(opset, "ReduceMax", "known", "peak", 2)
        yield from _power_lines("peak", "power")
    yield "step_wide = Mul (power, per_power)"
    yield "step = Cast <to = 1> (step_wide)"
    yield "units = Div (kept, step)"
    yield from _rounding_lines(format.rounding, "units", "mantissas")
    yield "limited = Clip (mantissas, lowest, highest)"
    yield "rounded = Mul (limited, step)"
    if format.sub_block_size:
        yield "result = Add (rounded, flaw)"
    else:
        yield "result = Where (finite, rounded, blocks)"
    yield from _join_lines()


def _mantissa_lines(format: BlockFloat, *, mixed: bool) -> Iterator[str]:
    """Find the step of a mantissa for the exponent 0, and the largest mantissa."""
    if not mixed:
        most = 2.0**format.mantissa_bits - 1
        step = 2.0 ** (1 - format.mantissa_bits)
        yield f"per_power = Constant <value = double {{{step!r}}}> ()"
        yield f"lowest = Constant <value = float {{{-most!r}}}> ()"
        yield f"highest = Constant <value = float {{{most!r}}}> ()"
        return
    yield from (
        "width_given = Constant <value_int : int = @bit_width> ()",
        "width = Cast <to = 11> (width_given)",
        "two = Constant <value = double {2.0}> ()",
        "ten = Constant <value = double {10.0}> ()",
        "nine = Constant <value = double {9.0}> ()",
        "unit = Constant <value = double {1.0}> ()",
        "below = Sub (ten, width)",
        "per_power = Pow (two, below)",
        "mantissa_bits = Sub (width, nine)",
        "levels = Pow (two, mantissa_bits)",
        "most = Sub (levels, unit)",
        "highest = Cast <to = 1> (most)",
        "lowest = Neg (highest)",
    )


def _shared_power_lines(format: BlockFloat, opset: int) -> Iterator[str]:
    """Find the power of each pair: its own, but not too far below its block's."""
    shift = 2.0 ** -(2**format.shift_bits - 1)
    yield f"smallest = Constant <value = float {{{2.0**-126!r}}}> ()"
    yield "normal = GreaterOrEqual (magnitude, smallest)"
    yield "counts = And (finite, normal)"
    yield "known = Where (counts, magnitude, zero)"
    yield "kept = Where (counts, blocks, zero)"
    # Infinity times 0 is NaN, and so is the sum of its block.
    yield "flaws = Mul (blocks, zero)"
    yield from _reducing_lines(opset, "ReduceSum", "flaws", "flaw", 2, 3)
    yield from _reducing_lines(opset, "ReduceMax", "known", "peak", 3)
    yield from _power_lines("peak", "pair_power")
    yield from _reducing_lines(opset, "ReduceMax", "pair_power", "block_power", 2)
    yield f"shift = Constant <value = double {{{shift!r}}}> ()"
    yield "shifted = Mul (block_power, shift)"
    yield "power = Max (pair_power, shifted)"


# Microscaling -----------------------------------------------------------------------------


def _element_numbers(format: Microscaling) -> dict[str, int | float]:
    """Return the element type as the numbers that its arithmetic needs.

    Integers of 8 bits, 6 of them behind the point, are floats whose exponent never changes.
    """
    element = format.float_element
    lowest = -2.0
    if element is None:
        element = ElementType(0, 0, 6, 127 / 64)
    else:
        lowest = -element.highest
    return {
        "per_power": 2.0**-element.emax,
        "smallest_power": 2.0**element.emin,
        "mantissa_step": 2.0**-element.mantissa_bits,
        "lowest": lowest,
        "highest": element.highest,
        "away": int(format.float_element is None and format.rounding == 0),
    }


def _microscaling_lines(format: Microscaling, opset: int, *, mixed: bool) -> Iterator[str]:
    numbers = _element_numbers(format)
    del numbers["away"]
    yield from _split_lines(format)
    for name, number in numbers.items():
        source = f"value_float : float = @{name}" if mixed else f"value = float {{{number!r}}}"
        yield f"{name} = Constant <{source}> ()"
    yield "known = Where (finite, magnitude, zero)"
    yield from _reducing_lines(opset, "ReduceMax", "known", "peak", 2)
    yield from _power_lines("peak", "power")
    yield "per_power_wide = Cast <to = 11> (per_power)"
    yield "scale_any = Mul (power, per_power_wide)"
    yield "scale_wide = Max (scale_any, least)"
    yield "scale = Cast <to = 1> (scale_wide)"
    yield "scaled = Div (blocks, scale)"
    if format.float_element is None and not mixed:
        yield "step = Identity (mantissa_step)"
    else:
        yield from (
            f"phi_single = Constant <value = float {{{2.0**23 + 1!r}}}> ()",
            f"tiny_single = Constant <value = float {{{2.0**-24!r}}}> ()",
            "element_times = Mul (scaled, phi_single)",
            "element_little = Mul (element_times, tiny_single)",
            "element_less = Sub (element_times, element_little)",
            "element_signed = Sub (element_times, element_less)",
            "element_any = Abs (element_signed)",
            "element_power = Max (element_any, smallest_power)",
            "step = Mul (element_power, mantissa_step)",
        )
    yield "units = Div (scaled, step)"
    if mixed:
        yield from _rounding_lines(0, "units", "outward")
        yield from _rounding_lines(2, "units", "even")
        yield "away_given = Constant <value_int : int = @away> ()"
        yield "away = Cast <to = 9> (away_given)"
        yield "whole = Where (away, outward, even)"
    else:
        rounding = format.rounding if format.float_element is None else 2
        yield from _rounding_lines(rounding, "units", "whole")
    yield "near = Mul (whole, step)"
    yield "limited = Clip (near, lowest, highest)"
    if format.float_element is None or mixed:
        yield "any = Mul (limited, scale)"
        yield f"last = Constant <value = float {{{LOWEST_MICROSCALED!r}}}> ()"
        yield "rounded = Max (any, last)"
    else:
        yield "rounded = Mul (limited, scale)"
    yield "result = Where (finite, rounded, blocks)"
    yield from _join_lines()
