"""Averages between pairs in the forms that have a fast integer kernel.

    AveragePool over k places, without pads  ->  depthwise Conv with weights 1 of scale 1/k
    ReduceMean over height and width         ->  GlobalAveragePool, then Flatten without the axes

ONNX Runtime's QLinearAveragePool (`onnxruntime/contrib_ops/cpu/quantization/qlinear_pool.cc`) takes
7 to 13 times as long as its depthwise QLinearConv; QLinearGlobalAveragePool has a kernel in NHWC
where ReduceMean stays float. Conditions: every window lies inside (no pads, sizes not rounded up)
and the number of channels is known. The sums are the same numbers; only where an average lies
between two levels may the other one come out, as floats are added in another order.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from bitwright.decide.ops.integer_kernels import averages_whole_windows
from bitwright.emit.qlinear_graph import PairGraph
from bitwright.graph.constants import constant_of, input_at

_WINDOW = ("kernel_shape", "strides", "dilations")


def write_average_pools(model: ir.Model) -> int:
    """Write averages between pairs as convolutions and global pools; return how many."""
    graph = PairGraph(model)
    count = 0
    for node in model.graph.all_nodes():
        write = _WRITERS.get(node.op_type)
        if write is not None and not node.domain and _is_between_pairs(graph, node):
            count += write(graph, node)
    return count


def _is_between_pairs(graph: PairGraph, node: ir.Node) -> bool:
    source, result = graph.operand(node.inputs[0]), graph.result(node.outputs[0])
    if source is None or result is None or source.dtype != result.dtype:
        return False
    return source.is_whole and result.is_whole


def _write_convolution(graph: PairGraph, pool: ir.Node) -> bool:
    shape, kernel = pool.outputs[0].shape, pool.attributes.get_ints("kernel_shape", ())
    channels = None if shape is None or len(shape) < 3 else shape[1]
    if not averages_whole_windows(pool) or not isinstance(channels, int):
        return False
    assert kernel is not None
    kept = [pool.attributes[name] for name in _WINDOW if name in pool.attributes]
    ones, zero = np.ones((channels, 1, *kernel), np.int8), np.zeros((), np.int8)
    weight = graph.stored(pool, f"{pool.name}_weight", ones, 1 / math.prod(kernel), zero)
    pool.op_type, pool.version = "Conv", None
    pool.resize_inputs(2)
    pool.replace_input_with(1, weight)
    pool.attributes.clear()
    for attribute in (*kept, ir.AttrInt64("group", channels)):
        pool.attributes.add(attribute)
    return True


def _write_global_pool(graph: PairGraph, mean: ir.Node) -> bool:
    axes, given = mean.attributes.get_ints("axes"), constant_of(input_at(mean, 1))
    wanted = axes if given is None else [int(axis) for axis in given]
    shape = None if mean.inputs[0] is None else mean.inputs[0].shape
    if wanted is None or shape is None or len(shape) != 4 or mean.outputs[0].shape is None:
        return False
    if sorted(axis % 4 for axis in wanted) != [2, 3]:
        return False
    if mean.attributes.get_int("keepdims", 1):
        mean.op_type = "GlobalAveragePool"
    else:
        _pool_and_flatten(graph, mean)
    mean.version = None
    mean.resize_inputs(1)
    mean.attributes.clear()
    return True


def _pool_and_flatten(graph: PairGraph, mean: ir.Node) -> None:
    """Let a node only take two axes of one element from what a pool gives."""
    result, name = mean.outputs[0], f"{mean.name}_pool"
    numbers = graph.result(result)
    assert numbers is not None and result.shape is not None
    pooled = graph.insert(
        mean,
        "GlobalAveragePool",
        mean.inputs[:1],
        name=name,
        output=f"{result.name}_pooled",
        dtype=result.dtype,
        shape=ir.Shape([*result.shape, 1, 1]),
    )
    mean.replace_input_with(0, graph.paired(mean, name, pooled, graph.pair(numbers)))
    mean.op_type = "Flatten"


_WRITERS = {"AveragePool": _write_convolution, "ReduceMean": _write_global_pool}
