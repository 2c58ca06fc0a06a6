"""Names of nodes and tensors in n-bit models, by which scripts find them, as ONNX Runtime's."""

from __future__ import annotations

import re

import onnx_ir as ir

from bitwright.emit.quantized import MICROSOFT
from bitwright.graph.constants import maker_of

# The input of each operator that its weight is.
_WEIGHTS = {"MatMulNBits": 1, "GatherBlockQuantized": 0}
_STORED = re.compile(r"(_table)?_q\d$")
_TYPE_BITS = {ir.DataType.INT4: 4, ir.DataType.UINT4: 4, ir.DataType.INT2: 2, ir.DataType.UINT2: 2}


def name_as_peer(model: ir.Model) -> None:
    """Rename, in place, what holds and reads low-bit weights: `w_Q4`, and `mm_Q4` that reads it."""
    taken = {value.name for value in model.graph.initializers.values()}
    for node in list(model.graph.all_nodes()):
        if node.domain == MICROSOFT and node.op_type in _WEIGHTS:
            bits = node.attributes.get_int("bits", 4)
            stored = node.inputs[_WEIGHTS[node.op_type]]
            if stored is not None and stored.name and _STORED.search(stored.name):
                _rename(stored, _STORED.sub("", stored.name) + f"_Q{bits}", taken)
            node.name = f"{node.name}_Q{bits}"
        elif node.op_type == "MatMul" and (dequantizer := _dequantizer_of(node)) is not None:
            _name_pair(node, dequantizer, taken)


def _dequantizer_of(node: ir.Node) -> ir.Node | None:
    producer = maker_of(node.inputs[1])
    if producer is None or producer.op_type != "DequantizeLinear":
        return None
    return producer if "block_size" in producer.attributes else None


def _name_pair(node: ir.Node, dequantizer: ir.Node, taken: set[str | None]) -> None:
    stored = dequantizer.inputs[0]
    if stored is None or stored.name is None:
        return
    bits = 8 if stored.dtype is None else _TYPE_BITS.get(stored.dtype, 8)
    if stored.name.endswith("_quantized"):  # the first of its readers
        weight = stored.name.removesuffix("_quantized")
        _rename(stored, f"{weight}_DQ_Q{bits}", taken)
        for value, end in zip(dequantizer.inputs[1:], ("scales", "zero_points"), strict=False):
            if value is not None:
                _rename(value, f"{weight}_DQ_{end}", taken)
        dequantizer.outputs[0].name = f"{weight}_DQ_Q{bits}_output"
        dequantizer.name = f"{node.name}_DQ_Q{bits}"
    node.name = f"{node.name}_matmul_Q{bits}"


def _rename(value: ir.Value, name: str, taken: set[str | None]) -> None:
    if name not in taken:
        taken.add(name)
        value.name = name
