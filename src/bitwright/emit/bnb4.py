"""Write the weights of MatMul in 4 bits of bitsandbytes' formats: MatMulBnb4 of com.microsoft."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from bitwright.emit.quantized import MICROSOFT, convert_to_contrib
from bitwright.errors import ModelError, NothingQuantizedError, RecipeError, did_you_mean
from bitwright.graph import NameScope
from bitwright.graph.constants import constant_tensor
from bitwright.graph.editing import (
    add_initializer,
    drop_if_unused,
    graph_of,
    remove_unused_initializers,
)
from bitwright.numerics.codebooks import BLOCK_SIZES, NF4, Codebook, quantize_blocks

__all__ = ["check_block_size", "emit_bnb4"]

_TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16)


def check_block_size(block_size: int) -> None:
    """Raise a RecipeError for a block length that the operator has no kernel for.

    >>> check_block_size(48)
    Traceback (most recent call last):
    bitwright.errors.RecipeError: the block size of MatMulBnb4 is 16, 32, 64, 128 or 256, not 48.
    """
    if isinstance(block_size, bool) or block_size not in BLOCK_SIZES:
        *most, last = BLOCK_SIZES
        sizes = f"{', '.join(map(str, most))} or {last}"
        raise RecipeError(f"the block size of MatMulBnb4 is {sizes}, not {block_size!r}.")


def emit_bnb4(
    model: ir.Model,
    *,
    book: Codebook = NF4,
    block_size: int = 64,
    exclude: Collection[str] = (),
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
        _replace(weight, its_readers, names, book, block_size)
    model.opset_imports.setdefault(MICROSOFT, 1)
    remove_unused_initializers(model)
    return skipped


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
    weight: ir.Value, readers: list[ir.Node], names: NameScope, book: Codebook, block_size: int
) -> None:
    tensor = constant_tensor(weight)
    assert tensor is not None
    array = tensor.numpy()
    rows, columns = array.shape
    packed, absmax = quantize_blocks(array.T, book, block_size)
    del array
    if isinstance(tensor, ir.ExternalTensor):
        tensor.release()  # or the mapped file stays in memory
    if not np.isfinite(absmax).all():
        raise ModelError(
            f"weight {weight.name!r} holds NaN or infinity; fix the model, or exclude "
            f"{', '.join(repr(node.name) for node in readers)}."
        )
    graph = graph_of(weight)
    codes = add_initializer(graph, names, f"{weight.name}_Bnb4", packed)
    scales = add_initializer(graph, names, f"{weight.name}_absmax", absmax)
    numbers = {"K": rows, "N": columns, "block_size": block_size, "quant_type": book.number}
    for node in readers:
        node.name = names.fresh(f"{node.name}_Bnb4")
        convert_to_contrib(node, "MatMulBnb4", [node.inputs[0], codes, scales], numbers)
    drop_if_unused(weight)
