"""Open dimensions of a model's inputs set to sizes, and what follows for its outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx
from onnx import GraphProto, ModelProto, TensorShapeProto, ValueInfoProto

from bitwright.compat.onnxruntime.errors import InvalidSettingError
from bitwright.compat.onnxruntime.gemm_to_matmul import iter_bodies
from bitwright.errors import did_you_mean

__all__ = ["fix_input_shape", "fix_output_shapes"]


def fix_input_shape(graph: GraphProto, name: str, sizes: Sequence[int]) -> None:
    """Set the shape of an input; a named dimension gets its size wherever it stands.

    >>> from onnx import helper
    >>> x, y = (helper.make_tensor_value_info(name, 1, ["n", 3]) for name in "xy")
    >>> graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    >>> fix_input_shape(graph, "x", [8, 3])
    >>> graph.output[0].type.tensor_type.shape.dim[0].dim_value
    8
    """
    _clear_sizes_below_one(graph)
    known = {value.name: value for value in graph.input}
    if name not in known:
        raise InvalidSettingError(
            f"Input {name} was not found in graph inputs.{did_you_mean(name, known)}"
        )
    dims = known[name].type.tensor_type.shape.dim
    if len(dims) != len(sizes):
        raise InvalidSettingError(
            f"Rank mismatch. Existing:{len(dims)} Replacement:{len(sizes)}, of the input {name}."
        )
    for axis, (dim, size) in enumerate(zip(dims, sizes, strict=True)):
        if dim.HasField("dim_value") and dim.dim_value != size:
            raise InvalidSettingError(
                f"Can't replace existing fixed size of {dim.dim_value} with {size} for dimension "
                f"{axis + 1} of the input {name}."
            )
        if dim.HasField("dim_param"):
            _fix_named(graph, dim.dim_param, size)
        dim.dim_value = size


def fix_output_shapes(model: ModelProto) -> None:
    """Set the shapes of outputs that follow from those of the inputs."""
    inferred = onnx.shape_inference.infer_shapes(model)
    for value, learned in zip(model.graph.output, inferred.graph.output, strict=True):
        if not _is_fixed(value) and _is_fixed(learned):
            value.type.tensor_type.shape.CopyFrom(learned.type.tensor_type.shape)


def _is_fixed(value: ValueInfoProto) -> bool:
    shape = value.type.tensor_type
    return shape.HasField("shape") and all(dim.dim_value > 0 for dim in shape.shape.dim)


def _fix_named(graph: GraphProto, name: str, size: int) -> None:
    for dim in _dims(graph):
        if dim.dim_param == name:
            dim.dim_value = size


def _clear_sizes_below_one(graph: GraphProto) -> None:
    """Open the dimensions in which a converter wrote -1 or 0 for "any size"."""
    for dim in _dims(graph):
        if dim.HasField("dim_value") and dim.dim_value < 1:
            dim.Clear()


def _dims(graph: GraphProto) -> Iterator[TensorShapeProto.Dimension]:
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield from value.type.tensor_type.shape.dim
    for node in graph.node:
        for body in iter_bodies(node):
            yield from _dims(body)
