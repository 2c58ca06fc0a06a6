"""Which part of a model gains from dynamic quantization: large products of matrices."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

import onnx_ir as ir

from bitwright.decide.layout.dynamic import lay_out_dynamic
from bitwright.decide.ops import CONVOLUTIONS, MATRIX_PRODUCTS
from bitwright.decide.ops.product_sizes import RECURRENT, multiply_adds
from bitwright.errors import NothingQuantizedError
from bitwright.graph import constant_of, static_shape, weight_of
from bitwright.jobs.opening import Prepared
from bitwright.plan import NodePlan

MAX_SHARE = 0.5
"""The share of multiply-adds in convolutions from which on a model's work is said to be in them:
halving the time of all else would then save a quarter at most."""
SLOWER = "measured at run time, the integers of a convolution take longer than its floats"

MIN_WEIGHTS = 1 << 17
"""The weights that the readers of one activation have together, from which on rows of integers are
faster than floats whatever their number. With 2^16 of them (256 to 256 channels, x86 with VNNI,
ONNX Runtime 1.31) they take 1.07, 1.29 and 0.94 of float's time for 1, 16 and 128 rows, and with
384 to 384 channels 0.72, 0.88 and 0.71."""
SMALL = (
    "the products of its activation are so small that finding the range of each row takes longer "
    "than integers save"
)


def leave_slower_float(prepared: Prepared) -> Prepared:
    """Return a model with those nodes kept float that a dynamic recipe would make slower.

    These are convolutions, of which ONNX Runtime's ConvInteger takes 2 to 4 times the time of the
    float Conv, and small products; those that the recipe names are taken. A model whose work is in
    convolutions is refused: a static recipe makes it faster, and this one would not. One with
    recurrent layers that gain is not.
    """
    select = prepared.recipe.select
    if select.nodes is not None:
        return prepared
    planned = lay_out_dynamic(prepared.model, prepared.recipe).nodes
    nodes = [node for node in prepared.model.graph.all_nodes() if (node.name or "") in planned]
    taken = [n for n in nodes if planned[n.name or ""].quantized]
    named = {*(select.op_types or ()), *select.more_op_types} & CONVOLUTIONS
    slower = [n for n in taken if n.op_type in CONVOLUTIONS and not named]
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
    kept |= _small_products(taken, planned)
    return replace(prepared, keep_float={**prepared.keep_float, **kept})


def _small_products(taken: Iterable[ir.Node], planned: Mapping[str, NodePlan]) -> dict[str, str]:
    """Return the products by rows whose activation has few weights behind it, and why.

    Where no other product would be left, they are taken all the same.
    """
    readers = defaultdict[ir.Value | None, list[ir.Node]](list)
    products = [node for node in taken if node.op_type in MATRIX_PRODUCTS]
    for node in products:
        if planned[node.name or ""].per_token:
            readers[node.inputs[0]].append(node)
    small = [
        node.name or ""
        for group in readers.values()
        if sum(_weights(node) for node in group) < MIN_WEIGHTS
        for node in group
    ]
    return {} if len(small) == len(products) else dict.fromkeys(small, SMALL)


def _weights(node: ir.Node) -> int:
    weight = weight_of(node)
    return 0 if weight is None else math.prod(static_shape(weight.value) or ())


def _work(nodes: Iterable[ir.Node]) -> int:
    """Return the multiply-adds of nodes; open sizes and unknown lengths count as one."""
    return sum(_multiply_adds(node) for node in nodes)


def _multiply_adds(node: ir.Node) -> int:
    known = multiply_adds(node, open_size=1)
    if known is not None:
        return known
    weights = [constant_of(value) for value in node.inputs[1:3] if value is not None]
    return sum(weight.size for weight in weights if weight is not None and weight.ndim > 1)
