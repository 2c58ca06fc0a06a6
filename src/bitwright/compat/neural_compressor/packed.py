"""Packed weights as Neural Compressor writes them: names, and the codes of float16 weights.

It chooses codes for scales of float64, and rounds these to float16 only when they are stored, so
that about one code in a thousand is a neighbour of the one that is nearest to the weight. Whoever
compares files finds the same bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from bitwright.compat.neural_compressor.tensors import pad_tensor, quantize_groups
from bitwright.graph import NameScope, load_model
from bitwright.numerics import BlockFormat, QuantizedBlocks, pack_nbits
from bitwright.plan import QuantPlan, WeightPlan
from bitwright.recipe import Nearest

_ENDINGS = ("Q{bits}G{block_size}", "scale", "zp")


def rename_packed(model: ir.Model, plan: QuantPlan) -> None:
    """Call nodes `<node>_Q4`, and constants `<weight>_Q4G32`, `_scale` and `_zp`, in place."""
    names = NameScope(model)
    packed = {n.name or "": n for n in model.graph if n.op_type == "MatMulNBits"}
    for weight, planned in plan.weights.items():
        for name in planned.nodes:
            node = packed.get(name)
            if node is None:
                continue
            bits = node.attributes.get_int("bits", 4)
            form = {"bits": bits, "block_size": node.attributes.get_int("block_size", 32)}
            node.name = names.fresh(f"{name}_Q{bits}")
            for value, ending in zip(node.inputs[1:4], _ENDINGS, strict=False):
                wanted = f"{weight}_{ending.format(**form)}"
                # A weight that two nodes read has its constants once.
                if value is not None and value.name != wanted:
                    value.name = names.fresh(wanted)


def is_packed_name(name: str, given: str) -> bool:
    """Whether a name is the packed form of a node that an earlier call quantized."""
    return name.startswith(f"{given}_Q") and name[len(given) + 2 :].isdigit()


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
