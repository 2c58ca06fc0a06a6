"""Split FusedMatMul and Attention into MatMul and the rest, to store its weight in blocks.

Both are ONNX Runtime's own, of the domain com.microsoft, and have no n-bit form:

    FusedMatMul(x, w)      = alpha * MatMul(x, w')
    Attention(x, w, b, m)  = MultiHeadAttention(*Split(MatMul(x, w)), b, m)
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from bitwright.graph import graph_of, input_at, is_constant
from bitwright.prepare.passes import Builder, Scope, rewrites

_DOMAIN = "com.microsoft"
_STAYS = "{0.op_type} {0.name!r} keeps its float weight"


@rewrites("FusedMatMul", "Attention", domain=_DOMAIN, stays=_STAYS)
def split_fused_products(node: ir.Node, names: Scope) -> bool | str:
    """Split every FusedMatMul and Attention with a constant weight.

    The MatMul keeps the node's name. What has no such form stays, with the reason.
    """
    weight = input_at(node, 1)
    if weight is None or not weight.is_initializer() or not is_constant(weight):
        return False
    if weight.shape is None or not weight.shape.is_static() or len(weight.shape) != 2:
        return False
    split = _split_attention if node.op_type == "Attention" else _split_fused_matmul
    return split(node, names) or True


def _split_fused_matmul(node: ir.Node, names: Scope) -> str | None:
    for attribute in ("transA", "transBatchA", "transBatchB"):
        if node.attributes.get_int(attribute, 0):
            return f"it has {attribute}"
    data, weight = node.inputs[:2]
    assert data is not None and weight is not None and weight.dtype is not None
    build = Builder(node, names)
    if node.attributes.get_int("transB", 0):
        weight = build.add("Transpose", [weight], f"{weight.name}_transposed", {"perm": [1, 0]})
    result = build.add("MatMul", [data, weight], f"{node.name}_product", node_name=node.name)
    alpha = node.attributes.get_float("alpha", 1.0)
    if alpha != 1.0:
        assert weight.dtype is not None
        factor = build.constant(np.asarray(alpha, weight.dtype.numpy()), f"{node.name}_alpha")
        result = build.add("Mul", [result, factor], f"{node.name}_scaled")
    build.finish(result)
    return None


def _split_attention(node: ir.Node, names: Scope) -> str | None:
    if names.opset < 13:
        return f"a Split by sizes needs opset 13, and the model has {names.opset}"
    present = node.outputs[1:]
    if input_at(node, 4) is not None or any(v.uses() or v.is_graph_output() for v in present):
        return "its past and present are in one tensor, and MultiHeadAttention takes two"
    if node.attributes.get_int("do_rotary", 0):
        return "it rotates its inputs"
    mask = input_at(node, 3)
    if mask is not None and (mask.shape is None or len(mask.shape) != 2):
        return "its mask is not [batch, length]"
    data, weight = node.inputs[:2]
    assert data is not None and weight is not None and weight.shape is not None
    third = int(weight.shape[1]) // 3  # type: ignore[arg-type]
    sizes = list(node.attributes.get_ints("qkv_hidden_sizes", ()) or (third, third, third))
    build = Builder(node, names)
    name = node.name or "attention"
    product = build.add("MatMul", [data, weight], f"{name}_qkv", node_name=node.name)
    parts = [
        ir.Value(name=names.fresh(f"{name}_{part}"), type=product.type)
        for part in ("query", "key", "value")
    ]
    inputs = [product, build.constant(np.array(sizes, np.int64), f"{name}_sizes")]
    own = names.fresh(f"{name}_split")
    split = ir.node("Split", inputs, {"axis": -1}, outputs=parts, name=own)
    graph_of(node.outputs[0]).insert_before(node, split)
    kept = ("num_heads", "scale", "mask_filter_value", "unidirectional")
    attributes = [node.attributes[key] for key in kept if key in node.attributes]
    read, own = [*parts, input_at(node, 2), mask, input_at(node, 5)], names.fresh(f"{name}_heads")
    attention = ir.Node(_DOMAIN, "MultiHeadAttention", read, attributes, num_outputs=1, name=own)
    attention.outputs[0].name = names.fresh(f"{name}_attended")
    graph_of(node.outputs[0]).insert_before(node, attention)
    build.finish(attention.outputs[0])
    return None
