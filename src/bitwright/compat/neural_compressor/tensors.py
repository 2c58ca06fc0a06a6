"""Quantization, packing and GPTQ of single weights, by Neural Compressor's names.

`quantize_groups` is the plain rule of weight-only quantization, for any array and any group length:
ranges in the type of the values, the rest in float64. Weights of a model are quantized by
`bitwright.numerics.blocks`, which knows what operators can store.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from bitwright.compat.options import find_name
from bitwright.errors import DataError, ModelError, RecipeError
from bitwright.numerics.blocks import SHRINKS, BlockFormat, QuantizedBlocks
from bitwright.numerics.nbits import NBitsTensors, check_nbits_support, pack_nbits
from bitwright.rounding.gptq import factor_hessian
from bitwright.rounding.gptq import gptq as round_by_gptq
from bitwright.support.array_types import F64, Array


def is_symmetric(scheme: str) -> bool:
    """Return whether a scheme is `"sym"`; unknown ones are errors."""
    return bool(find_name(scheme, {"sym": True, "asym": False}, "scheme"))


def get_blob_size(group_size: int, has_zp: bool) -> int:
    """Return how many bytes the codes of a group take in 4 bits.

    Zero points have lain elsewhere since ONNX Runtime 1.17, so `has_zp` makes no difference.

    >>> get_blob_size(32, True)
    16
    """
    if group_size < 2 or group_size % 2:
        raise RecipeError(f"4-bit groups have an even number of values, not {group_size}.")
    del has_zp  # before 1.17 it took a byte more
    return group_size // 2


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedGroups:
    """Codes [groups, length] with a scale and a zero point [groups, 1]; all of them floats."""

    codes: F64
    scales: F64
    zero_points: F64


def quantize_groups(
    values: npt.ArrayLike,
    *,
    bits: int = 4,
    length: int = 32,
    symmetric: bool = False,
    signed: bool = False,
    bounded: bool = True,
    ratio: float = 1.0,
) -> QuantizedGroups:
    """Return groups of `length` consecutive values as integers of `bits` bits.

    A symmetric scale spreads the codes over twice the largest magnitude; codes lie around zero
    (`signed`) or around the middle. Otherwise they are spread from the smallest to the largest
    value. A `bounded` zero point is one of the codes, so that ranges are widened to hold zero;
    without it the range may lie anywhere. `ratio` is the part of the range that is kept.
    """
    if isinstance(bits, bool) or bits not in range(1, 9):
        raise RecipeError(f"groups have 1 to 8 bits, not {bits!r}.")
    if not 0 < ratio <= 1:
        raise RecipeError(f"the part of a range that is kept lies in (0, 1], not {ratio!r}.")
    groups = _in_groups(values, length)
    if not np.isfinite(groups).all():
        raise ModelError("the weight holds NaN or infinity; fix the model or leave it float.")
    low = groups.min(axis=1, keepdims=True) * ratio
    high = groups.max(axis=1, keepdims=True) * ratio
    lowest = -(1 << bits - 1) if signed and symmetric else 0
    steps = (1 << bits) - 1
    if symmetric:
        size = np.maximum(np.abs(low), np.abs(high))
        scales = np.where(size > 0, (2 * size).astype(np.float64) / steps, 1.0)
        zeros = np.full_like(scales, 0 if signed else 1 << bits - 1)
    else:
        # The range of a constant begins or ends at zero: without a width it would have no scale.
        widened = np.full(low.shape, True) if bounded else low == high
        low, high = (
            np.where(widened, np.minimum(low, 0), low),
            np.where(widened, np.maximum(high, 0), high),
        )
        scales = np.where(high > low, (high - low).astype(np.float64) / steps, 1.0)
        zeros = np.rint(-low / scales)
    codes = np.clip(np.rint(groups / scales + zeros), lowest, lowest + steps)
    return QuantizedGroups(codes, scales, zeros)


def _in_groups(values: npt.ArrayLike, length: int) -> Array:
    """Return groups as floats: the type of the values, whose arithmetic the other tool has too."""
    array: Array = np.asarray(values)
    if array.dtype.kind not in "fiuV":
        raise DataError(f"a weight holds numbers, not {array.dtype}.")
    array = array if array.dtype.kind == "f" else array.astype(np.float64)
    if isinstance(length, bool) or length < 1:
        raise RecipeError(f"a group has at least one value, not {length!r}.")
    if not array.size or array.size % length:
        raise RecipeError(
            f"{array.size} values do not make whole groups of {length}; pad them first, or choose "
            "another group size."
        )
    return array.reshape(-1, length)


def quant_tensor(
    data: npt.ArrayLike,
    num_bits: int = 4,
    group_size: int = 32,
    scheme: str = "asym",
    dtype: str = "int",
    ratio: float = 1.0,
) -> tuple[F64, F64, Array]:
    """Return the codes, scales and zero points of groups of consecutive values.

    With `dtype="uint"` codes and zero points are what a kernel stores; with `"int"` a zero point
    may lie outside the codes. A group size of -1 makes a group of each row.

    >>> codes, scale, zero = quant_tensor([-1, -0.3, 0.2, 0.7], group_size=4, dtype="uint")
    >>> codes.tolist(), zero.tolist()
    ([[0.0, 6.0, 11.0, 15.0]], [[9]])
    """
    signed = find_name(dtype, {"int": True, "uint": False}, "dtype")
    found = quantize_groups(
        data,
        bits=num_bits,
        length=np.shape(data)[-1] if group_size == -1 else group_size,
        symmetric=is_symmetric(scheme),
        signed=signed,
        bounded=not signed,
        ratio=ratio,
    )
    zeros: Array = found.zero_points
    return found.codes, found.scales, zeros if signed else zeros.astype(np.uint8)


def qdq_tensor(
    data: npt.ArrayLike,
    num_bits: int = 4,
    group_size: int = 32,
    scheme: str = "asym",
    dtype: str = "int",
    ratio: float = 1.0,
) -> F64:
    """Return what is left of the values after `quant_tensor`, in their own shape.

    >>> qdq_tensor([-1, -0.3, 0.2, 0.7], group_size=4).round(2).tolist()
    [-1.02, -0.34, 0.23, 0.68]
    """
    codes, scales, zeros = quant_tensor(data, num_bits, group_size, scheme, dtype, ratio)
    return (scales * (codes - zeros)).reshape(np.shape(data))


def pad_tensor(weight: Array, group_size: int, k_blocks: int) -> Array:
    """Return a weight [K, N] with rows of zeros until it has `k_blocks` whole groups.

    >>> pad_tensor(np.ones((3, 2)), 2, 2).shape
    (4, 2)
    """
    if group_size == -1:
        return weight
    missing = group_size * k_blocks - weight.shape[0]
    if missing < 0:
        raise RecipeError(
            f"{k_blocks} groups of {group_size} do not hold the weight's {weight.shape[0]} rows."
        )
    return np.pad(weight, ((0, missing), (0, 0))) if missing else weight


def get_weight_scale(weight: npt.ArrayLike, group_size: int) -> F64:
    """Return how much of its group's largest magnitude each value of a row takes, over all rows.

    >>> get_weight_scale([[1, 2, 3, 4], [4, 4, 2, 1]], 2).tolist()
    [0.75, 1.0, 0.875, 0.75]
    """
    array = np.abs(np.asarray(weight, np.float64))
    groups = _in_groups(array, array.shape[-1] if group_size == -1 else group_size)
    largest = groups.max(axis=1, keepdims=True)
    shares = groups / np.where(largest > 0, largest, 1)
    return np.asarray(shares.reshape(array.shape).mean(axis=0))


def make_matmul_weight_only_node(
    node: onnx.NodeProto,
    weight_shape: tuple[int, int],
    num_bits: int,
    group_size: int,
    k_blocks: int,
    q_weight: Array,
    scale: Array,
    zero_point: Array | None,
    accuracy_level: int = 0,
) -> tuple[onnx.NodeProto, list[onnx.TensorProto]]:
    """Return the MatMulNBits node for a MatMul node, and its constants.

    `q_weight` has a row for each group, output after output: [N * k_blocks, group_size]; scales and
    zero points have one value for each row. Zero points are packed output by output, so that odd
    numbers of groups are right as well.

    >>> node = helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")
    >>> codes, scale, zero = quant_tensor(np.eye(32), dtype="uint")
    >>> new, constants = make_matmul_weight_only_node(node, (32, 32), 4, 32, 1, codes, scale, zero)
    >>> new.name, [tuple(tensor.dims) for tensor in constants]
    ('mm_Q4', [(32, 1), (32, 1), (32, 1, 16)])
    """
    if node.op_type != "MatMul" or len(node.input) != 2:
        raise RecipeError(f"node {node.name!r} is a {node.op_type}, not a MatMul with a weight.")
    rows, columns = (int(size) for size in weight_shape)
    count, zeros = columns * k_blocks, None
    kind: Literal["none", "packed"] = "none" if zero_point is None else "packed"
    check_nbits_support(num_bits, group_size, kind, accuracy_level=accuracy_level)
    codes = _by_output("q_weight", q_weight, columns, count * group_size)
    scales = _by_output("scale", scale, columns, count)
    if zero_point is not None:
        zeros = _by_output("zero_point", zero_point, columns, count).astype(np.uint8)
    if k_blocks != -(-rows // group_size):
        raise RecipeError(f"{rows} rows make {-(-rows // group_size)} groups, not {k_blocks}.")
    form = BlockFormat(bits=num_bits, block_size=group_size, symmetric=zero_point is None)
    packed = pack_nbits(QuantizedBlocks(form, codes[:rows].astype(np.uint8), scales, zeros))
    stored = f"{node.input[1]}_Q{num_bits}G{group_size}"
    constants = _constants(node.input[1], packed, stored)
    inputs = [node.input[0], stored, *(name for name in constants if name != stored)]
    sizes: dict[str, Any] = {"K": rows, "N": columns, "bits": num_bits, "block_size": group_size}
    sizes |= {"accuracy_level": accuracy_level or None, "domain": "com.microsoft"}
    name = f"{node.name}_Q{num_bits}"
    replaced = helper.make_node("MatMulNBits", inputs, list(node.output), name=name, **sizes)
    return replaced, [numpy_helper.from_array(array, name) for name, array in constants.items()]


def _by_output(what: str, array: Array, columns: int, size: int) -> Array:
    """Return an array with a column for each output of the product."""
    if np.size(array) != size:
        raise RecipeError(f"{what} has {np.size(array)} values instead of {size}.")
    return np.asarray(array).reshape(columns, -1).T


def _constants(weight: str, packed: NBitsTensors, codes: str) -> dict[str, Array]:
    """Return scales, zero points and codes by the names of the other tool, in its order."""
    scales = packed.scales
    constants = {
        f"{weight}_scale": scales.astype(np.float32) if scales.dtype == np.float64 else scales
    }
    if packed.zero_points is not None:
        constants[f"{weight}_zp"] = packed.zero_points
    return {**constants, codes: packed.codes}


def gptq(
    W: npt.ArrayLike,  # noqa: N803 (the name there)
    H: npt.ArrayLike,  # noqa: N803
    num_bits: int = 4,
    group_size: int = 32,
    scheme: str = "asym",
    blocksize: int = 128,
    percdamp: float = 0.01,
    actorder: bool = False,
    mse: bool = False,
    perchannel: bool = True,
) -> Array:
    """Return a weight [K, N] rounded by GPTQ for inputs with this Hessian [K, K], as floats.

    `mse` searches the ranges of groups by what errors cost. The result does not depend on
    `blocksize`, which is how many rows there are corrected together. W and H are not changed.

    >>> gptq(np.eye(32), np.eye(32), actorder=True).shape
    (32, 32)
    """
    if blocksize < 1:
        raise RecipeError(f"blocksize must be at least 1, not {blocksize}.")
    weights = np.asarray(W)
    factor = factor_hessian(H, damping=percdamp, act_order=actorder)
    found = round_by_gptq(
        weights,
        factor,
        BlockFormat(bits=num_bits, block_size=group_size, symmetric=is_symmetric(scheme)),
        static_groups=actorder,
        shrinks=SHRINKS if mse else (1.0,),
        per_column=perchannel,
    )
    kind = weights.dtype if weights.dtype.kind == "f" else np.float64
    return found.dequantize(np.float64).astype(kind)
