"""Maps of classes to probabilities, in which classifiers of scikit-learn end.

onnx-ir has no such type, and nothing behind the probabilities can be quantized: a ZipMap is taken
off when a model is read, and stands in the written model again.
"""

from __future__ import annotations

import base64

import onnx

_KEY = "bitwright.maps"
"""Metadata of a model in memory: its ZipMap nodes and the outputs that they make. In no file."""
_DOMAIN = "ai.onnx.ml"


def take_off_maps(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model without the ZipMap nodes at its end; the one that is given is not changed."""
    forged = [entry for entry in proto.metadata_props if entry.key == _KEY]
    places = {value.name: place for place, value in enumerate(proto.graph.output)}
    read = {name for node in proto.graph.node for name in node.input}
    last = [
        node
        for node in proto.graph.node
        if (node.op_type, node.domain) == ("ZipMap", _DOMAIN)
        and node.output[0] in places
        and node.output[0] not in read
    ]
    if not last and not forged:
        return proto
    bare, maps = onnx.ModelProto(), onnx.GraphProto()
    bare.CopyFrom(proto)
    for entry in forged:
        bare.metadata_props.remove(entry)
    for node in last:
        value = bare.graph.output[places[node.output[0]]]
        maps.node.append(node)
        maps.output.append(value)
        kind = value.type.sequence_type.elem_type.map_type.value_type.tensor_type.elem_type
        value.CopyFrom(onnx.helper.make_tensor_value_info(node.input[0], kind, None))
        bare.graph.node.remove(node)
    if last:
        text = base64.b64encode(maps.SerializeToString(deterministic=True)).decode()
        bare.metadata_props.add(key=_KEY, value=text)
    return bare


def put_back_maps(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Put the ZipMap nodes that were taken off into a message, and return it."""
    for entry in [entry for entry in proto.metadata_props if entry.key == _KEY]:
        maps = onnx.GraphProto.FromString(base64.b64decode(entry.value))
        for node, value in zip(maps.node, maps.output, strict=True):
            place = next(one for one in proto.graph.output if one.name == node.input[0])
            proto.graph.value_info.append(place)
            place.CopyFrom(value)
            proto.graph.node.append(node)
        if all(one.domain != _DOMAIN for one in proto.opset_import):
            proto.opset_import.append(onnx.helper.make_opsetid(_DOMAIN, 1))
        proto.metadata_props.remove(entry)
    return proto
