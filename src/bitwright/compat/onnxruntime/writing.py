"""Write a quantized model as ONNX Runtime's tool does, also one in which nothing is quantized.

Scales and zero points have its fields, shapes and order: scripts read `initializer.float_data[0]`
and `initializer.int32_data[0]`, and look for parameters by their place in the list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from bitwright import graph
from bitwright.decide.ops import RULES
from bitwright.errors import NothingQuantizedError
from bitwright.jobs.result import Result
from bitwright.numerics.types import FLOAT8E4M3FN
from bitwright.plan import NodePlan, QuantPlan
from bitwright.support.array_types import Array
from bitwright.support.wording import warn_user

RETIRED = {"optimize_model": "models are quantized as they are; run quant_pre_process before"}
"""Arguments of older releases, and why they are ignored."""


def write_model(
    run: Callable[[], Result],
    model_input: str | Path | onnx.ModelProto,
    model_output: str | Path,
    *,
    external_data: bool,
) -> Result | None:
    """Write what a job gives; the float model, and None, where it has nothing to quantize."""
    # There the output may be the input; a file is replaced at the end, by a rename.
    graph.check_destination(model_output)
    outside = external_data or None
    try:
        result = run()
    except NothingQuantizedError as error:
        graph.save_model(float_model(model_input, error), model_output, external_data=outside)
        return None
    store_parameters(result.model, result.plan)
    graph.save_model(result.model, model_output, external_data=outside)
    return result


def write_of_peer(
    run: Callable[[], onnx.ModelProto],
    foreign: Iterable[str],
    model_output: str | Path,
    *,
    external_data: bool,
) -> None:
    """Write what the peer's own pass over the nodes gives, and warn that it is that."""
    graph.check_destination(model_output)
    warn_user(
        f"a registry has other classes than the installed ones for {', '.join(sorted(foreign))}: "
        "ONNX Runtime's own quantizer makes the whole model, on ranges that Bitwright finds."
    )
    made = graph.load_model(run())
    graph.save_model(made, model_output, external_data=external_data or None)


def float_model(
    model_input: str | Path | onnx.ModelProto, error: NothingQuantizedError
) -> ir.Model:
    """Return a model as it was, with its shapes, and warn why nothing of it is quantized."""
    warn_user(f"the model is written as it was: {str(error).removesuffix('.')}.")
    model = graph.load_model(model_input)
    graph.infer_shapes(model)
    return model


_PARAMETERS = ("_scale", "_zero_point", "_scale_convert", "_zero_point_convert")
_OF_BIAS = ("_quantized_scale", "_quantized_zero_point")
_ENDS = ("_zero_point", "_scale", "_quantized", "_zero_point_convert", "_scale_convert")
_DYNAMIC_ENDS = ("_scale", "_zero_point", "_quantized")
_BIAS_ENDS = ("_quantized", "_quantized_scale", "_quantized_zero_point")


def store_parameters(model: ir.Model, plan: QuantPlan) -> None:
    """Store the scales and zero points of a quantized model, in place, where scripts look."""
    initializers = model.graph.initializers
    if plan.recipe.weight == FLOAT8E4M3FN and plan.recipe.quantize_bias:
        _cast_biases(model, plan)
    for name, value in initializers.items():
        if value.const_value is None:
            continue
        array = value.const_value.numpy()
        if name.endswith(_OF_BIAS[0]) and array.ndim == 0:
            value.const_value = ir.tensor(array.reshape(1), name=name)
            value.shape = ir.Shape([1])
        elif plan.recipe.mode == "dynamic" and (columns := _columns(name, array, initializers)):
            value.const_value = _typed(name, ir.tensor(np.full(columns, array)))
            value.shape = ir.Shape([columns])
        elif name.endswith(_PARAMETERS) and not (name.endswith(_OF_BIAS) and array.ndim):
            value.const_value = _typed(name, value.const_value)
    if plan.recipe.output_format.standard_pairs:
        order = {name: place for place, name in enumerate(_in_order(plan))}
        ordered = sorted(initializers.items(), key=lambda item: order.get(item[0], -1))
        initializers.clear()
        initializers.update(ordered)


def _cast_biases(model: ir.Model, plan: QuantPlan) -> None:
    """Put each float bias of a float8 node behind a Cast to its own type, as that tool does."""
    initializers = model.graph.initializers
    for node in list(model.graph):
        planned, rule = plan.nodes.get(node.name or ""), RULES.get(node.op_type)
        if planned is None or not planned.quantized or rule is None or rule.bias is None:
            continue
        bias = node.inputs[rule.bias] if rule.bias < len(node.inputs) else None
        if bias is None or bias.name not in initializers or bias.const_value is None:
            continue
        name, stored = str(bias.name), bias.const_value
        del initializers[name]
        bias.name = f"{name}_quantized"
        bias.const_value = ir.tensor(stored.numpy(), name=bias.name)
        initializers.add(bias)
        cast = ir.node(
            "Cast", [bias], attributes={"to": stored.dtype.value}, name=f"{name}_DequantizeLinear"
        )
        result = cast.outputs[0]
        result.name, result.type, result.shape = name, bias.type, bias.shape
        for use in list(bias.uses()):
            if use.node is not cast:
                use.node.replace_input_with(use.idx, result)
        model.graph.insert_before(model.graph[0], cast)


def _columns(name: str, array: Array, initializers: Mapping[str, ir.Value]) -> int | None:
    """Return for how many columns of a matrix one zero point stands, where each has a scale."""
    tensor = name.removesuffix("_zero_point")
    shapes = []
    for other in (f"{tensor}_scale", f"{tensor}_quantized"):
        value = initializers.get(other)
        if value is None or value.const_value is None:
            return None
        shapes.append(value.const_value.shape.numpy())
    scale, weight = shapes
    # The runtime takes one for each column of a matrix, and of a stack of them not.
    is_matrix = array.ndim == 0 and len(scale) == 1 and len(weight) == 2
    return int(scale[0]) if is_matrix else None


def _typed(name: str, tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """Return a tensor that is written into the field of its type, not as bytes."""
    array = tensor.numpy()
    is_float = not np.issubdtype(array.dtype, np.integer) and "int" not in array.dtype.name
    values = array.astype(np.float64 if is_float else np.int64).reshape(-1)
    shape = [int(dim) for dim in array.shape]
    return ir.tensor(onnx.helper.make_tensor(name, tensor.dtype.value, shape, values.tolist()))


def _in_order(plan: QuantPlan) -> Iterator[str]:
    """Yield names of parameters: tensors as nodes come to them, biases last."""
    nodes = plan.nodes.values()
    # What a removed Relu or Clip writes is met at its place, not at its producer's.
    clipped = {key for node in nodes if node.action == "absorb" for key in node.outputs}
    tensors = dict.fromkeys(
        plan.tensors[key].tensor
        for node in nodes
        for key in _keys(node)
        if node.action == "absorb" or key not in clipped
    )
    biases = [entry.tensor for entry in plan.tensors.values() if entry.role == "bias"]
    for tensor in tensors:
        if tensor not in biases:
            ends = _DYNAMIC_ENDS if plan.recipe.mode == "dynamic" else _ENDS
            yield from (f"{tensor}{end}" for end in ends)
    for tensor in biases:
        yield from (f"{tensor}{end}" for end in _BIAS_ENDS)


def _keys(node: NodePlan) -> Iterable[str]:
    """Return the entries of a node in the order in which ONNX Runtime's tool meets them."""
    rule = RULES.get(node.op)
    if rule is not None and rule.bias is not None:
        keys = (*node.inputs[:1], *node.outputs, *node.inputs[1:])
    else:
        keys = (*node.inputs, *node.outputs)
    return [key for key in keys if key is not None]
