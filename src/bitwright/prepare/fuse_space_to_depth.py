"""Fuse the Reshape and Transpose nodes that a SpaceToDepth is exported as.

Blocks of s x s pixels become channels: (N, C, H, W) is cut into (N, C, H/s, s, W/s, s), the two s
are moved before the channels, and what is left is (N, s s C, H/s, W/s). Detection models spell it
out in four Reshape nodes with a Transpose between each two.
"""

from __future__ import annotations

import onnx_ir as ir

from bitwright.decide.ops.matching import private_reader
from bitwright.graph.shapes import static_shape
from bitwright.prepare.passes import Builder, Scope, rewrites

_PERMUTATIONS = ([0, 1, 2, 4, 3, 5], [0, 1, 3, 2], [0, 2, 1, 3, 4])


@rewrites("Reshape", since=5)
def fuse_space_to_depth(first: ir.Node, names: Scope) -> bool:
    """Replace every such chain whose shapes are known by a SpaceToDepth.

    The last tensor keeps its name. Nodes stay where a tensor in between has other readers.
    """
    chain = [first]
    for permutation in _PERMUTATIONS:
        for op_type in ("Transpose", "Reshape"):
            following = private_reader(chain[-1].outputs[0])
            if following is None or following.op_type != op_type:
                return False
            order = following.attributes.get_ints("perm", [])
            if op_type == "Transpose" and list(order) != permutation:
                return False
            chain.append(following)
    x = first.inputs[0]
    size = None if x is None else _block_size(x, [node.outputs[0] for node in chain[::2]])
    if x is None or size is None:
        return False
    *before, last = chain
    settings = {"blocksize": size}
    Builder(last, names).replace("SpaceToDepth", [x], "_blocks", settings, reversed(before))
    return True


def _block_size(x: ir.Value, reshaped: list[ir.Value]) -> int | None:
    """Return the side of a block, where all four shapes are those of such blocks."""
    given, *shapes = (static_shape(value) for value in (x, *reshaped))
    if given is None or len(given) != 4 or shapes[0] is None or len(shapes[0]) != 6:
        return None
    batch, channels, height, width = given
    size = shapes[0][3]
    if size < 1 or height % size or width % size:
        return None
    rows, columns = height // size, width // size
    expected = [
        (batch, channels, rows, size, columns, size),
        (batch, channels, rows * columns, size**2),
        (batch, channels, size**2, rows, columns),
        (batch, channels * size**2, rows, columns),
    ]
    return size if shapes == expected else None
