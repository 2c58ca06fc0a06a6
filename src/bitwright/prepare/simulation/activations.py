"""Activations as the NPU computes them: slopes and bounds that its fixed-point units have."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from bitwright.decide.ops.matching import clip_limits
from bitwright.graph import element_type, replace_constant
from bitwright.prepare.passes import Builder, Scope, rewrites
from bitwright.prepare.simulation.scaling import multiply_behind
from bitwright.targets.npu_operations import is_npu_hard_sigmoid

HARD_SIGMOID_FACTOR = (2731 / 16384) / (1 / 6)
"""The NPU's slope is 2731/2^14, a little above the 1/6 of ONNX's."""


def _is_float(node: ir.Node) -> bool:
    return element_type(node.outputs[0]) in (ir.DataType.FLOAT, None)


@rewrites("LeakyRelu")
def round_leaky_slopes(node: ir.Node, names: Scope) -> bool:
    """Make the slope of every LeakyRelu a multiple of 1/256."""
    if not _is_float(node):
        return False
    alpha = node.attributes.get_float("alpha", 0.01)
    node.attributes["alpha"] = ir.AttrFloat32("alpha", round(alpha * 256) / 256)
    return True


@rewrites("Sigmoid")
def harden_sigmoids(node: ir.Node, names: Scope) -> bool:
    """Replace every Sigmoid by max(0, min(1, x / 6 + 1 / 2))."""
    if not _is_float(node):
        return False
    settings = {"alpha": 1 / 6, "beta": 0.5}
    Builder(node, names).replace("HardSigmoid", [node.inputs[0]], "_hard", settings)
    return True


@rewrites("HardSigmoid")
def scale_hard_sigmoids(node: ir.Node, names: Scope) -> bool:
    """Put the NPU's slope behind every HardSigmoid that it has."""
    applies = _is_float(node) and is_npu_hard_sigmoid(node)
    return applies and multiply_behind(node, HARD_SIGMOID_FACTOR, names)


@rewrites("Clip", stays="Clip {0.name!r} was not simulated")
def round_clip_bounds(node: ir.Node, names: Scope) -> bool | str:
    """Make the bounds of every Clip integers of 8 bits, a missing one the last."""
    limits = clip_limits(node)
    if not _is_float(node):
        return False
    if limits is None:
        return "its bounds come at run time"
    low, high = (
        missing if limit is None else max(-128, min(127, round(limit)))
        for limit, missing in zip(limits, (-128, 127), strict=True)
    )
    if names.opset < 11:
        node.attributes["min"] = ir.AttrFloat32("min", low)
        node.attributes["max"] = ir.AttrFloat32("max", high)
    else:
        for index, bound in ((1, low), (2, high)):
            name = f"{node.outputs[0].name}_bound"
            replace_constant(node, index, np.array(bound, np.float32), name, names)
    return True
