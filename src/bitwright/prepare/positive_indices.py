"""Rewrite negative constant indices of Gather as positive ones, for hardware without them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from bitwright.graph import constant_of, drop_if_unused, input_at
from bitwright.prepare.passes import Builder, Scope, rewrites


@rewrites("Gather", stays="Gather {0.name!r} keeps its negative index")
def positive_indices(gather: ir.Node, names: Scope) -> bool | str:
    """Add the size of its axis to each negative constant index."""
    indices, source = constant_of(input_at(gather, 1)), gather.inputs[0]
    if indices is None or not np.any(indices < 0):
        return False
    shape = None if source is None else source.shape
    size = None if shape is None else shape[gather.attributes.get_int("axis", 0)]
    if not isinstance(size, int):
        return "the size of its axis is not known"
    written = np.where(indices < 0, indices + size, indices).astype(indices.dtype)
    value = Builder(gather, names).constant(written, f"{gather.outputs[0].name}_indices")
    given = gather.inputs[1]
    gather.replace_input_with(1, value)
    drop_if_unused(given)
    return True
