"""Shapes and element types of the tensors in a model, as far as they can be known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import onnx
import onnx_ir as ir

from bitwright.graph.cloning import strip_weights
from bitwright.graph.constants import input_at
from bitwright.graph.runtime_ops import find_schema, keeps_type, stand_in_for_shapes
from bitwright.graph.source import try_source
from bitwright.graph.subgraphs import iter_graphs, iter_messages, iter_values, subgraphs_of
from bitwright.graph.tensors import shape_of
from bitwright.support.collector import without_collection
from bitwright.support.processes.trial import call_worker
from bitwright.support.scratch import ScratchFolder
from bitwright.support.wording import reason_of

_LONGEST = 1 << 22
"""Elements of a row that ONNX may list where it follows the values of sizes: four take 1 µs."""


@without_collection()
def infer_shapes(model: ir.Model, *, apart: bool = False) -> str | None:
    """Fill in shapes and types in place; what cannot be inferred stays as it was.

    Runs ONNX's own inference over the graph without its weights, then passes element types along
    where an operator's output has the type of its input. Never fails: a model with unknown
    operators is simply known less well. Returns why ONNX's inference could not run, if so. It may
    end the process by a model by which ONNX Runtime crashes, too: `apart` runs it in another one.
    """
    if not apart:
        try_source(model)
    problem = _infer_by_onnx(model, _infer_apart if apart else _infer_here)
    _propagate_types(model.graph, model.graph.opset_imports)
    return problem


def forget_invented_sizes(model: ir.Model) -> None:
    """Make the sizes unknown again that ONNX's inference made up names for (unk__0).

    The runtime would tell them to whoever asks for the shapes of outputs.
    """
    forget_sizes(model, is_invented)


def forget_sizes(model: ir.Model, is_wrong: Callable[[int | ir.SymbolicDim], bool]) -> None:
    """Make sizes unknown that are not to be relied on, wherever they stand."""
    for _, value in iter_values(model):
        if value.shape is not None and any(map(is_wrong, value.shape)):
            value.shape = ir.Shape([None if is_wrong(dim) else dim for dim in value.shape])


def is_invented(dim: int | ir.SymbolicDim) -> bool:
    """Whether a size is a name that ONNX's inference made up."""
    return isinstance(dim, ir.SymbolicDim) and (dim.value or "").startswith("unk__")


def assume_types(model: ir.Model, dtype: ir.DataType) -> None:
    """Take tensors for which no element type is known to have this one, in graph order.

    What can be inferred once they have it is inferred, so that a Shape behind an unknown operator
    still gives integers.
    """
    while True:
        unknown = next(
            (
                value
                for _, graph in iter_graphs(model)
                for node in graph
                for value in node.outputs
                if value.name and value.type is None
            ),
            None,
        )
        if unknown is None:
            return
        unknown.type = ir.TensorType(dtype)
        _propagate_types(model.graph, model.graph.opset_imports)


def static_shape(value: ir.Value) -> tuple[int, ...] | None:
    """Return the shape if every dimension is a known number, else None."""
    shape = value.shape
    if shape is None and value.const_value is not None:
        shape = shape_of(value.const_value)
    if shape is None or not shape.is_static():
        return None
    return tuple(int(dimension) for dimension in shape.numpy())


def sizes_of(value: ir.Value | None) -> list[int | None] | None:
    """Return the size of each dimension, None for an open one; None where no shape is known."""
    if value is None or value.shape is None:
        return None
    return [size if isinstance(size, int) else None for size in value.shape]


def set_input_shapes(
    model: ir.Model, shapes: Mapping[str, Sequence[int | str | None]], sizes: Mapping[str, int]
) -> None:
    """Give inputs these shapes, and named dimensions their sizes wherever they stand.

    Shapes inside the graph that hold other open dimensions are forgotten: they may be fixed now,
    and are inferred again.
    """
    for value in model.graph.inputs:
        if value.name is not None and value.name in shapes:
            value.shape = ir.Shape(shapes[value.name])
    for node in model.graph.all_nodes():
        for value in node.outputs:
            if value.shape is not None:
                value.shape = _with_sizes(value.shape, sizes, keep=value.is_graph_output())


def _with_sizes(shape: ir.Shape, sizes: Mapping[str, int], *, keep: bool) -> ir.Shape | None:
    known = [
        dim if isinstance(dim, int) else sizes.get(dim.value or "", dim.value) for dim in shape
    ]
    return ir.Shape(known) if keep or all(isinstance(dim, int) for dim in known) else None


def element_type(value: ir.Value) -> ir.DataType | None:
    """Return the element type of a tensor, or None where it is unknown or no tensor."""
    if value.type is not None and not isinstance(value.type, ir.TensorType):
        return None
    if value.dtype is not None and value.dtype != ir.DataType.UNDEFINED:
        return value.dtype
    return value.const_value.dtype if value.const_value is not None else None


def take_over_shapes(model: ir.Model, inferred: onnx.ModelProto) -> None:
    """Give the tensors of a model the shapes and types that its inferred copy has for them."""
    learned = dict(iter_messages("", inferred.graph))
    for path, graph in iter_graphs(model):
        if path in learned:
            _merge(graph, learned[path])


def _infer_by_onnx(model: ir.Model, infer: Callable[..., onnx.ModelProto]) -> str | None:
    proto = strip_weights(model).proto
    stand_in_for_shapes(proto)
    problem: Exception
    # Propagating data fails on some odd models, and takes tensors of one name in two branches of an
    # If, as optimum's merged decoders have them, for one. A size of 2^32 would take it an hour.
    plain = _repeats_names(proto.graph) or _has_huge_sizes(proto.graph)
    for data_prop in (False,) if plain else (True, False):
        try:
            take_over_shapes(model, infer(proto, data_prop=data_prop))
        except Exception as error:  # noqa: BLE001 (a C++ failure of any kind means: not known)
            problem = error
            continue
        return None
    return reason_of(problem)


def _infer_here(proto: onnx.ModelProto, *, data_prop: bool) -> onnx.ModelProto:
    return onnx.shape_inference.infer_shapes(
        proto, check_type=False, strict_mode=False, data_prop=data_prop
    )


def _infer_apart(proto: onnx.ModelProto, *, data_prop: bool) -> onnx.ModelProto:
    """Run ONNX's inference in another process."""
    with ScratchFolder("shapes") as scratch:
        path = scratch.path / "model.onnx"
        with scratch.writing():
            onnx.save(proto, path)
        call_worker("infer_shapes", path, data_prop=data_prop)
        return onnx.load(path)


def _has_huge_sizes(graph: onnx.GraphProto) -> bool:
    """Return whether an input is so long that ONNX would take seconds to list its elements."""
    shapes = (value.type.tensor_type.shape for value in graph.input)
    return any(dim.dim_value > _LONGEST for shape in shapes for dim in shape.dim)


def _repeats_names(graph: onnx.GraphProto) -> bool:
    """Return whether two graphs of a model define tensors of the same name."""
    defined = [
        name
        for _, body in iter_messages("", graph)
        for node in body.node
        for name in node.output
        if name
    ]
    return len(set(defined)) < len(defined)


def _merge(graph: ir.Graph, learned: onnx.GraphProto) -> None:
    by_name = {info.name: info for info in (*learned.value_info, *learned.output)}
    for node in graph:
        for value in node.outputs:
            if not value.name or value.name not in by_name:
                continue
            found = ir.serde.deserialize_value_info_proto(by_name[value.name], None)
            if value.type is None or element_type(value) is None:
                value.type = found.type or value.type
            if found.shape is not None:
                value.shape = _merged_shape(value.shape, found.shape)


def _merged_shape(old: ir.Shape | None, new: ir.Shape) -> ir.Shape:
    if old is None or len(old) != len(new):
        return new
    # Numbers beat names, and the names that the model came with beat invented ones.
    return ir.Shape(
        [
            theirs if isinstance(theirs, int) or not _named(ours) else ours
            for ours, theirs in zip(old, new, strict=True)
        ]
    )


def _named(dimension: int | ir.SymbolicDim) -> bool:
    return isinstance(dimension, int) or dimension.value is not None


def _propagate_types(graph: ir.Graph, opsets: dict[str, int]) -> None:
    for value in graph.initializers.values():
        if value.const_value is None:
            continue
        if value.type is None:
            value.dtype = value.const_value.dtype
        if value.shape is None:  # a constant that is a graph output is known by what that says
            value.shape = shape_of(value.const_value)
    for node in graph:
        # Bodies come before the node that owns them: its outputs have the types of theirs.
        for _, body in subgraphs_of(node):
            _propagate_types(body, opsets)
        for index, value in enumerate(node.outputs):
            if value.type is not None and value.dtype != ir.DataType.UNDEFINED:
                continue
            found = _output_type(node, index, opsets)
            if found is not None:
                value.type = ir.TensorType(found)


def _output_type(node: ir.Node, index: int, opsets: dict[str, int]) -> ir.DataType | None:
    if node.domain == "com.microsoft":
        if keeps_type(node.op_type, index):
            return _input_type(node, 0)
        if index == 0 and node.op_type == "EmbedLayerNormalization":
            return _input_type(node, 2)  # the words' embedding; before it come indices
        return None
    if node.domain:
        return None
    if node.op_type == "Cast":
        target = node.attributes.get("to")
        return ir.DataType(target.as_int()) if target is not None else None
    body = next((body for _, body in subgraphs_of(node)), None)
    if body is not None and node.op_type != "SequenceMap":  # which returns no tensors
        skip = 1 if node.op_type == "Loop" else 0  # a Loop's body also returns its condition
        outputs = body.outputs[skip:]
        return element_type(outputs[index]) if index < len(outputs) else None
    schema = find_schema(node.op_type, opsets.get("", 1))
    if schema is None:
        return _input_type(node, 0) if keeps_type(node.op_type, index) else None
    if index >= len(schema.outputs):
        return None
    kind = schema.outputs[index].type_str
    if kind.startswith("tensor("):
        return _TYPES_BY_NAME.get(kind)
    for position, formal in enumerate(schema.inputs):
        if formal.type_str == kind and (found := _input_type(node, position)) is not None:
            return found
    return None


def _input_type(node: ir.Node, position: int) -> ir.DataType | None:
    value = input_at(node, position)
    return element_type(value) if value is not None else None


_TYPES_BY_NAME = {
    f"tensor({dtype.name.lower()})": dtype for dtype in ir.DataType if dtype.name != "UNDEFINED"
}
