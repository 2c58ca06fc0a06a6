"""Keep the zeros of a Pad out of the max pool behind it.

ONNX Runtime makes one node of both, whose pads are lower than any number, not zero: where all that
a window sees is negative, that is another maximum. It does so once nothing is between them, so it
depends on when a Transpose there is gone. A Pad that names its axes is left alone.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from bitwright.graph.constants import input_at
from bitwright.graph.editing import replace_inputs
from bitwright.graph.names import NameScope
from bitwright.prepare.passes import Builder, PassResult, rewrite_nodes

__all__ = ["keep_zero_pads"]


def keep_zero_pads(model: ir.Model) -> PassResult:
    """Name the axes of each Pad with a Transpose and a MaxPool behind it; return how many.

    >>> graph = ir.Graph([], [], nodes=[], opset_imports={"": 21})
    >>> keep_zero_pads(ir.Model(graph, ir_version=10)).changed
    0
    """
    return rewrite_nodes(model, ("Pad",), _name_axes, since=18)


def _name_axes(pad: ir.Node, names: NameScope) -> bool:
    source = pad.inputs[0]
    if source is None or source.shape is None or input_at(pad, 3) is not None:
        return False
    if _is_never_negative(source) or not _is_pooled_behind_transposes(pad.outputs[0]):
        return False
    axes = Builder(pad, names).constant(np.arange(len(source.shape)), f"{pad.outputs[0].name}_axes")
    given = list(pad.inputs)
    replace_inputs(pad, [*given[:3], *[None] * (3 - len(given)), axes])
    return True


def _is_never_negative(value: ir.Value) -> bool:
    node = value.producer()
    while node is not None and node.op_type == "Transpose" and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node is not None and node.op_type == "Relu"


def _is_pooled_behind_transposes(value: ir.Value) -> bool:
    readers = [node for node, _ in value.uses()]
    if len(readers) != 1 or readers[0].op_type != "Transpose":
        return False
    [behind] = readers[0].outputs
    return _is_pooled_behind_transposes(behind) or [node.op_type for node, _ in behind.uses()] == [
        "MaxPool"
    ]
