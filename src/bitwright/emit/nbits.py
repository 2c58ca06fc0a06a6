"""Write low-bit block-wise weights into a graph whose activations stay float.

Three forms: the n-bit operators of ONNX Runtime (MatMulNBits, GatherBlockQuantized for tables of
embeddings, QMoE for mixtures of experts), standard DequantizeLinear in blocks, and floats that
have the rounded values. A weight is stored once however many nodes read it; a head and its
embedding share one copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from bitwright.emit.experts import StoredExperts, to_experts
from bitwright.emit.nbits_nodes import (
    Reader,
    read_matrix,
    readers_of,
    reason_against,
    to_lookup,
    to_nbits,
)
from bitwright.emit.quantized import MICROSOFT, quantized_tensor
from bitwright.errors import PlanError, TargetError, did_you_mean
from bitwright.graph import (
    NameScope,
    add_initializer,
    drop_if_unused,
    graph_of,
    insert_after,
    is_constant,
    iter_values,
    opset_of,
    remove_unused_initializers,
)
from bitwright.graph.tensors import shape_of
from bitwright.numerics.blocks import QuantizedBlocks
from bitwright.numerics.nbits import (
    NBitsTensors,
    check_nbits_support,
    expert_codes,
    expert_scales,
    expert_zero_points,
    kind_of_zero_points,
    pack_codes,
    pack_nbits,
    pack_scales,
    pack_table,
    pack_zero_points,
    slow_reason,
    widen,
)
from bitwright.numerics.stacked import as_stack
from bitwright.numerics.types import INT2, INT4, INT8, UINT2, UINT4, UINT8, QType
from bitwright.plan import QuantPlan

__all__ = ["FORMS", "emit_blocks", "emit_weight_only"]

Array = npt.NDArray[Any]
Pack = Callable[[QuantizedBlocks], Array]

_SIGNED = {2: INT2, 4: INT4, 8: INT8}
_UNSIGNED = {2: UINT2, 4: UINT4, 8: UINT8}


def emit_weight_only(
    model: ir.Model, plan: QuantPlan, weights: Mapping[str, QuantizedBlocks]
) -> list[str]:
    """Store the weights that a plan names as its recipe asks for; see `emit_blocks`."""
    options = plan.recipe.weights
    level = options.accuracy_level
    return emit_blocks(
        model,
        weights,
        readers={name: planned.nodes for name, planned in plan.weights.items()},
        output=options.output,
        accuracy_level=None if level == "auto" else level,  # who measures sets the level
    )


def emit_blocks(
    model: ir.Model,
    weights: Mapping[str, QuantizedBlocks],
    *,
    readers: Mapping[str, Sequence[str]] | None = None,
    output: str = "matmul-nbits",
    accuracy_level: int | None = None,
) -> list[str]:
    """Store low-bit weights, in place; return a sentence for each thing worth knowing.

    `weights` maps the (qualified) names of constants to their blocks, [K, N] as a product reads
    them, whichever way round the model holds them. It is asked for one weight at a time, and again
    when the model is written, so that it may keep them on disk. `readers` names the nodes that
    read each weight in blocks; without it all do that can (MatMul, Gemm and Gather by rows). The
    accuracy level None is 4 where nothing else is fast, else 0.
    """
    values = dict(iter_values(model))
    for name in weights:
        if name not in values or not is_constant(values[name]):
            raise PlanError(f"the model has no constant {name!r}.{did_you_mean(name, values)}")
    if output == "qdq" and opset_of(model) < 21:
        raise PlanError(
            f"blocks of DequantizeLinear need opset 21, and the model has {opset_of(model)}; "
            "upgrade it first."
        )
    writer = _Writer(model, output, accuracy_level)
    for name in weights:
        wanted = None if readers is None else frozenset(readers.get(name, ()))
        writer.write(values[name], lambda name=name: weights[name], wanted)  # type: ignore[misc]
    writer.write_experts()
    if writer.uses_domain:
        model.opset_imports.setdefault(MICROSOFT, 1)
    remove_unused_initializers(model)
    return list(dict.fromkeys(writer.notes))


class _Held(NamedTuple):
    """A weight, its blocks, how to get them again, and the nodes that will read them."""

    value: ir.Value
    blocks: QuantizedBlocks
    load: Callable[[], QuantizedBlocks]
    readers: list[Reader]
    transposed: bool
    """Whether the nodes read [N, K]."""

    @property
    def name(self) -> str:
        """The weight's name."""
        return self.value.name or "weight"

    @property
    def leading(self) -> tuple[int, ...]:
        """The axes of a stack of matrices, such as a mixture's experts; none of a matrix."""
        assert self.value.const_value is not None
        return tuple(self.value.const_value.shape.numpy()[:-2])


class _Writer:
    def __init__(self, model: ir.Model, output: str, accuracy_level: int | None) -> None:
        self.notes: list[str] = []
        self.uses_domain = False
        self._write_form = FORMS[output]
        self._level = accuracy_level
        self._opset = opset_of(model)
        self._names = NameScope(model)
        self._experts: dict[ir.Node, dict[int, StoredExperts]] = {}

    def write(
        self,
        weight: ir.Value,
        load: Callable[[], QuantizedBlocks],
        wanted: frozenset[str] | None,
    ) -> None:
        """Store one weight for those of its readers that take it in blocks."""
        taken = self._choose_readers(weight, wanted)
        held = _Held(weight, load(), load, taken, taken[0].transposed)
        _check_shape(held)
        self._write_form(self, held)
        for reader in taken:
            transpose = reader.through
            if transpose is not None and transpose.graph and not transpose.outputs[0].uses():
                transpose.graph.remove(transpose, safe=True)
        drop_if_unused(weight)

    def _choose_readers(self, weight: ir.Value, wanted: frozenset[str] | None) -> list[Reader]:
        """Return the nodes that take a weight in blocks, all of them the same way round."""
        found = readers_of(weight)
        reasons = [reason_against(reader, wanted) for reader in found]
        taken = [r for r, reason in zip(found, reasons, strict=True) if reason is None]
        if len({reader.transposed for reader in taken}) > 1:
            # Blocks run along the inputs of a product; the other way round they are others.
            taken = [reader for reader in taken if not reader.rowwise]
            if len({reader.transposed for reader in taken}) > 1:
                raise PlanError(
                    f"weight {weight.name!r} is read both as it is and transposed; leave one of "
                    f"{[reader.node.name for reader in taken]} float."
                )
        if not taken:
            raise PlanError(
                f"nothing reads weight {weight.name!r} in a way that blocks allow: "
                f"{'; '.join(sorted({reason for reason in reasons if reason is not None}))}."
            )
        if len(taken) < len(found):
            others = {r.node.name or r.node.op_type for r in found if r not in taken}
            self.notes.append(
                f"weight {weight.name!r} stays in the model as floats as well, for "
                f"{sorted(others)}."
            )
        return taken

    # MatMulNBits, GatherBlockQuantized and QMoE ---------------------------------------------------

    def write_nbits(self, held: _Held) -> None:
        """Turn products and lookups into the runtime's own."""
        name, blocks = held.name, widen(held.blocks)
        if blocks.format.bits != held.blocks.format.bits:
            self.notes.append(
                f"weight {name!r} has {held.blocks.format.bits} bits and is stored in "
                f"{blocks.format.bits}: there are no kernels for its own width."
            )
        self.uses_domain = True
        if held.leading:
            self._keep_experts(held, blocks)
            return
        products = [r.node for r in held.readers if r.node.op_type != "Gather"]
        tables = [r.node for r in held.readers if r.node.op_type == "Gather"]
        shared: ir.Value | None = None
        packed = pack_nbits(blocks) if products else pack_table(blocks)
        scales = self._add(held, "scales", pack_scales, packed=packed.scales)
        zeros = None
        if packed.zero_points is not None:
            zeros = self._add(held, "zero_points", _packed_zero_points, packed=packed.zero_points)
        if products:
            shared = self._add(
                held, f"q{packed.bits}", lambda b: pack_codes(widen(b)), packed=packed.codes
            )
            level = self._accuracy_level(blocks, packed, name)
            for node in products:
                to_nbits(node, packed, shared, scales, zeros, level, self._names)
        if tables:
            data = self._table(held, packed, shared)
            for node in tables:
                to_lookup(node, packed, data, scales, zeros)

    def _keep_experts(self, held: _Held, blocks: QuantizedBlocks) -> None:
        """Store one weight of all experts, until their node has all of its weights."""
        name, (experts, *others) = held.name, held.leading
        if others or any(reader.node.op_type != "MoE" for reader in held.readers):
            raise PlanError(f"weight {name!r} is a stack of matrices, which MatMulNBits has not.")
        parts: dict[str, Callable[[QuantizedBlocks, int], Array]] = {
            f"q{blocks.format.bits}": expert_codes,
            "scales": expert_scales,
        }
        if blocks.zero_points is not None:
            parts["zero_points"] = expert_zero_points
        codes, scales, *zeros = (
            self._add(held, suffix, lambda b, pack=pack: pack(widen(b), experts))  # type: ignore[misc]
            for suffix, pack in parts.items()
        )
        stored = StoredExperts(codes, scales, next(iter(zeros), None), blocks.format)
        for reader in held.readers:
            self._experts.setdefault(reader.node, {})[reader.place] = stored
        if blocks.format.bits < 8 and blocks.format.block_size == -1:
            # 4 bits, 8 experts of 512 by 1024, one token: 10 times as long as the float MoE.
            self.notes.append(f"weight {name!r} will be slow on CPUs: QMoE is fast in blocks only.")
        if blocks.format.bits == 8 and blocks.format.block_size != -1:
            self.notes.append(
                "experts of 8 bits in blocks: ONNX Runtime from 1.31 on rounds what they read to "
                "8 bits, too; whole columns (block_size=-1) read floats"
            )

    def write_experts(self) -> None:
        """Turn the mixtures whose weights have been stored into the runtime's own."""
        for node, stored in self._experts.items():
            to_experts(node, stored, self._names, accuracy_level=self._level or 0)
            self.notes.append("QMoE needs ONNX Runtime 1.27 or newer, and is laid out for CPUs")

    def _accuracy_level(self, blocks: QuantizedBlocks, packed: NBitsTensors, name: str) -> int:
        bits, size, kind = packed.bits, packed.block_size, kind_of_zero_points(blocks)
        level = self._level
        if level is None:
            slow = slow_reason(bits, size, kind) is not None
            level = 4 if slow and slow_reason(bits, size, kind, accuracy_level=4) is None else 0
        check_nbits_support(bits, size, kind, accuracy_level=level)
        reason = slow_reason(bits, size, kind, accuracy_level=level)
        if reason is not None:
            self.notes.append(f"weight {name!r} will be slow on CPUs: {reason}.")
        return level

    def _table(self, held: _Held, packed: NBitsTensors, shared: ir.Value | None) -> ir.Value:
        """Return the codes of a table [entries, bytes]; those of a product where they serve."""
        width, entries = held.blocks.shape
        if shared is None or width % packed.block_size:
            return self._add(held, f"table_q{packed.bits}", lambda b: pack_table(widen(b)).codes)
        # The same bytes in another shape: the runtime reshapes a constant when it loads the model.
        sizes = np.array([entries, -1], np.int64)
        shape = add_initializer(
            graph_of(held.value), self._names, f"{held.name}_table_shape", sizes
        )
        name = f"{held.name}_table"
        return self._insert_first(held, "Reshape", [shared, shape], ir.DataType.UINT8, name, name)

    # The other forms ------------------------------------------------------------------------------

    def write_dequantize(self, held: _Held) -> None:
        """Put a DequantizeLinear before the nodes."""
        name = held.name
        if kind_of_zero_points(held.blocks) == "float":
            raise TargetError(
                f"weight {name!r} has zero points that are floats, which DequantizeLinear does not "
                "take."
            )
        least = 2 if self._opset >= 25 else 4  # types of 2 bits came with opset 25
        format = widen(held.blocks, least).format
        whole = format.block_size == -1
        # Along the rows for products, which is what the runtime fuses; tables keep their own way.
        rowwise = any(reader.rowwise for reader in held.readers)
        leading = held.leading
        axis = len(leading) + (1 if rowwise else 0)
        # One scale for each of several axes is one for each block of all inputs.
        block_size = held.blocks.shape[0] if whole and leading else format.block_size

        def parts(blocks: QuantizedBlocks) -> list[Array]:
            """Return codes, scales and, where there are any, zero points."""
            codes, zeros = blocks.codes, blocks.zero_points
            if zeros is None:
                # A missing zero point means zero here, so the codes must have a sign.
                codes = (codes.astype(np.int16) - blocks.format.middle).astype(np.int8)
            rest = [blocks.scales] if zeros is None else [blocks.scales, zeros]
            if whole and not leading:
                return [as_stack(codes, (), transposed=rowwise), *(a.reshape(-1) for a in rest)]
            return [as_stack(array, leading, transposed=rowwise) for array in (codes, *rest)]

        count = len(parts(widen(held.blocks, least)))
        qtype = (_SIGNED if count == 2 else _UNSIGNED)[format.bits]
        inputs = [
            self._add(
                held,
                suffix,
                lambda blocks, place=place: parts(widen(blocks, least))[place],  # type: ignore[misc]
                None if suffix == "scales" else qtype,
            )
            for place, suffix in enumerate(("quantized", "scales", "zero_points")[:count])
        ]
        attributes = {"axis": axis, "block_size": block_size}
        if whole and not leading:
            attributes = {"axis": 1 - axis}
        result = self._insert_first(
            held,
            "DequantizeLinear",
            inputs,
            inputs[1].dtype or ir.DataType.FLOAT,
            f"{name}_DequantizeLinear",
            f"{name}_dequantized",
            attributes,
        )
        for reader in held.readers:
            read_matrix(reader, result, transposed=rowwise, names=self._names)

    def write_floats(self, held: _Held) -> None:
        """Give the nodes the rounded values in float."""
        assert held.value.dtype is not None
        dtype = held.value.dtype.numpy()

        def restore(blocks: QuantizedBlocks) -> Array:
            array = blocks.dequantize(np.float32)
            return as_stack(array, held.leading, transposed=held.transposed).astype(dtype)

        rounded = self._add(held, "rounded", restore)
        for reader in held.readers:
            read_matrix(reader, rounded, transposed=held.transposed, names=self._names)

    # The graph ------------------------------------------------------------------------------------

    def _add(
        self,
        held: _Held,
        suffix: str,
        pack: Pack,
        qtype: QType | None = None,
        *,
        packed: Array | None = None,
    ) -> ir.Value:
        """Return a constant that is packed from the weight again when the model is written."""
        load = held.load
        first = quantized_tensor(pack(held.blocks) if packed is None else packed, qtype)
        tensor = ir.LazyTensor(
            lambda: quantized_tensor(pack(load()), qtype),
            dtype=first.dtype,
            shape=shape_of(first),
            cache=False,
        )
        return add_initializer(graph_of(held.value), self._names, f"{held.name}_{suffix}", tensor)

    def _insert_first(
        self,
        held: _Held,
        op_type: str,
        inputs: Sequence[ir.Value],
        dtype: ir.DataType,
        name: str,
        output: str,
        attributes: Mapping[str, int] | None = None,
    ) -> ir.Value:
        """Add a node that reads constants only, as the first of the weight's graph."""
        node = ir.node(op_type, inputs, attributes, name=self._names.fresh(name))
        result = node.outputs[0]
        result.name, result.type = self._names.fresh(output), ir.TensorType(dtype)
        insert_after(graph_of(held.value), node, None)
        return result


FORMS: dict[str, Callable[[_Writer, _Held], None]] = {
    "matmul-nbits": _Writer.write_nbits,
    "qdq": _Writer.write_dequantize,
    "float": _Writer.write_floats,
}
"""The output of a weight-only recipe -> how one weight is written."""


def _check_shape(held: _Held) -> None:
    assert held.value.const_value is not None
    shape = tuple(held.value.const_value.shape.numpy())
    *leading, first, second = shape if len(shape) > 1 else (0, 0)
    inputs, outputs = (second, first) if held.transposed else (first, second)
    if held.blocks.shape != (inputs, math.prod(leading) * outputs):
        raise PlanError(
            f"weight {held.value.name!r} has shape {shape}, its blocks {held.blocks.shape}"
            f"{' for its transpose' if held.transposed else ''}."
        )


def _packed_zero_points(blocks: QuantizedBlocks) -> Array:
    packed = pack_zero_points(widen(blocks))
    assert packed is not None
    return packed
