"""Write a plan into the graph as integer operators whose inputs are quantized at every run.

The names of nodes and tensors are those of ONNX Runtime's own tool, where it has any.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from bitwright.decide.ops import op_types
from bitwright.emit.dynamic_graph import IntegerWriter, Keys
from bitwright.emit.dynamic_rows import RowWriter
from bitwright.emit.qdq import Rounding
from bitwright.emit.quantized import Quantized, embedding_inputs
from bitwright.errors import PlanError
from bitwright.graph.constants import input_at
from bitwright.plan import QuantPlan


def emit_dynamic(model: ir.Model, plan: QuantPlan, round_weights: Rounding) -> list[str]:
    """Turn the float model, in place, into the dynamic one that the plan describes.

    `round_weights` makes the integers, one weight after the other.
    """
    writer = IntegerWriter(model, plan, round_weights)
    rows = RowWriter(writer, model, plan)
    # In graph order, so that what a node reads is in its final form before the node is written.
    for node in list(model.graph.all_nodes()):
        planned = plan.nodes.get(node.name or "")
        if planned is None or planned.action == "float":
            continue
        write = _WRITERS.get(node.op_type)
        if planned.action != "quantize" or write is None:
            raise PlanError(
                f"node {node.name!r} ({node.op_type}) cannot be {planned.action}d in a dynamic "
                "model; set its action to 'float'."
            )
        if planned.per_token:
            rows.write(node, planned.inputs)
        else:
            write(writer, node, planned.inputs)
    writer.finish()
    return []


def _write_matmul(writer: IntegerWriter, node: ir.Node, keys: Keys) -> None:
    left, right = (writer.operand(node, index, keys, zero_points="several") for index in (0, 1))
    result = _multiply(writer, node, left, right, node.name or "", node.outputs[0].name or "")
    writer.replace(node, result)


def _write_gemm(writer: IntegerWriter, node: ir.Node, keys: Keys) -> None:
    """Write alpha * A' * B' + beta * C; the transposed copy of a constant is made once."""
    flags = [bool(node.attributes.get_int(flag, 0)) for flag in ("transA", "transB")]
    left, right = (
        writer.operand(node, index, keys, transposed=flag, zero_points="several")
        for index, flag in enumerate(flags)
    )
    name, label = node.name or "", node.outputs[0].name or ""
    addend = input_at(node, 2)
    alpha, beta = (node.attributes.get_float(factor, 1.0) for factor in ("alpha", "beta"))
    result = _multiply(writer, node, left, right, f"{name}_MatMul", f"{label}_MatMul", alpha)
    if addend is not None:
        result.name = writer.names.fresh(f"{label}_MatMul")
        if beta != 1.0:
            factor = writer.constant(f"{name}_beta", np.float32(beta))
            addend = writer.add(node, "Mul", [addend, factor], name=f"{name}_beta_mul")
        result = writer.add(node, "Add", [result, addend], name=f"{name}_Add")
    writer.replace(node, result)


def _multiply(
    writer: IntegerWriter,
    node: ir.Node,
    left: Quantized,
    right: Quantized,
    name: str,
    label: str,
    factor: float = 1.0,
) -> ir.Value:
    is_conv = node.op_type == "Conv"
    product = writer.add(
        node,
        "ConvInteger" if is_conv else "MatMulInteger",
        [left.value, right.value, left.zero_point, right.zero_point],
        ir.DataType.INT32,
        name=f"{name}_quant",
        output=f"{label}_output_quantized",
        attributes=node.attributes if is_conv else None,
    )
    return writer.rescale(node, product, (left.scale, right.scale), f"{name}_quant", factor)


def _write_conv(writer: IntegerWriter, node: ir.Node, keys: Keys) -> None:
    name, label = node.name or "", node.outputs[0].name or ""
    weight = node.inputs[1]
    assert weight is not None and weight.shape is not None
    space = len(weight.shape) - 2
    data = writer.operand(node, 0, keys)
    # The scales of channels stand before the axes of space, as the bias does.
    shape = (-1, *(1,) * space)
    kernel = writer.operand(node, 1, keys, scale_shape=shape, unsigned=True)
    result = _multiply(writer, node, data, kernel, name, label)
    bias = input_at(node, 2)
    if bias is not None:
        result.name = writer.names.fresh(f"{label}quant_scaled_output")
        wide = writer.constant(f"{label}_bias_reshape_shape", np.array([1, *shape], np.int64))
        spread = writer.add(node, "Reshape", [bias, wide], output=f"{label}_bias_reshape_output")
        result = writer.add(node, "Add", [result, spread], name=f"{label}_bias_add")
    writer.replace(node, result)


def _write_lstm(writer: IntegerWriter, node: ir.Node, keys: Keys) -> None:
    # DynamicQuantizeLSTM wants each direction's weights as (inputs, 4 * hidden).
    weights = [
        writer.operand(node, index, keys, order=(0, 2, 1), zero_points="each") for index in (1, 2)
    ]
    rest = [input_at(node, i) for i in range(3, 8)]
    inputs = [
        node.inputs[0],
        *(weight.value for weight in weights),
        *rest,
        *(v for weight in weights for v in (weight.scale, weight.zero_point)),
    ]
    node.attributes.pop("layout", None)
    writer.convert(node, "DynamicQuantizeLSTM", inputs)


def _write_attention(writer: IntegerWriter, node: ir.Node, keys: Keys) -> None:
    data, weight = (writer.operand(node, index, keys, zero_points="several") for index in (0, 1))
    bias, mask, past = (input_at(node, i) for i in (2, 3, 4))
    if bias is None:
        assert weight.value.const_value is not None
        zeros = np.zeros(weight.value.const_value.shape.numpy()[-1], np.float32)
        bias = writer.constant(f"{node.name}_bias", zeros)
    scales, zero_points = (data.scale, weight.scale), (data.zero_point, weight.zero_point)
    inputs = [data.value, weight.value, bias, *scales, mask, *zero_points, past]
    writer.convert(node, "QAttention", inputs)


def _write_embedding(writer: IntegerWriter, node: ir.Node, keys: Keys) -> None:
    tables = [
        None if node.inputs[index] is None else writer.operand(node, index, keys)
        for index in range(2, 7)
    ]
    inputs = embedding_inputs(node, tables)
    # The mask index is an output that must be there, read or not.
    node.resize_outputs(2)
    if not node.outputs[1].name:
        node.outputs[1].name = writer.names.fresh(f"{node.outputs[0].name}_mask_index")
        node.outputs[1].dtype = ir.DataType.INT32
    writer.convert(node, "QEmbedLayerNormalization", inputs)


def _write_move(writer: IntegerWriter, node: ir.Node, keys: Keys) -> None:
    source = writer.operand(node, 0, keys)
    node.replace_input_with(0, source.value)
    writer.dequantize_result(node, source)


_WRITERS: dict[str, Callable[[IntegerWriter, ir.Node, Keys], None]] = {
    "MatMul": _write_matmul,
    "Gemm": _write_gemm,
    "Conv": _write_conv,
    "LSTM": _write_lstm,
    "Attention": _write_attention,
    "EmbedLayerNormalization": _write_embedding,
    **dict.fromkeys(op_types(lambda op: op.moves and op.dynamic_op), _write_move),
}
