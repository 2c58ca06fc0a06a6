"""Codes of float16 weights as Neural Compressor chooses them: for scales of float64.

The scale is rounded to float16 only when it is stored, so about one code in a thousand is a
neighbour of the one that is nearest to the weight. Whoever compares files finds the same bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from bitwright.compat.neural_compressor.tensors import pad_tensor, quantize_groups
from bitwright.graph import load_model
from bitwright.numerics.blocks import BlockFormat, QuantizedBlocks
from bitwright.numerics.nbits import pack_nbits
from bitwright.plan import QuantPlan, WeightPlan
from bitwright.recipe import Nearest

__all__ = ["round_for_wide_scales"]

_PACKED_BITS = (4, 8)


def round_for_wide_scales(model: ir.Model, plan: QuantPlan, source: Any) -> None:
    """Replace the codes, scales and zero points of float16 weights of `source`, in place."""
    weights = load_model(source).graph.initializers
    packed = {node.name or "": node for node in model.graph if node.op_type == "MatMulNBits"}
    for name, planned in plan.weights.items():
        weight = weights.get(name)
        if weight is None or weight.dtype != ir.DataType.FLOAT16 or planned.symmetric:
            continue
        nodes = [packed[reader] for reader in planned.nodes if reader in packed]
        shape = () if weight.const_value is None else weight.const_value.shape.numpy()
        if not nodes or len(shape) != 2 or planned.bits not in _PACKED_BITS:
            continue
        if shape != (nodes[0].attributes.get_int("K"), nodes[0].attributes.get_int("N")):
            continue  # a Gemm that reads it transposed, which stays float there
        assert weight.const_value is not None
        tensors = pack_nbits(_round(weight.const_value.numpy(), planned))
        for value, array in zip(
            nodes[0].inputs[1:], (tensors.codes, tensors.scales, tensors.zero_points), strict=False
        ):
            if value is not None and array is not None:
                value.const_value = ir.tensor(array, name=value.name)


def _round(
    weight: np.ndarray[tuple[int, ...], np.dtype[np.float16]], planned: WeightPlan
) -> QuantizedBlocks:
    form = BlockFormat(bits=planned.bits, block_size=planned.block_size, scale_type="float16")
    rows, columns = weight.shape
    count, length = form.blocks(rows), form.length(rows)
    shrink = planned.rounding.shrink if isinstance(planned.rounding, Nearest) else 1.0
    found = quantize_groups(
        pad_tensor(weight, length, count).T, bits=form.bits, length=length, ratio=shrink
    )
    codes = found.codes.reshape(columns, -1)[:, :rows].T.astype(np.uint8)
    scales = found.scales.reshape(columns, count).T.astype(np.float16)
    return QuantizedBlocks(
        form, codes, scales, found.zero_points.reshape(columns, count).T.astype(np.uint8)
    )
