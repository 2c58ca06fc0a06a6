"""Operators that ONNX Runtime has and ONNX does not, in the domain com.microsoft and in ONNX's own.

Model builders write the latter too: SimplifiedLayerNormalization, or LayerNormalization before
opset 17. ONNX's checker and converter refuse them, its shape inference knows nothing of them.
"""

from __future__ import annotations

from functools import cache

import onnx
import onnx_ir as ir

from bitwright.graph.subgraphs import iter_messages

_IN_ONNX_DOMAIN = frozenset(
    "Affine Crop DynamicSlice GRUUnit GivenTensorFill ImageScaler LayerNormalization "
    "MeanVarianceNormalization ParametricSoftplus Scale ScaledTanh SimplifiedLayerNormalization "
    "ThresholdedRelu".split()
)
"""What the runtime registers in ONNX's domain at versions at which ONNX has no such operator."""

_SAME_SHAPE: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(
        "Affine BiasGelu FastGelu Gelu GroupNorm ImageScaler LayerNormalization "
        "MeanVarianceNormalization ParametricSoftplus QuickGelu RotaryEmbedding Scale ScaledTanh "
        "SimplifiedLayerNormalization ThresholdedRelu".split(),
        (0,),
    ),
    "SkipGroupNorm": (0, 1),
    "SkipLayerNormalization": (0, 3),
    "SkipSimplifiedLayerNormalization": (0, 3),
}
"""The outputs that have the type and the shape of the operator's first input."""

_SAME_TYPE = frozenset(
    "Attention BiasAdd BiasSplitGelu Crop DynamicSlice FusedConv FusedGemm FusedMatMul "
    "GemmFastGelu GroupQueryAttention MatMulNBits MultiHeadAttention NhwcConv NhwcFusedConv "
    "NhwcMaxPool PackedAttention TransposeMatMul".split()
)
"""Operators whose first output has the type of their first input, and another shape."""

_RUNTIME_DOMAIN = "com.microsoft"
_APART = "bitwright.runtime"


def keeps_type(op_type: str, index: int) -> bool:
    """Return whether an output of one of the runtime's operators has its first input's type."""
    return index in _SAME_SHAPE.get(op_type, (0,) if op_type in _SAME_TYPE else ())


def move_apart(proto: onnx.ModelProto) -> bool:
    """Move what ONNX does not have out of its domain, in place; return whether there was any.

    ONNX's own functions leave operators of other domains as they are.
    """
    opset = _opset(proto)
    found = [
        node
        for _, graph in iter_messages("", proto.graph)
        for node in graph.node
        if _is_unknown_to_onnx(node, opset)
    ]
    for node in found:
        node.domain = _APART
    if found:
        proto.opset_import.append(onnx.helper.make_opsetid(_APART, 1))
    return bool(found)


def bring_back(model: ir.Model) -> None:
    """Undo `move_apart`, in place."""
    for node in model.graph.all_nodes():
        if node.domain == _APART:
            node.domain = ""
    model.graph.opset_imports.pop(_APART, None)


def stand_in_for_shapes(proto: onnx.ModelProto) -> None:
    """Make an Identity of each operator that keeps the shape of its first input, in place.

    ONNX's shape inference then goes on behind it; what it is wrong about is written so that it is
    not. The message is good for nothing else.
    """
    opset = _opset(proto)
    for _, graph in list(iter_messages("", proto.graph)):
        nodes: list[onnx.NodeProto] = []
        for index, node in enumerate(graph.node):
            if any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
                node.name = node.name or f"{node.op_type}#{index}"  # as `iter_graphs` calls it
            if node.op_type == "STFT" and all(a.name != "onesided" for a in node.attribute):
                # Its default is 1, which ONNX's inference takes for 0.
                node.attribute.append(onnx.helper.make_attribute("onesided", 1))
            known = node.domain == _RUNTIME_DOMAIN or _is_unknown_to_onnx(node, opset)
            if not known or node.op_type not in _SAME_SHAPE:
                nodes.append(node)
                continue
            nodes += [
                onnx.helper.make_node("Identity", node.input[:1], [node.output[place]])
                for place in _SAME_SHAPE[node.op_type]
                if place < len(node.output) and node.output[place]
            ]
        changed = onnx.GraphProto()
        changed.node.extend(nodes)  # copies: a message cannot hold a part of itself
        graph.ClearField("node")
        graph.node.extend(changed.node)


def _is_unknown_to_onnx(node: onnx.NodeProto, opset: int) -> bool:
    if node.domain not in ("", "ai.onnx") or node.op_type not in _IN_ONNX_DOMAIN:
        return False
    return find_schema(node.op_type, opset) is None


@cache
def find_schema(op_type: str, opset: int) -> onnx.defs.OpSchema | None:
    """Return what ONNX says of an operator; None for those of the runtime, or of another time."""
    try:
        return onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError:
        return None


def _opset(proto: onnx.ModelProto) -> int:
    versions = [entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")]
    return int(versions[0]) if versions else 1
