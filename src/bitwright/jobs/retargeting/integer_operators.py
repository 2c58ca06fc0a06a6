"""QOperator -> Q/DQ pairs: each integer operator as the float operator between dequantizers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from bitwright.emit.qlinear_graph import EIGHT_BITS
from bitwright.errors import ModelError
from bitwright.graph import NameScope, constant_of, input_at
from bitwright.graph.editing import add_initializer, graph_of, insert_before, remove_nodes
from bitwright.graph.quantized_ops import DEQUANTIZERS, INTEGER_OPS, QUANTIZERS, is_integer_op
from bitwright.graph.quantizers import (
    Quantizer,
    integer_operand,
    name_of,
    quantizer_at,
    stored_weight,
)
from bitwright.numerics.quantize import dequantize
from bitwright.targets.npu_operations import only_reader

# What integer operators have beside the attributes of the float ones.
_OWN_ATTRIBUTES = frozenset({"channels_last", "opset"})


def expand_integer_operators(model: ir.Model) -> int:
    """Replace the integer operators of a model in place; return how many there were.

    Operators that move integers get a pair on both sides, too, with one scale.
    """
    names = NameScope(model)
    known: dict[ir.Value, Quantizer] = {}
    expanded, count = [], 0
    for node in list(model.graph.all_nodes()):
        result = node.outputs[0]
        if node.op_type in QUANTIZERS:
            known[result] = quantizer_at(node)
        elif node.op_type == "MatMulInteger" and node.inputs[0] in known:
            expanded += _expand_sum(node, known[node.inputs[0]], names)
            count += 1
        elif is_integer_op(node.op_type):
            parameters = _expand(node, names)
            if parameters is not None:
                known[parameters[0]] = parameters[1]
            expanded.append(node)
            count += 1
        elif node.op_type not in DEQUANTIZERS and node.inputs and node.inputs[0] in known:
            _surround(node, known, names)
    remove_nodes(reversed(expanded))
    if count and "com.microsoft" in model.opset_imports:
        domains = {node.domain for node in model.graph.all_nodes()}
        if "com.microsoft" not in domains:
            del model.opset_imports["com.microsoft"]
    return count


def _expand(node: ir.Node, names: NameScope) -> tuple[ir.Value, Quantizer] | None:
    row = INTEGER_OPS.get(node.op_type)
    is_channels_last = node.attributes.get_int("channels_last", 0) != 0
    if row is None or row.result is None or is_channels_last:
        raise ModelError(
            f"{name_of(node)!r} is a {node.op_type}, which has no form with Q/DQ pairs; quantize "
            "the float model again."
        )
    inputs: list[ir.Value | None]
    if row.computes == "Concat":
        places = range(2, len(node.inputs), 3)
        inputs = [_dequantize(node, (at, at + 1, at + 2), names) for at in places]
    elif row.computes == "Where":
        inputs = [node.inputs[0], *(_dequantize(node, (p, p + 1, p + 2), names) for p in (1, 4))]
    else:
        inputs = [_dequantize(node, (0, 1, 2), names)]
        if row.weight is not None and row.weight[1] is not None:
            stored = stored_weight(node)
            axis = None if stored is None else stored.axis
            inputs.append(_dequantize(node, row.weight, names, axis))
        if row.bias is not None and input_at(node, row.bias) is not None:
            inputs.append(_bias(node, row.bias, names))
    attributes = [a for a in node.attributes.values() if a.name not in _OWN_ATTRIBUTES]
    old = node.outputs[0]
    factor, zero_point = (input_at(node, place) for place in row.result)
    made = ir.Value(name=names.fresh(f"{old.name}_float"), type=ir.TensorType(ir.DataType.FLOAT))
    made.shape = old.shape
    computed = ir.node(row.computes, inputs, outputs=[made], name=node.name)
    computed.attributes.update({attribute.name: attribute for attribute in attributes})
    assert node.graph is not None
    node.graph.insert_before(node, computed)
    if factor is None:  # it writes floats
        _take_place(old, made)
        return None
    quantized = ir.Value(name=names.fresh(f"{old.name}_pair"), type=old.type, shape=old.shape)
    parameters = Quantizer(node, quantized, factor, zero_point)
    label = names.fresh(f"{name_of(node)}_QuantizeLinear")
    insert_before(node, "QuantizeLinear", [made, *parameters.inputs], quantized, label)
    _take_place(old, quantized)
    return quantized, parameters


def _expand_sum(node: ir.Node, source: Quantizer, names: NameScope) -> list[ir.Node]:
    """Replace MatMulInteger, Cast and Mul by a product of floats; return what is left over.

    The Mul has the product of both scales: that of the weight is its quotient by the other.
    """
    cast = only_reader(node.outputs[0])
    scaling = None if cast is None else only_reader(cast.outputs[0])
    values = [] if scaling is None else [constant_of(value) for value in scaling.inputs]
    products = [value for value in values if value is not None]
    scale = constant_of(source.scale_value)
    weight = constant_of(input_at(node, 1))
    if (
        cast is None
        or scaling is None
        or (cast.op_type, scaling.op_type) != ("Cast", "Mul")
        or len(products) != 1
        or scale is None
        or weight is None
    ):
        raise ModelError(
            f"{name_of(node)!r} is a MatMulInteger without a constant scale behind it, which has "
            "no form with Q/DQ pairs; quantize the float model again."
        )
    quotient = np.asarray(products[0].reshape(-1) / scale.reshape(-1), np.float32)
    quotient = quotient if quotient.size > 1 else quotient.reshape(())
    read, stored, zero_point = (input_at(node, place) for place in (0, 1, 3))
    assert read is not None and stored is not None
    graph, zero = graph_of(node.outputs[0]), constant_of(zero_point)
    factor = add_initializer(graph, names, f"{stored.name}_scale", quotient)
    if zero is not None and zero.size < quotient.size:  # a dequantizer wants one for each scale
        zeros = np.full(quotient.shape, zero)
        zero_point = add_initializer(graph, names, f"{stored.name}_zero_point", zeros)
    quantized = Quantizer(node, stored, factor, zero_point)
    floats = [
        _floats_of(node, replace(source, values=read), names),
        _floats_of(node, quantized, names, weight.ndim - 1),
    ]
    old = scaling.outputs[0]
    result = ir.Value(name=names.fresh(f"{old.name}_float"), type=old.type, shape=old.shape)
    insert_before(node, "MatMul", floats, result, names.fresh(f"{name_of(node)}_float"))
    _take_place(old, result)
    return [node, cast, scaling]


def _surround(node: ir.Node, known: dict[ir.Value, Quantizer], names: NameScope) -> None:
    """Let an operator that moves integers move floats, between pairs of one scale.

    Integers that it reads beside them have that scale, too: the bounds of a Clip, a Pad's filling.
    """
    source, old = node.inputs[0], node.outputs[0]
    assert source is not None and node.graph is not None
    parameters = known[source]
    for index, value in enumerate(node.inputs):
        if value in known:
            label = names.fresh(f"{name_of(node)}_DequantizeLinear")
            read = _floats_of(node, replace(known[value], values=value), names, label=label)
            node.replace_input_with(index, read)
        elif value is not None and value.dtype in EIGHT_BITS:
            _dequantize_constant(node, index, parameters, names)
    if old.dtype == ir.DataType.INT64:  # indices
        return
    quantized = ir.Value(name=names.fresh(f"{old.name}_pair"), type=old.type, shape=old.shape)
    _take_place(old, quantized)
    old.name = names.fresh(f"{quantized.name}_moved")
    old.type = ir.TensorType(ir.DataType.FLOAT)
    quantizer = ir.node(
        "QuantizeLinear",
        [old, *parameters.inputs],
        outputs=[quantized],
        name=names.fresh(f"{name_of(node)}_QuantizeLinear"),
    )
    node.graph.insert_after(node, quantizer)
    known[quantized] = parameters


def _dequantize_constant(
    node: ir.Node, index: int, parameters: Quantizer, names: NameScope
) -> None:
    """Store an integer constant that a node reads as the number that it stands for."""
    value, scale = node.inputs[index], constant_of(parameters.scale_value)
    codes, zero = constant_of(value), constant_of(parameters.zero_value)
    if value is None or codes is None or scale is None:
        raise ModelError(
            f"the integers that {name_of(node)!r} reads are computed at run time without a scale, "
            "which has no form with Q/DQ pairs; quantize the float model again."
        )
    numbers = dequantize(codes, scale.reshape(()), 0 if zero is None else zero.reshape(()))
    graph = graph_of(node.outputs[0])
    node.replace_input_with(index, add_initializer(graph, names, f"{value.name}_float", numbers))


def _take_place(old: ir.Value, new: ir.Value) -> None:
    """Let a value have another one's readers and name."""
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    label, old.name = old.name, None
    new.name = label


def _floats_of(
    node: ir.Node, read: Quantizer, names: NameScope, axis: int | None = None, *, label: str = ""
) -> ir.Value:
    """Dequantize integers before a node; `axis` counts where there are several scales."""
    source, scale = read.values, constant_of(read.scale_value)
    assert source is not None
    made = ir.Value(name=names.fresh(f"{source.name}_float"), shape=source.shape)
    made.type = ir.TensorType(ir.DataType.FLOAT)
    several = scale is not None and scale.size > 1 and axis is not None
    label = label or names.fresh(f"{source.name}_DequantizeLinear")
    attributes = {"axis": axis} if several else None
    return insert_before(node, "DequantizeLinear", [source, *read.inputs], made, label, attributes)


def _dequantize(
    node: ir.Node, places: tuple[int, int | None, int], names: NameScope, axis: int | None = None
) -> ir.Value:
    """Dequantize what a node reads at a place, by the scale and zero point at the others."""
    read = integer_operand(node, places)
    assert read.scale_value is not None
    return _floats_of(node, read, names, axis)


def _bias(node: ir.Node, index: int, names: NameScope) -> ir.Value:
    """Dequantize a bias at the scale of its products."""
    row, bias = INTEGER_OPS[node.op_type], input_at(node, index)
    assert row.weight is not None and row.weight[1] is not None and bias is not None
    scales = [constant_of(input_at(node, place)) for place in (1, row.weight[1])]
    if scales[0] is None or scales[1] is None:
        raise ModelError(f"the scales of {name_of(node)!r} are computed at run time.")
    product = np.asarray(scales[0].reshape(-1) * scales[1].reshape(-1), np.float32)
    product = product.reshape(()) if product.size == 1 else product
    factor = add_initializer(graph_of(node.outputs[0]), names, f"{bias.name}_scale", product)
    return _floats_of(node, Quantizer(node, bias, factor, None), names, 0)
