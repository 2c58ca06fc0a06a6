"""Write low-bit block-wise weights into a graph whose activations stay float.

Three forms: the n-bit operators of ONNX Runtime (MatMulNBits, and GatherBlockQuantized for tables
of embeddings), standard DequantizeLinear in blocks, and floats that have the rounded values. A
weight is stored once however many nodes read it; a head and its embedding share one copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

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
    kind_of_zero_points,
    pack_nbits,
    pack_scales,
    pack_table,
    pack_zero_points,
    slow_reason,
    widen,
)
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
    return emit_blocks(
        model,
        weights,
        readers={name: planned.nodes for name, planned in plan.weights.items()},
        output=options.output,
        accuracy_level=options.accuracy_level,
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
    if writer.uses_domain:
        model.opset_imports.setdefault(MICROSOFT, 1)
    remove_unused_initializers(model)
    return list(dict.fromkeys(writer.notes))


class _Held(NamedTuple):
    """A weight, its blocks, how to get them again, and the nodes that will read them."""

    value: ir.Value
    blocks: QuantizedBlocks
    load: Callable[[], QuantizedBlocks]
    readers: list[ir.Node]
    transposed: bool
    """Whether the nodes read [N, K]."""

    @property
    def name(self) -> str:
        """The weight's name."""
        return self.value.name or "weight"


class _Writer:
    def __init__(self, model: ir.Model, output: str, accuracy_level: int | None) -> None:
        self.notes: list[str] = []
        self.uses_domain = False
        self._write_form = FORMS[output]
        self._level = accuracy_level
        self._opset = opset_of(model)
        self._names = NameScope(model)

    def write(
        self,
        weight: ir.Value,
        load: Callable[[], QuantizedBlocks],
        wanted: frozenset[str] | None,
    ) -> None:
        """Store one weight for those of its readers that take it in blocks."""
        taken = self._choose_readers(weight, wanted)
        held = _Held(weight, load(), load, [r.node for r in taken], taken[0].transposed)
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
            taken = [reader for reader in taken if reader.node.op_type != "Gather"]
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

    # MatMulNBits and GatherBlockQuantized ---------------------------------------------------------

    def write_nbits(self, held: _Held) -> None:
        """Turn products and lookups into the runtime's own."""
        name, blocks = held.name, widen(held.blocks)
        if blocks.format.bits != held.blocks.format.bits:
            self.notes.append(
                f"weight {name!r} has {held.blocks.format.bits} bits and is stored in "
                f"{blocks.format.bits}: there are no kernels for its own width."
            )
        products = [node for node in held.readers if node.op_type != "Gather"]
        tables = [node for node in held.readers if node.op_type == "Gather"]
        shared: ir.Value | None = None
        packed = pack_nbits(blocks) if products else pack_table(blocks)
        scales = self._add(held, "scales", pack_scales)
        zeros = None
        if packed.zero_points is not None:
            zeros = self._add(held, "zero_points", _packed_zero_points)
        if products:
            shared = self._add(held, f"q{packed.bits}", lambda b: pack_nbits(widen(b)).codes)
            level = self._accuracy_level(blocks, packed, name)
            for node in products:
                to_nbits(node, packed, shared, scales, zeros, level, self._names)
        if tables:
            data = self._table(held, packed, shared)
            for node in tables:
                to_lookup(node, packed, data, scales, zeros)
        self.uses_domain = True

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
        rowwise = any(node.op_type == "Gather" for node in held.readers)
        axis = 1 if rowwise else 0

        def parts(blocks: QuantizedBlocks) -> list[Array]:
            """Return codes, scales and, where there are any, zero points."""
            codes, zeros = blocks.codes, blocks.zero_points
            if zeros is None:
                # A missing zero point means zero here, so the codes must have a sign.
                codes = (codes.astype(np.int16) - blocks.format.middle).astype(np.int8)
            rest = [blocks.scales] if zeros is None else [blocks.scales, zeros]
            if whole:
                rest = [array.reshape(-1) for array in rest]
            return [array.T if rowwise else array for array in (codes, *rest)]

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
        attributes: dict[str, int] = {"axis": 1 - axis if whole else axis}
        if not whole:
            attributes["block_size"] = format.block_size
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
            return (array.T if held.transposed else array).astype(dtype)

        rounded = self._add(held, "rounded", restore)
        for node in held.readers:
            read_matrix(node, rounded, transposed=held.transposed, names=self._names)

    # The graph ------------------------------------------------------------------------------------

    def _add(self, held: _Held, suffix: str, pack: Pack, qtype: QType | None = None) -> ir.Value:
        """Return a constant that is packed from the weight again when the model is written."""
        load, first = held.load, quantized_tensor(pack(held.blocks), qtype)
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
    if held.blocks.shape != (shape[::-1] if held.transposed else shape):
        raise PlanError(
            f"weight {held.value.name!r} has shape {shape}, its blocks {held.blocks.shape}"
            f"{' for its transpose' if held.transposed else ''}."
        )


def _packed_zero_points(blocks: QuantizedBlocks) -> Array:
    packed = pack_zero_points(widen(blocks))
    assert packed is not None
    return packed
