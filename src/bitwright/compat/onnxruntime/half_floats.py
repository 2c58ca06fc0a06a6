"""Whether a float16 model can stay one between pairs, as the other tool writes it."""

from __future__ import annotations

from functools import cache

import onnx_ir as ir

from bitwright.decide.ops import op_types
from bitwright.errors import ModelError
from bitwright.graph import load_model
from bitwright.run import open_session

__all__ = ["opens", "takes_float16_scales"]

_FUSED = op_types(lambda op: op.float32_scales == "fused")
# 15360 are the bits of 1.
_SUM = """
<ir_version: 10, opset_import: ["": 21]>
sum (float16[1] x) => (uint8[1] result) <float16 scale = {15360}, uint8 zero = {0}> {
    codes = QuantizeLinear(x, scale, zero)
    rounded = DequantizeLinear(codes, scale, zero)
    sum = Add(rounded, rounded)
    result = QuantizeLinear(sum, scale, zero)
}
"""
_FUSED_EVERYWHERE = "Concat"  # it has a float16 kernel on every machine


def takes_float16_scales(model: ir.Model, quantized: frozenset[str] | None) -> bool:
    """Whether the runtime opens the model with float16 scales around these op types; None: all.

    It makes integer operators of pairs around what it has a kernel for, and those take float32
    scales only. Which float16 kernels it has is a matter of the machine.
    """
    found = {node.op_type for node in model.graph.all_nodes()} & _FUSED
    found = found if quantized is None else found & quantized
    return not found or (_FUSED_EVERYWHERE not in found and not _has_float16_kernels())


@cache
def _has_float16_kernels() -> bool:
    """Whether a sum between pairs with float16 scales is refused here."""
    import onnx.parser

    return not opens(load_model(onnx.parser.parse_model(_SUM)))


def opens(model: ir.Model) -> bool:
    """Whether the runtime opens a model as users will, with its optimizations."""
    try:
        open_session(model)
    except ModelError:
        return False
    return True
