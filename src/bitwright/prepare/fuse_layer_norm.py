"""Fuse the nodes that a layer norm is exported as into LayerNormalization (opset 17).

LayerNormalization computes gamma (x - m) / sqrt(v + epsilon) + beta, with the mean m and the
variance v over the last axis (Ba et al. 2016, arXiv:1607.06450). Exporters for older opsets spell
it out. Quantized piece by piece, the square and the root lose nearly all of it.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx_ir as ir

from bitwright.decide.ops.matching import (
    Matched,
    averaged,
    is_closed,
    match_deviation,
    match_gain_and_bias,
)
from bitwright.graph.shapes import element_type
from bitwright.prepare.passes import Builder, Scope, rewrites
from bitwright.support.array_types import Array

_STANDARD_OPSET = 17


@rewrites("Div", since=_STANDARD_OPSET)
def fuse_layer_norm(division: ir.Node, names: Scope) -> bool:
    """Replace the nodes of every layer norm over the last axis.

    The last tensor keeps its name. Nodes stay where a tensor in between has other readers, and in
    models below opset 17.
    """
    matched = Matched([division])
    mean_of = partial(averaged, axes=lambda rank: [rank - 1])
    found = match_deviation(division.inputs[1], matched, mean_of)
    if found is None or found.difference is not division.inputs[0] or found.x.shape is None:
        return False
    width = found.x.shape[-1]
    if not isinstance(width, int) or element_type(found.x) != ir.DataType.FLOAT:
        return False
    last, *arrays = match_gain_and_bias(division, matched, partial(_vector, width=width))
    nodes = matched.in_order()
    if not is_closed(nodes, last):
        return False
    build, name = Builder(last, names), last.outputs[0].name
    gamma, beta = (
        np.full(width, default, np.float32) if array is None else array
        for array, default in zip(arrays, (1, 0), strict=True)
    )
    inputs = [found.x, build.constant(gamma, f"{name}_scale"), build.constant(beta, f"{name}_bias")]
    settings = {"axis": -1, "epsilon": found.epsilon}
    build.replace("LayerNormalization", inputs, "_norm", settings, nodes)
    return True


def _vector(constant: Array, width: int) -> Array | None:
    """Return a constant as one number for each place of the last axis."""
    if constant.size not in (1, width) or constant.ndim > 1:
        return None
    return np.broadcast_to(constant.astype(np.float32), (width,)).copy()
