"""A model cut into the blocks that learn, as a method asks for them."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from bitwright.graph import opset_of
from bitwright.learning.partition import Block, find_blocks
from bitwright.recipe import FineTuning

__all__ = ["cut_to_learn"]


def cut_to_learn(model: ir.Model, learning: Collection[str], method: FineTuning) -> list[Block]:
    """Return the blocks that hold the learning nodes, by name, in order; needs torch.

    A block with a node that torch has no form for is cut further.
    """
    from bitwright.learning.torch_graph import why_not

    opset = opset_of(model)
    return find_blocks(
        model,
        learning,
        smallest=method.smallest_block,
        largest=method.largest_block,
        layers=method.scope == "layer",
        supported=lambda node: why_not(node, opset) is None,
    )
