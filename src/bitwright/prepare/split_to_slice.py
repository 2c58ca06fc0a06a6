"""Rewrite a Split as one Slice for each output, for hardware without Split."""

from __future__ import annotations

from itertools import accumulate, pairwise

import onnx_ir as ir

from bitwright.graph import constant_of, input_at, remove_nodes, replace_value
from bitwright.prepare.passes import Builder, Scope, rewrites


# Before opset 10 a Slice takes no inputs.
@rewrites("Split", since=10, stays="Split {0.name!r} became no slices")
def split_to_slice(split: ir.Node, names: Scope) -> bool | str:
    """Replace every Split whose sizes are known in advance.

    The slices are called after the Split, with a number, and write its tensors. Why a Split stays
    is in the notes.
    """
    x, sizes = split.inputs[0], _sizes(split)
    if sizes is None:
        return "its sizes are not fixed"
    build = Builder(split, names)
    axis = build.constant([split.attributes.get_int("axis", 0)], f"{split.name}_axis")
    bounds = pairwise(accumulate(sizes, initial=0))
    for index, (output, (start, end)) in enumerate(zip(split.outputs, bounds, strict=False)):
        if not output.name or not (output.uses() or output.is_graph_output()):
            continue
        starts, ends = (
            build.constant([number], f"{output.name}_{what}")
            for what, number in (("start", start), ("end", end))
        )
        own, inputs = names.fresh(f"{split.name}_{index}"), [x, starts, ends, axis]
        part = build.add("Slice", inputs, f"{output.name}_slice", node_name=own)
        replace_value(output, part)
    remove_nodes([split])
    return True


def _sizes(split: ir.Node) -> list[int] | None:
    """Return how much of the axis each output gets."""
    if "split" in split.attributes:
        return list(split.attributes.get_ints("split", []))
    given = input_at(split, 1)
    if given is not None:
        array = constant_of(given)
        return None if array is None else [int(size) for size in array.reshape(-1)]
    x = split.inputs[0]
    axis = split.attributes.get_int("axis", 0)
    if x is None or x.shape is None or not -len(x.shape) <= axis < len(x.shape):
        return None
    total = x.shape[axis]
    if not isinstance(total, int):
        return None
    count = split.attributes.get_int("num_outputs", len(split.outputs))
    part = -(-total // count)  # the last one is smaller where it does not come out even
    return [max(0, min(part, total - index * part)) for index in range(count)]
