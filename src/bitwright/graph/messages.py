"""Check the message of a model before it is read: what no exporter writes, and all that is huge.

onnx-ir and NumPy read a tensor when its numbers are asked for, and fail there with errors of their
own. Here each claim is held against what is there, once, in one walk over the message.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from functools import cache

import onnx
import onnx_ir as ir

from bitwright.errors import ModelError
from bitwright.graph.runtime_ops import find_schema
from bitwright.support.input_limits import check_limit

_Tensor, _Attribute = onnx.TensorProto, onnx.AttributeProto

# Where a tensor's numbers are, and how many entries a number takes there, if not in raw_data.
_FIELDS: dict[int, str] = {
    **dict.fromkeys((_Tensor.FLOAT, _Tensor.COMPLEX64), "float_data"),
    **dict.fromkeys((_Tensor.DOUBLE, _Tensor.COMPLEX128), "double_data"),
    _Tensor.INT64: "int64_data",
    **dict.fromkeys((_Tensor.UINT32, _Tensor.UINT64), "uint64_data"),
    _Tensor.STRING: "string_data",
}
_PAIRS = (_Tensor.COMPLEX64, _Tensor.COMPLEX128)

# A message holds no more bytes, and so no more numbers.
_LARGEST_INDEX = 2**63 - 1

_ATTRIBUTE_TYPES = frozenset(_Attribute.AttributeType.values()) - {_Attribute.UNDEFINED}

# Between opsets 11 and 12 these were required, and exporters leave them out where the runtime
# does not read them.
_MAY_BE_EMPTY = frozenset({"Resize"})

# The runtime takes these for a C int, and divides by what is left of it.
_COUNTS = frozenset({"group", "hidden_size", "kv_num_heads", "num_groups", "num_heads"})
_LARGEST_COUNT = 2**31 - 1

_CONSTANT_VALUES = frozenset(
    "sparse_value value value_float value_floats value_int value_ints value_string "
    "value_strings".split()
)

_NEWEST_OPSET = 2**31 - 1
"""ONNX's own functions take a C int."""


_Key = tuple[str, str] | None
_Counts = dict[tuple[str, str], int]
"""How often operators are called, by domain and name."""


def check_message(proto: onnx.ModelProto, what: str, elsewhere: Collection[str] = ()) -> None:
    """Raise a ModelError for a message that contradicts itself or is above a limit.

    Tensors `elsewhere` were parsed without their data.
    """
    _check_text((text for one in proto.functions for text in (one.name, one.domain)), what)
    _check_remarks(proto, what)
    opsets = {one.domain: one.version for one in proto.opset_import}
    for domain, version in opsets.items():
        if not 0 <= version <= _NEWEST_OPSET:
            name = domain or "ai.onnx"
            raise _damaged(f"{what} says that it uses opset {version} of {name!r}, which cannot be")
    opset = opsets.get("", opsets.get("ai.onnx", 0))
    bodies = {(one.domain, one.name): one for one in proto.functions}
    counts: dict[_Key, _Counts] = {None: _check_graph(proto.graph, what, opset, 0, elsewhere)}
    counts |= {key: _check_nodes(one.node, what, opset, 1) for key, one in bodies.items()}
    _check_size(counts, what)


def _damaged(problem: str) -> ModelError:
    return ModelError(f"{problem}; export it again.")


def _check_graph(
    graph: onnx.GraphProto, what: str, opset: int, depth: int, elsewhere: Collection[str] = ()
) -> _Counts:
    check_limit("nesting", depth, f"{what} has {depth} bodies within each other", ModelError)
    _check_text([one.name for one in (*graph.input, *graph.output, *graph.initializer)], what)
    for tensor in graph.initializer:
        if tensor.name not in elsewhere:
            _check_tensor(tensor, tensor.name, what)
    for value in graph.input:
        _check_shape(value, what)
    return _check_nodes(graph.node, what, opset, depth)


def _check_nodes(nodes: Iterable[onnx.NodeProto], what: str, opset: int, depth: int) -> _Counts:
    counts: _Counts = {}
    for node in nodes:
        _check_text((node.name, node.op_type, node.domain, *node.input, *node.output), what)
        key = (node.domain, node.op_type)
        counts[key] = counts.get(key, 0) + 1
        if node.domain in ("", "ai.onnx"):
            _check_node(node, what, opset)
        for attribute in node.attribute:
            for body in _check_attribute(attribute, node, what, opset):
                for name, count in _check_graph(body, what, opset, depth + 1).items():
                    counts[name] = counts.get(name, 0) + count
    return counts


def _check_text(names: Iterable[object], what: str) -> None:
    for name in names:
        if isinstance(name, bytes):  # what protobuf gives for text that is none
            raise _damaged(f"{what}: the name {name!r} is not UTF-8")


def _check_remarks(proto: onnx.ModelProto, what: str) -> None:
    """Check what is written again but never read: remarks, metadata, the maker's name."""
    texts = [proto.producer_name, proto.producer_version, proto.domain, proto.doc_string]
    texts += [proto.graph.name, proto.graph.doc_string]
    for entries in (proto.metadata_props, proto.graph.metadata_props):
        texts += [text for entry in entries for text in (entry.key, entry.value)]
    if any(isinstance(text, bytes) for text in texts):
        raise _damaged(f"{what}: its remarks or metadata are not UTF-8")


def _check_node(node: onnx.NodeProto, what: str, opset: int) -> None:
    required, fewest, attributes = _required(node.op_type, opset)
    name = f"node {node.name or (node.output or [''])[0]!r} ({node.op_type})"
    if len(node.input) < fewest:
        raise _damaged(f"{what}: {name} has {len(node.input)} of at least {fewest} inputs")
    for index in required:
        if index < len(node.input) and not node.input[index]:
            raise _damaged(f"{what}: {name} leaves out its input {index}")
    if not node.output:
        raise _damaged(f"{what}: {name} has no output")
    given = {attribute.name for attribute in node.attribute}
    for attribute in attributes:
        if attribute not in given:
            raise _damaged(f"{what}: {name} has no attribute {attribute!r}")
    if node.op_type == "Constant" and len(given) != 1:
        raise _damaged(f"{what}: {name} has {len(given)} values instead of one")
    if node.op_type == "Constant" and not given <= _CONSTANT_VALUES:
        raise _damaged(f"{what}: {name} has no value")


@cache
def _required(op_type: str, opset: int) -> tuple[tuple[int, ...], int, tuple[str, ...]]:
    """Return which inputs of an operator must be there, the smallest number of them, and which
    attributes must be."""
    schema = find_schema(op_type, max(opset, 1))
    if schema is None:
        return (), 0, ()
    single = onnx.defs.OpSchema.FormalParameterOption.Single
    inputs = tuple(i for i, one in enumerate(schema.inputs) if one.option == single)
    attributes = tuple(name for name, one in schema.attributes.items() if one.required)
    return () if op_type in _MAY_BE_EMPTY else inputs, schema.min_input, attributes


@cache
def _attribute_types(domain: str, op_type: str, opset: int) -> dict[str, int]:
    """Return the types of an operator's attributes, by their names."""
    schema = find_schema(op_type, max(opset, 1)) if domain in ("", "ai.onnx") else None
    if schema is None:
        return {}
    types = {name: one.type for name, one in schema.attributes.items()}
    return {name: int(kind.value) for name, kind in types.items()}  # type: ignore[attr-defined]


def _check_attribute(
    attribute: onnx.AttributeProto, node: onnx.NodeProto, what: str, opset: int
) -> Iterator[onnx.GraphProto]:
    """Check an attribute and the tensors in it, and yield the graphs in it."""
    _check_text((attribute.name,), what)
    where = f"the attribute {attribute.name!r} of node {node.name or node.op_type!r}"
    # A reference to an attribute of the function has no value of its own.
    if attribute.type not in _ATTRIBUTE_TYPES and not attribute.ref_attr_name:
        raise _damaged(f"{what}: {where} has no known type")
    expected = _attribute_types(node.domain, node.op_type, opset).get(attribute.name)
    if expected not in (None, attribute.type) and not attribute.ref_attr_name:
        raise _damaged(f"{what}: {where} is of the wrong type")
    if attribute.name in _COUNTS and not 0 <= attribute.i <= _LARGEST_COUNT:
        raise _damaged(f"{what}: {where} cannot be {attribute.i}")
    names_type = node.op_type == "Cast" and attribute.name == "to" and not node.domain
    if names_type and not attribute.ref_attr_name and not _is_element_type(attribute.i):
        raise _damaged(f"{what}: {where} names the unknown element type {attribute.i}")
    if attribute.type == _Attribute.TENSOR and not attribute.ref_attr_name:
        _check_tensor(attribute.t, f"of {where}", what)
    for tensor in attribute.tensors:
        _check_tensor(tensor, f"of {where}", what)
    if attribute.type == _Attribute.GRAPH:
        yield attribute.g
    yield from attribute.graphs


def _is_element_type(number: int) -> bool:
    return number != ir.DataType.UNDEFINED and number in ir.DataType.__members__.values()


def _check_tensor(tensor: onnx.TensorProto, name: str, what: str) -> None:
    where = f"{what}: tensor {name if name.startswith('of ') else repr(name)}"
    kind = tensor.data_type
    if not _is_element_type(kind):
        raise _damaged(f"{where} has the unknown element type {kind}")
    if any(size < 0 for size in tensor.dims) or math.prod(tensor.dims) > _LARGEST_INDEX:
        shape = "x".join(map(str, tensor.dims))
        raise _damaged(f"{where} has the impossible shape {shape}")
    if tensor.data_location == _Tensor.EXTERNAL:
        return  # its length is held against its file
    expected, found, unit = math.prod(tensor.dims), 0, "numbers"
    dtype = ir.DataType(kind)
    if kind == _Tensor.STRING:
        found = len(tensor.string_data)
    elif tensor.HasField("raw_data"):
        expected, found, unit = (expected * dtype.bitwidth + 7) // 8, len(tensor.raw_data), "bytes"
    else:
        expected = _entries(expected, kind, dtype.bitwidth)
        found = len(getattr(tensor, _FIELDS.get(kind, "int32_data")))
    if expected != found:
        shape = "x".join(map(str, tensor.dims)) or "one number"
        raise _damaged(f"{where} of shape {shape} needs {expected} {unit} and has {found}")


def _entries(count: int, kind: int, bits: int) -> int:
    """Return how many entries of its list the numbers of a tensor take."""
    if kind in _PAIRS:
        return 2 * count
    return (count * bits + 7) // 8 if bits < 8 else count


def _check_shape(value: onnx.ValueInfoProto, what: str) -> None:
    """Refuse an input without an element type, or with sizes that cannot be."""
    if not value.type.HasField("tensor_type"):
        return  # sequences and the like are refused where samples are made for them
    tensor = value.type.tensor_type
    if tensor.elem_type == _Tensor.UNDEFINED:
        raise _damaged(f"{what}: input {value.name!r} has no element type")
    sizes = [one.dim_value for one in tensor.shape.dim if one.HasField("dim_value")]
    if math.prod(max(size, 1) for size in sizes) > _LARGEST_INDEX:
        shape = "x".join(map(str, sizes))
        raise _damaged(f"{what}: input {value.name!r} has the impossible shape {shape}")


def _check_size(counts: dict[_Key, _Counts], what: str) -> None:
    """Count the nodes that there are when each function stands where it is called."""
    sizes: dict[tuple[str, str], int] = {}
    waiting: list[_Key] = [None]
    open_calls: set[_Key] = set()
    while waiting:
        key = waiting[-1]
        inner = [name for name in counts[key] if name in counts and name not in sizes]
        if inner and key in open_calls:
            raise _damaged(f"{what} has functions that call each other in a circle")
        open_calls.add(key)
        if inner:
            waiting += inner
            continue
        total = sum(number * sizes.get(name, 1) for name, number in counts[key].items())
        waiting.pop()
        open_calls.discard(key)
        if key is not None:
            sizes[key] = total
        else:
            check_limit("nodes", total, f"{what} has {total} nodes", ModelError)
