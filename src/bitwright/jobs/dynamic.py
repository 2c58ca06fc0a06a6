"""Which part of a model gains from dynamic quantization: products of matrices, not convolutions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import onnx_ir as ir

from bitwright.decide.layout.dynamic import lay_out_dynamic
from bitwright.decide.ops import CONVOLUTIONS
from bitwright.decide.ops.product_sizes import RECURRENT, multiply_adds
from bitwright.errors import NothingQuantizedError
from bitwright.graph.constants import constant_of
from bitwright.jobs.opening import Prepared

__all__ = ["leave_convolutions_float"]

MAX_SHARE = 0.5
"""The share of multiply-adds in convolutions from which on a model's work is said to be in them:
halving the time of all else would then save a quarter at most."""
SLOWER = "measured at run time, the integers of a convolution take longer than its floats"


def leave_convolutions_float(prepared: Prepared) -> Prepared:
    """Return a model with its convolutions kept float, for a dynamic recipe that names none.

    ONNX Runtime's ConvInteger takes 2 to 4 times the time of the float Conv. A model whose work is
    in convolutions is refused: a static recipe makes it faster, and this one would not. One with
    recurrent layers that gain is not.
    """
    select = prepared.recipe.select
    named = {*(select.op_types or ()), *select.more_op_types} & CONVOLUTIONS
    if named or select.nodes is not None:
        return prepared
    planned = lay_out_dynamic(prepared.model, prepared.recipe).nodes
    nodes = [node for node in prepared.model.graph.all_nodes() if (node.name or "") in planned]
    taken = [n for n in nodes if planned[n.name or ""].quantized]
    slower = [n for n in taken if n.op_type in CONVOLUTIONS]
    share = _work(slower) / max(_work(nodes), 1)
    # How often a recurrent layer runs is not known.
    if slower and share >= MAX_SHARE and not any(n.op_type in RECURRENT for n in taken):
        raise NothingQuantizedError(
            f"{share:.0%} of the model's multiply-adds are in convolutions, which ONNX Runtime "
            "computes 2 to 4 times slower than in float where ranges are measured at run time",
            remedy="take a static recipe, such as 'int8-per-channel', with data (RandomData() to "
            "try things out), or go on with force_dynamic=True",
            command="leave out --dynamic and give --data PATH (--random-data 8 to try things out), "
            "or go on with --force-dynamic",
        )
    kept = dict.fromkeys((node.name or "" for node in slower), SLOWER)
    return replace(prepared, keep_float={**prepared.keep_float, **kept})


def _work(nodes: Iterable[ir.Node]) -> int:
    """Return the multiply-adds of nodes; open sizes and unknown lengths count as one."""
    return sum(_multiply_adds(node) for node in nodes)


def _multiply_adds(node: ir.Node) -> int:
    known = multiply_adds(node, open_size=1)
    if known is not None:
        return known
    weights = [constant_of(value) for value in node.inputs[1:3] if value is not None]
    return sum(weight.size for weight in weights if weight is not None and weight.ndim > 1)
