"""Rewrite integer nodes of a written Q/DQ model in the forms that ONNX Runtime is fastest at.

A form computes the same integers, or says which roundings it adds. They are written last, into
8-bit Q/DQ models for the runtime's CPU kernels, and only where a node does end up in integers: as
float graphs, the dense and the padded ones are slower than what they replace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import onnx_ir as ir

from bitwright.emit.forms.average_pools import write_average_pools
from bitwright.emit.forms.channel_shuffles import write_channel_shuffles
from bitwright.emit.forms.dense_groups import write_dense_groups
from bitwright.emit.forms.hard_gates import write_hard_gates
from bitwright.emit.forms.padded_channels import pad_channels
from bitwright.emit.forms.pool_edges import write_pool_edges
from bitwright.emit.forms.quick_gelu import write_quick_gelu
from bitwright.graph.editing import remove_unused_nodes

__all__ = ["FORMS", "Form", "write_forms"]


class Form(NamedTuple):
    """One way to write integer nodes, and what is said of it."""

    write: Callable[[ir.Model], int]
    """Changes the model in place; returns in how many places."""
    sentence: str
    """Holds {} for the number of places, with (s) behind what may be one or many."""


FORMS = (
    Form(
        write_hard_gates,
        "wrote {} HardSigmoid or HardSwish node(s) as saturating integer additions and products",
    ),
    Form(
        write_average_pools,
        "wrote {} average(s) as depthwise convolutions and global pools: the same values, faster "
        "kernels",
    ),
    Form(
        write_dense_groups,
        "wrote {} grouped convolution(s) with the zeros between groups: the same values, faster "
        "kernels",
    ),
    Form(
        write_channel_shuffles,
        "let convolutions read in front of {} channel shuffle(s), with zeros for what they do not "
        "read: the same values, without the moves",
    ),
    Form(
        pad_channels,
        "padded the channels of {} convolution(s) with zeros: the same values, faster kernels",
    ),
    Form(
        write_quick_gelu,
        "wrote {} x * Sigmoid(x) as com.microsoft's QuickGelu, which ONNX Runtime does not find "
        "behind bytes: the same values",
    ),
    Form(
        write_pool_edges,
        "put a Clip beside {} float MaxPool(s) at the edge of the integers, which ONNX Runtime "
        "would run on bytes, slower: the same values",
    ),
)
"""In the order in which they are written: a later one may build on an earlier one."""


def write_forms(model: ir.Model, forms: Sequence[Form] = FORMS) -> list[str]:
    """Write forms wherever their conditions hold, in place; return a note for each.

    >>> graph = ir.Graph([], [], nodes=[], opset_imports={"": 21})
    >>> write_forms(ir.Model(graph, ir_version=10))
    []
    """
    notes = []
    for form in forms:
        if count := form.write(model):
            notes.append(form.sentence.format(count).replace("(s)", "" if count == 1 else "s"))
            remove_unused_nodes(model)  # who reads a tensor counts for the next form
    if notes:
        model.graph.sort()  # bodies, too
    return notes
