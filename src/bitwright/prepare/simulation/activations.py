"""Activations as the NPU computes them: slopes and bounds that its fixed-point units have."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from bitwright.graph.editing import replace_constant
from bitwright.graph.names import NameScope
from bitwright.graph.shapes import element_type
from bitwright.graph.subgraphs import iter_graphs
from bitwright.prepare.building import Builder, clip_limits
from bitwright.prepare.simulation.scaling import multiply_behind
from bitwright.targets.npu_operations import is_npu_hard_sigmoid

__all__ = [
    "HARD_SIGMOID_FACTOR",
    "harden_sigmoids",
    "round_clip_bounds",
    "round_leaky_slopes",
    "scale_hard_sigmoids",
]

HARD_SIGMOID_FACTOR = (2731 / 16384) / (1 / 6)
"""The NPU's slope is 2731/2^14, a little above the 1/6 of ONNX's."""


def _nodes(model: ir.Model, op_type: str) -> list[ir.Node]:
    return [
        node
        for _, graph in iter_graphs(model)
        for node in graph
        if node.op_type == op_type and not node.domain
        if element_type(node.outputs[0]) in (ir.DataType.FLOAT, None)
    ]


def round_leaky_slopes(model: ir.Model) -> int:
    """Make the slope of every LeakyRelu a multiple of 1/256; return how many.

    >>> graph = ir.Graph([], [], nodes=[], opset_imports={"": 21})
    >>> round_leaky_slopes(ir.Model(graph, ir_version=10))
    0
    """
    nodes = _nodes(model, "LeakyRelu")
    for node in nodes:
        alpha = node.attributes.get_float("alpha", 0.01)
        node.attributes["alpha"] = ir.AttrFloat32("alpha", round(alpha * 256) / 256)
    return len(nodes)


def harden_sigmoids(model: ir.Model) -> int:
    """Replace every Sigmoid by max(0, min(1, x / 6 + 1 / 2)); return how many.

    >>> graph = ir.Graph([], [], nodes=[], opset_imports={"": 21})
    >>> harden_sigmoids(ir.Model(graph, ir_version=10))
    0
    """
    names = NameScope(model)
    nodes = _nodes(model, "Sigmoid")
    for node in nodes:
        build = Builder(node, names)
        name = f"{node.outputs[0].name}_hard"
        settings = {"alpha": 1 / 6, "beta": 0.5}
        build.finish(
            build.add("HardSigmoid", [node.inputs[0]], name, settings, node_name=node.name)
        )
    return len(nodes)


def scale_hard_sigmoids(model: ir.Model) -> int:
    """Put the NPU's slope behind every HardSigmoid that it has; return how many.

    >>> graph = ir.Graph([], [], nodes=[], opset_imports={"": 21})
    >>> scale_hard_sigmoids(ir.Model(graph, ir_version=10))
    0
    """
    names = NameScope(model)
    nodes = [node for node in _nodes(model, "HardSigmoid") if is_npu_hard_sigmoid(node)]
    for node in nodes:
        multiply_behind(node, HARD_SIGMOID_FACTOR, names)
    return len(nodes)


def round_clip_bounds(model: ir.Model, notes: list[str]) -> int:
    """Make the bounds of every Clip integers of 8 bits, a missing one the last; return how many.

    >>> graph = ir.Graph([], [], nodes=[], opset_imports={"": 21})
    >>> round_clip_bounds(ir.Model(graph, ir_version=10), [])
    0
    """
    names = NameScope(model)
    opset = model.opset_imports.get("", 0)
    rounded = 0
    for node in _nodes(model, "Clip"):
        limits = clip_limits(node)
        if limits is None:
            notes.append(f"Clip {node.name!r} was not simulated: its bounds come at run time")
            continue
        low, high = (
            missing if limit is None else max(-128, min(127, round(limit)))
            for limit, missing in zip(limits, (-128, 127), strict=True)
        )
        if opset < 11:
            node.attributes["min"] = ir.AttrFloat32("min", low)
            node.attributes["max"] = ir.AttrFloat32("max", high)
        else:
            for index, bound in ((1, low), (2, high)):
                name = f"{node.outputs[0].name}_bound"
                replace_constant(node, index, np.array(bound, np.float32), name, names)
        rounded += 1
    return rounded
