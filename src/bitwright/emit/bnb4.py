"""Write the weights of MatMul in 4 bits of bitsandbytes' formats: MatMulBnb4 of com.microsoft.

ONNX Runtime's own kernel rounds them: a block of weights is divided by its largest magnitude, and
each quotient becomes the number of the nearest of sixteen unevenly spaced levels.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from bitwright.emit.quantized import MICROSOFT, convert_to_contrib
from bitwright.errors import ModelError, NothingQuantizedError, RecipeError, did_you_mean
from bitwright.graph import NameScope, release_file
from bitwright.graph.constants import constant_tensor
from bitwright.graph.editing import (
    add_initializer,
    drop_if_unused,
    graph_of,
    remove_unused_initializers,
)
from bitwright.plan import QuantPlan
from bitwright.support.array_types import Array

BLOCK_SIZES = (16, 32, 64, 128, 256)
"""The block lengths that ONNX Runtime's MatMulBnb4 has kernels for."""
FP4, NF4 = 0, 1
"""The attribute quant_type: bitsandbytes' float of 4 bits, and quantiles of the normal distribution
with an exact zero (Dettmers et al. 2023, "QLoRA", appendix E)."""

_MIN_NORMAL = np.finfo(np.float32).tiny
_TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16)


def check_block_size(block_size: int) -> None:
    """Raise a RecipeError for a block length that the operator has no kernel for."""
    if isinstance(block_size, bool) or block_size not in BLOCK_SIZES:
        *most, last = BLOCK_SIZES
        sizes = f"{', '.join(map(str, most))} or {last}"
        raise RecipeError(f"the block size of MatMulBnb4 is {sizes}, not {block_size!r}.")


def emit_bnb4(
    model: ir.Model, *, quant_type: int = NF4, block_size: int = 64, exclude: Collection[str] = ()
) -> dict[str, str]:
    """Turn each MatMul by a constant matrix, in place, into one that reads it in 4 bits.

    The model is a normalized one (see `graph.normalize`). Weights are read one after another, and
    stored once each however many nodes read them. Blocks run over the transposed weight as one
    long row, so the length of a row need not be a multiple of the block. Returns, for each MatMul
    that stays as it is, the reason.
    """
    check_block_size(block_size)
    nodes = list(model.graph.all_nodes())
    known = {node.name or "" for node in nodes}
    for name in sorted(set(exclude) - known):
        raise RecipeError(
            f"no node is called {name!r}, so it cannot be excluded.{did_you_mean(name, known)}"
        )
    readers: dict[ir.Value, list[ir.Node]] = {}
    skipped: dict[str, str] = {}
    for node in nodes:
        if node.op_type != "MatMul" or node.domain:
            continue
        name, weight = node.name or "", node.inputs[1]
        reason = "it is excluded by name" if name in exclude else _refuse(weight)
        if reason is not None:
            skipped[name] = reason
        elif weight is not None:
            readers.setdefault(weight, []).append(node)
    if not readers:
        found = [f"MatMul {name!r}: {reason}" for name, reason in skipped.items()][:3]
        why = "; ".join(found) or "it has no MatMul; a Gemm is not taken by this format"
        raise NothingQuantizedError(f"nothing in the model can be stored in 4 bits ({why}).")
    names = NameScope(model)
    for weight, its_readers in readers.items():
        _replace(weight, its_readers, names, quant_type, block_size)
    model.opset_imports.setdefault(MICROSOFT, 1)
    remove_unused_initializers(model)
    return skipped


def emit_planned_bnb4(model: ir.Model, plan: QuantPlan, _: object) -> list[str]:
    """Store the weights that a plan names; return why others of them stay float."""
    size = next(one.block_size for one in plan.weights.values())
    chosen = {node for one in plan.weights.values() for node in one.nodes}
    products = (node.name or "" for node in model.graph.all_nodes() if node.op_type == "MatMul")
    others = [name for name in products if name not in chosen]
    skipped = emit_bnb4(model, block_size=size, exclude=others)
    return [f"{name!r} stays float: {why}" for name, why in skipped.items() if name in chosen]


def _refuse(weight: ir.Value | None) -> str | None:
    """Return why a weight cannot be stored in 4 bits, or None."""
    tensor = constant_tensor(weight)
    if tensor is None:
        return "its second input is computed at run time"
    if len(tensor.shape) != 2:
        return f"its weight has {len(tensor.shape)} axes, not 2"
    if tensor.dtype not in _TYPES:
        return f"its weight is {tensor.dtype.name.lower()}, not float32 or float16"
    if not tensor.size:
        return "its weight is empty"
    return None


def _replace(
    weight: ir.Value, readers: list[ir.Node], names: NameScope, quant_type: int, block_size: int
) -> None:
    tensor = constant_tensor(weight)
    assert tensor is not None
    array = tensor.numpy()
    rows, columns = array.shape
    is_finite = bool(np.isfinite(array).all())
    packed, absmax = quantize_blocks(array.T, quant_type, block_size)
    del array
    release_file(tensor)  # or the mapped file stays in memory
    if not is_finite:
        raise ModelError(
            f"weight {weight.name!r} holds NaN or infinity; fix the model, or exclude "
            f"{', '.join(repr(node.name) for node in readers)}."
        )
    graph = graph_of(weight)
    codes = add_initializer(graph, names, f"{weight.name}_Bnb4", packed)
    scales = add_initializer(graph, names, f"{weight.name}_absmax", absmax)
    numbers = {"K": rows, "N": columns, "block_size": block_size, "quant_type": quant_type}
    for node in readers:
        node.name = names.fresh(f"{node.name}_Bnb4")
        convert_to_contrib(node, "MatMulBnb4", [node.inputs[0], codes, scales], numbers)
    drop_if_unused(weight)


def quantize_blocks(
    values: Array, quant_type: int, block_size: int
) -> tuple[npt.NDArray[np.uint8], Array]:
    """Return packed codes and the largest magnitude of each block of a flattened float array.

    The first of two codes is in the high half of its byte. The last block may be shorter; a
    last half byte without a value has the code of zero. The magnitudes have the type of the array.
    """
    from onnxruntime.capi._pybind_state import quantize_matmul_bnb4

    flat = np.ascontiguousarray(values).reshape(1, -1)
    packed = np.zeros((flat.size + 1) // 2, np.uint8)
    absmax = np.zeros(-(-flat.size // block_size), flat.dtype)
    quantize_matmul_bnb4(packed, flat, absmax, block_size, quant_type, 1, flat.size)
    if ((absmax > 0) & (absmax < _MIN_NORMAL)).any():
        # The kernel multiplies by an inverse that overflows; to a product they are zeros.
        flat = np.where(np.abs(flat) < _MIN_NORMAL, flat.dtype.type(0), flat)
        quantize_matmul_bnb4(packed, flat, absmax, block_size, quant_type, 1, flat.size)
    return packed, absmax
