"""A constant factor behind a node, for what the NPU computes a little larger or smaller."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from bitwright.graph import NameScope, add_initializer, graph_of, insert_behind_value


def multiply_behind(node: ir.Node, factor: float, names: NameScope) -> bool:
    """Multiply what a node writes, unless by 1; the product has the tensor's name and readers."""
    if factor == 1:
        return False
    raw = node.outputs[0]
    label = raw.name
    renamed = names.fresh(f"{label}_unscaled")
    scale = add_initializer(graph_of(raw), names, f"{label}_Scale", np.float32(factor))
    name = names.fresh(f"{label}_Mul")
    multiply = insert_behind_value(raw, "Mul", [scale], renamed=renamed, name=name)
    multiply.metadata_props["bitwright.role"] = "simulation"
    return True
