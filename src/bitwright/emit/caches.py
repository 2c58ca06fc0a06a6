"""Write the caches of attention as integers, with a scale for each channel of each head.

ONNX Runtime's GroupQueryAttention quantizes the keys (behind the rotary angles) and values that it
appends, and reads them as integers; queries and shares stay float. 4 bits are two to a byte, the
even channel low and 8 above its value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from bitwright.errors import AlreadyQuantizedError, ModelError, NothingQuantizedError
from bitwright.graph import NameScope, add_initializer, input_at, runtime_schemas
from bitwright.graph.editing import append_node, replace_inputs
from bitwright.plan import CachePlan
from bitwright.support.array_types import Array

_ATTENTION = "GroupQueryAttention"
_PAST, _PRESENT, _SCALES = (3, 4), (1, 2), 12
_NORMS = (14, 15)
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)


class AttentionCache(NamedTuple):
    """An attention, and the inputs and outputs of the model that are its keys and values."""

    node: ir.Node
    past: list[ir.Value]
    present: list[ir.Value]

    @property
    def heads(self) -> int:
        """How many heads keys and values have."""
        return self.node.attributes.get_int("kv_num_heads", 0)

    @property
    def layer(self) -> int | None:
        """The number of its layer, by the name of what it caches."""
        number = re.search(r"\d+", self.present[0].name or "")
        return None if number is None else int(number[0])


def bits_of(cache: str | None) -> int:
    """Return the bits of the type that a recipe keeps caches in."""
    return 4 if cache == "int4" else 8


def has_caches(model: ir.Model) -> bool:
    """Whether any node of a model is attention of the kind that can cache integers."""
    return any(n.op_type == _ATTENTION and input_at(n, 3) for n in model.graph.all_nodes())


def find_caches(model: ir.Model, bits: int) -> list[AttentionCache]:
    """Return the attentions whose caches can be integers: all, or why one of them cannot."""
    nodes = [n for n in model.graph.all_nodes() if n.op_type == _ATTENTION and input_at(n, 3)]
    if not nodes:
        raise NothingQuantizedError(
            f"caches of integers are kept by {_ATTENTION}, and no node of this model is one with a "
            "cache: export it with the builder of onnxruntime-genai."
        )
    schema = runtime_schemas().get(_ATTENTION)
    if schema is None or "k_quant_type" not in schema.attributes:
        raise ModelError("the installed ONNX Runtime keeps no caches of integers; upgrade it.")
    found = [_cache_of(node) for node in nodes]
    for cache in found:
        if cache.node.attributes.get_string("k_quant_type", "NONE") != "NONE":
            raise AlreadyQuantizedError(f"the cache of {cache.node.name!r} is quantized already.")
        reason = next((why for why, holds in _needs(cache, bits).items() if not holds), None)
        if reason is not None:
            raise ModelError(f"the cache of {cache.node.name!r} cannot be int{bits}: {reason}.")
    return found


def _cache_of(node: ir.Node) -> AttentionCache:
    past = [value for place in _PAST if (value := input_at(node, place)) is not None]
    return AttentionCache(node, past, list(node.outputs[1:3]))


def _needs(cache: AttentionCache, bits: int) -> dict[str, bool]:
    """Return what the runtime, and who calls the model, ask of a cache; else, and whether it is."""
    node, past, present = cache
    size, step = _head_size(node), 16 if bits == 8 else 32
    ring = node.attributes.get_int("sliding_window_cache", 0)
    return {
        "the model computes it, or casts it, and hands it on": len(past) == 2
        and all(value.is_graph_input() for value in past),
        "other nodes read it, too": all(len(value.uses()) == 1 for value in past),
        "what it becomes is not handed out, or read by other nodes": len(present) == 2
        and all(value.is_graph_output() and not value.uses() for value in present),
        "it is not float": all(value.dtype in _FLOATS for value in past),
        "ONNX Runtime's CPU provider does not normalize queries and keys beside it": not any(
            input_at(node, place) for place in _NORMS
        ),
        f"a ring of slots takes heads of a multiple of {step}, and these have {size}": not (
            ring and size and size % step
        ),
        f"heads of {size} do not fill whole bytes": bits == 8 or not size or size % 2 == 0,
    }


def _head_size(node: ir.Node) -> int | None:
    """Return the size of a head: of the cache, or of the queries that stand before keys and values.

    The builder leaves that of the cache open.
    """
    past, query, key = (input_at(node, place) for place in (_PAST[0], 0, 1))
    given = None if past is None or not past.shape else past.shape[-1]
    width = None if query is None or not query.shape else query.shape[-1]
    heads = node.attributes.get_int("num_heads", 0)
    heads += 0 if key is not None else 2 * node.attributes.get_int("kv_num_heads", 0)
    if isinstance(given, int):
        return given
    return width // heads if isinstance(width, int) and heads else None


def quantize_caches(model: ir.Model, plans: Mapping[str, CachePlan], bits: int) -> tuple[int, int]:
    """Let attentions keep keys and values as integers, in place, with these scales.

    Return the bytes that a token took in all caches, and those that it takes.
    """
    names, bits_before, bits_after = NameScope(model), 0, 0
    for cache in find_caches(model, bits):
        plan, node = plans[cache.node.name or ""], cache.node
        whole = len(plan.key) == len(plan.value) == 1
        kind = "PER_TENSOR" if whole else "PER_CHANNEL"
        size = _size_of(cache, plan)
        settings: dict[str, str | int] = {"k_quant_type": kind, "v_quant_type": kind}
        settings["kv_cache_bit_width"] = bits
        for name, setting in settings.items():
            node.attributes[name] = ir.convenience.convert_attribute(name, setting)
        inputs = [*node.inputs[:_SCALES], *[None] * (_SCALES - len(node.inputs))]
        for part, given in (("k", plan.key), ("v", plan.value)):
            scales = np.resize(np.asarray(given, np.float32), 1 if whole else cache.heads * size)
            label = f"model.layers.{cache.layer}.attn.{part}_scale"
            inputs.append(add_initializer(model.graph, names, label, scales))
        replace_inputs(node, inputs)
        for value in (*cache.past, *cache.present):
            assert value.shape is not None and value.dtype is not None
            if value.is_graph_input():
                bits_before += cache.heads * size * value.dtype.bitwidth
                bits_after += cache.heads * size * bits
            value.type = ir.TensorType(ir.DataType.INT8 if bits == 8 else ir.DataType.UINT8)
            # A number: runtimes size the empty cache by it.
            value.shape = ir.Shape([*list(value.shape)[:-1], size if bits == 8 else size // 2])
    return bits_before // 8, bits_after // 8


def _size_of(cache: AttentionCache, plan: CachePlan) -> int:
    """Return the size of a head, after checking that there is a scale for each channel."""
    several = {len(scales) for scales in (plan.key, plan.value)} - {1}
    size = _head_size(cache.node) or max(several, default=0) // max(cache.heads, 1)
    if not size or several - {cache.heads * size}:
        raise ModelError(
            f"the cache of {cache.node.name!r} has {max(several, default=1)} scales; it takes one, "
            f"or one for each channel of its {cache.heads} heads."
        )
    return size


# The same with float caches --------------------------------------------------------------------

_Operand = ir.Value | int | float | list[int] | Array
_Add = Callable[..., ir.Value]


def with_float_caches(model: ir.Model) -> None:
    """Give a model with integer caches float ones outside, in place: what callers of float see."""
    graph, kinds, add = model.graph, (ir.DataType.INT8, ir.DataType.UINT8), _adder(model)
    stored = {value for value in graph.inputs if value.dtype in kinds}
    nodes = [n for n in graph.all_nodes() if n.op_type == _ATTENTION and input_at(n, 3) in stored]
    for node in nodes:
        packed = node.attributes.get_int("kv_cache_bit_width", 8) == 4
        heads, query = node.attributes.get_int("kv_num_heads", 0), node.inputs[0]
        kind = query.dtype if query is not None and query.dtype else ir.DataType.FLOAT
        for place, (past, present) in enumerate(zip(_PAST, _PRESENT, strict=True)):
            scale, inside, made = input_at(node, _SCALES + place), node.inputs[past], node.outputs
            assert scale is not None and scale.const_value is not None
            assert inside is not None and inside.shape is not None and inside.dtype is not None
            size = int(inside.shape[-1]) * (2 if packed else 1)  # type: ignore[arg-type]
            scales = scale.const_value.numpy()
            scales = scales.reshape(1, heads, 1, size) if scales.size > 1 else scales
            shape = ir.Shape([*list(inside.shape)[:-1], size])
            outer = ir.Value(name=inside.name, type=ir.TensorType(kind), shape=shape)
            graph.inputs[graph.inputs.index(inside)] = outer
            steps = add("Round", add("Div", add("Cast", outer, to=1), scales))
            codes = _pack(add, steps, size) if packed else add("Clip", steps, -128.0, 127.0)
            node.replace_input_with(past, add("Cast", codes, to=int(inside.dtype)))
            outside = made[present]
            label, outside.name = outside.name, f"{outside.name}_integers"
            codes = add("Cast", outside, to=1)
            codes = _unpack(add, codes, size) if packed else codes
            floats = add("Cast", add("Mul", codes, scales), to=int(kind))
            floats.name, floats.type = label, ir.TensorType(kind)
            graph.outputs[graph.outputs.index(outside)] = floats
    if nodes:
        graph.sort()


def _pack(add: _Add, steps: ir.Value, size: int) -> ir.Value:
    codes = add("Add", add("Clip", steps, -8.0, 7.0), 8.0)
    pairs = add("Reshape", codes, [0, 0, 0, size // 2, 2])
    low, high = (add("Gather", pairs, place, axis=-1) for place in (0, 1))
    return add("Add", low, add("Mul", high, 16.0))


def _unpack(add: _Add, codes: ir.Value, size: int) -> ir.Value:
    low, high = add("Mod", codes, 16.0, fmod=1), add("Floor", add("Div", codes, 16.0))
    pairs = add("Concat", *(add("Unsqueeze", half, [-1]) for half in (low, high)), axis=-1)
    return add("Sub", add("Reshape", pairs, [0, 0, -1, size]), 8.0)


def _adder(model: ir.Model) -> _Add:
    """Return what adds a node behind all others: its operands are values, numbers and axes."""
    names = NameScope(model)

    def value_of(operand: _Operand) -> ir.Value:
        if isinstance(operand, ir.Value):
            return operand
        kind = np.int64 if isinstance(operand, int | list) else np.float32
        return add_initializer(model.graph, names, "cache_constant", np.asarray(operand, kind))

    def add(op: str, *operands: _Operand, **attributes: int) -> ir.Value:
        values, name = [*map(value_of, operands)], names.fresh(f"cache_{op}")
        return append_node(model.graph, op, values, ir.Value(name=name), name, attributes)

    return add


def channel_scales(peaks: Array, bits: int) -> tuple[float, ...]:
    """Return the scales for the largest magnitudes of channels.

    >>> channel_scales(np.array([127.0, 0.0]), 8)
    (1.0, 9.999999974752427e-07)
    """
    # A channel that is always 0 may be anything but that elsewhere.
    found = np.maximum(np.float32(peaks).reshape(-1), 1e-6) / np.float32(2 ** (bits - 1) - 1)
    return tuple(np.maximum(found, np.float32(1e-6)).tolist())
