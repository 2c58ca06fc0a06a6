"""Operators that a model with float16 kept cannot have in integers.

ONNX Runtime reads and writes 8 bits with float16 scales, from opset 19 on. But it also fuses a
quantized op with the pairs around it into an integer kernel, and those take float32 scales, all but
QLinearMatMul (from opset 21 on): it then refuses the model. Found by running every op in both
formats; `tests/jobs/test_half_floats.py` does so again.
"""

from __future__ import annotations

import onnx_ir as ir

from bitwright.decide.ops import op_types
from bitwright.recipe import Recipe

__all__ = ["float16_refusals"]


def float16_refusals(model: ir.Model, recipe: Recipe) -> dict[str, str]:
    """Return the nodes that have to stay float because they work on float16, and why.

    >>> x, y = (ir.Value(name=n, type=ir.TensorType(ir.DataType.FLOAT16)) for n in "xy")
    >>> node = ir.node("LeakyRelu", [x], outputs=[y], name="relu")
    >>> model = ir.Model(ir.Graph([x], [y], nodes=[node]), ir_version=10)
    >>> float16_refusals(model, Recipe(float16="keep"))
    {'relu': 'the integer LeakyRelu takes float32 scales only, and float16 is kept'}
    >>> float16_refusals(model, Recipe())
    {}
    """
    if recipe.float16 != "keep":
        return {}
    kinds = ("fused", "written") if recipe.output_format.integer_ops else ("fused",)
    refused = op_types(lambda op: op.float32_scales in kinds)
    reason = "the integer {} takes float32 scales only, and float16 is kept"
    return {
        node.name or "": reason.format(node.op_type)
        for node in model.graph.all_nodes()
        if node.op_type in refused
        and any(value.dtype == ir.DataType.FLOAT16 for value in node.outputs)
    }
