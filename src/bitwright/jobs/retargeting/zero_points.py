"""int8 <-> uint8 activations: zero points, and stored codes, moved by 128; the same numbers."""

from __future__ import annotations

from typing import Literal

import numpy as np
import onnx_ir as ir

from bitwright.decide.ops.quantized_view import QuantizedView
from bitwright.errors import ModelError
from bitwright.graph import NameScope, Quantizer, constant_of, input_at, name_of
from bitwright.graph.editing import add_initializer, graph_of
from bitwright.graph.quantized_ops import DEQUANTIZERS, QUANTIZERS

Byte = Literal["int8", "uint8"]
_MIDDLE = 128
_TYPES = {"int8": (np.int8, ir.DataType.INT8), "uint8": (np.uint8, ir.DataType.UINT8)}


def move_zero_points(model: ir.Model, to: Byte) -> int:
    """Write 8-bit activations of the other sign in this type, in place; return how many tensors.

    A tensor whose integers something else than a dequantizer reads is refused: what it computes
    with them would change.
    """
    view, names = QuantizedView(model), NameScope(model)
    other = "int8" if to == "uint8" else "uint8"
    moved = 0
    activations = (one for one in view.found.values() if view.role(one) == "activation")
    # All of them before anything is written: what one reads, another one may, too.
    chosen = [(one.node, _zeros(one)) for one in activations if one.type_name == other]
    for node, zeros in chosen:
        if node.op_type in QUANTIZERS:
            readers = [use.node for value in node.outputs for use in value.uses()]
            strange = [reader for reader in readers if reader.op_type not in DEQUANTIZERS]
            if strange or node.outputs[0].is_graph_output():
                name = name_of(strange[0]) if strange else "the caller"
                raise ModelError(
                    f"the integers of {node.inputs[0].name!r} are read by {name}, not by a "  # type: ignore[union-attr]
                    "dequantizer, so that their type cannot change; make Q/DQ pairs first "
                    "(--format qdq)."
                )
            node.outputs[0].dtype = _TYPES[to][1]
            if "output_dtype" in node.attributes:
                del node.attributes["output_dtype"]
            moved += 1
        elif (codes := constant_of(input_at(node, 0))) is not None:
            _replace(node, 0, _moved(codes, to), names)
            moved += 1
        _replace(node, 2, _moved(zeros, to), names)
    return moved


def _zeros(quantizer: Quantizer) -> np.ndarray:
    if quantizer.zero_point is not None:
        return quantizer.zero_point
    if quantizer.zero_value is not None:
        name = name_of(quantizer.node)
        raise ModelError(
            f"the zero point of {name!r} is computed at run time, and cannot be moved."
        )
    return np.zeros(() if quantizer.scale is None else quantizer.scale.shape, np.uint8)


def _moved(codes: np.ndarray, to: Byte) -> np.ndarray:
    step = _MIDDLE if to == "uint8" else -_MIDDLE
    return np.asarray(codes.astype(np.int16) + step).astype(_TYPES[to][0])


def _replace(node: ir.Node, index: int, array: np.ndarray, names: NameScope) -> None:
    """Give a node a constant of its own: the old one may have readers of another kind."""
    if len(node.inputs) <= index:
        node.resize_inputs(index + 1)
    old = node.inputs[index]
    label = old.name if old is not None and old.name else f"{node.outputs[0].name}_zero_point"
    graph = graph_of(node.outputs[0])
    node.replace_input_with(index, add_initializer(graph, names, label, array))
