"""Write block-wise weights into a graph whose activations stay float.

Four forms: the n-bit product of ONNX Runtime (MatMulNBits, and GatherBlockQuantized for tables of
embeddings), standard DequantizeLinear in blocks, the n-bit product of runtimes before 1.17
(MatMulFpQ4), and floats that have the rounded values. A weight is stored once however many nodes
read it; a head and its embedding share one copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from bitwright.emit.building import (
    add_initializer,
    add_lazy_initializer,
    insert_node,
    owner_of,
    remove_unused_initializers,
)
from bitwright.emit.nbits_nodes import (
    DOMAIN,
    add_behind,
    become,
    read_matrix,
    readers_of,
    reason_against,
    take_bias,
    to_lookup,
    to_nbits,
)
from bitwright.errors import PlanError, TargetError, did_you_mean
from bitwright.graph import NameScope, iter_values, opset_of
from bitwright.graph.constants import is_constant
from bitwright.graph.editing import drop_if_unused
from bitwright.numerics.blocks import QuantizedBlocks
from bitwright.numerics.nbits import (
    NBitsTensors,
    check_nbits_support,
    kind_of_zero_points,
    pack_fp_q4,
    pack_nbits,
    pack_scales,
    pack_table,
    pack_zero_points,
    slow_reason,
    widen,
)
from bitwright.numerics.types import INT2, INT4, INT8, UINT2, UINT4, UINT8, QType

__all__ = ["Output", "emit_blocks"]

Array = npt.NDArray[Any]
Output = Literal["matmul-nbits", "qdq", "matmul-fpq4", "float"]

_SIGNED = {2: INT2, 4: INT4, 8: INT8}
_UNSIGNED = {2: UINT2, 4: UINT4, 8: UINT8}


def emit_blocks(
    model: ir.Model,
    weights: Mapping[str, QuantizedBlocks],
    *,
    readers: Mapping[str, Sequence[str]] | None = None,
    output: Output = "matmul-nbits",
    accuracy_level: int | None = None,
) -> list[str]:
    """Store weights in few bits, in place; return a sentence for each thing worth knowing.

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
        model.opset_imports.setdefault(DOMAIN, 1)
    remove_unused_initializers(model)
    return list(dict.fromkeys(writer.notes))


class _Held(NamedTuple):
    """A weight, its blocks, how to get them again, and the nodes that will read them."""

    value: ir.Value
    blocks: QuantizedBlocks
    load: Callable[[], QuantizedBlocks]
    readers: list[ir.Node]

    @property
    def name(self) -> str:
        """The weight's name."""
        return self.value.name or "weight"


class _Writer:
    def __init__(self, model: ir.Model, output: Output, accuracy_level: int | None) -> None:
        self.notes: list[str] = []
        self.uses_domain = False
        self._output = output
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
        found = readers_of(weight)
        taken = [reader for reader in found if reason_against(reader, wanted) is None]
        if len({reader.transposed for reader in taken}) > 1:
            # Blocks run along the inputs of a product; the other way round they are others.
            taken = [reader for reader in taken if reader.node.op_type != "Gather"]
            if len({reader.transposed for reader in taken}) > 1:
                raise PlanError(
                    f"weight {weight.name!r} is read both as it is and transposed; leave one of "
                    f"{[reader.node.name for reader in taken]} float."
                )
        if not taken:
            reasons = {reason for r in found if (reason := reason_against(r, wanted)) is not None}
            raise PlanError(
                f"nothing reads weight {weight.name!r} in a way that blocks allow: "
                f"{'; '.join(sorted(reasons))}."
            )
        if len(taken) < len(found):
            others = {r.node.name or r.node.op_type for r in found if r not in taken}
            self.notes.append(
                f"weight {weight.name!r} stays in the model as floats as well, for "
                f"{sorted(others)}."
            )
        blocks = load()
        turned = taken[0].transposed
        assert weight.const_value is not None
        shape = tuple(weight.const_value.shape.numpy())
        if blocks.shape != (shape[::-1] if turned else shape):
            raise PlanError(
                f"weight {weight.name!r} has shape {shape}, its blocks {blocks.shape}"
                f"{' for its transpose' if turned else ''}."
            )
        held = _Held(weight, blocks, load, [reader.node for reader in taken])
        if self._output == "float":
            self._write_floats(held, turned)
        elif self._output == "qdq":
            self._write_dequantize(held)
        elif self._output == "matmul-fpq4":
            self._write_old_products(held)
        else:
            self._write_nbits(held)
        for reader in taken:
            if reader.through is not None and not reader.through.outputs[0].uses():
                graph = reader.through.graph
                if graph is not None:
                    graph.remove(reader.through, safe=True)
        drop_if_unused(weight)

    # MatMulNBits and GatherBlockQuantized ---------------------------------------------------------

    def _write_nbits(self, held: _Held) -> None:
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
            return self._add(
                held, f"table_q{packed.bits}", lambda blocks: pack_table(widen(blocks)).codes
            )
        graph, name = owner_of(held.value), held.name
        # The same bytes in another shape: the runtime reshapes a constant when it loads the model.
        shape = add_initializer(
            graph, self._names, f"{name}_table_shape", np.array([entries, -1], np.int64)
        )
        reshape = ir.node("Reshape", [shared, shape], name=self._names.fresh(f"{name}_table"))
        reshape.outputs[0].name = self._names.fresh(f"{name}_table")
        reshape.outputs[0].type = ir.TensorType(ir.DataType.UINT8)
        insert_node(graph, reshape, None)
        return reshape.outputs[0]

    def _add(
        self,
        held: _Held,
        suffix: str,
        pack: Callable[[QuantizedBlocks], Array],
        qtype: QType | None = None,
    ) -> ir.Value:
        """Return a constant that is packed from the weight again when the model is written."""
        load = held.load
        return add_lazy_initializer(
            owner_of(held.value),
            self._names,
            f"{held.name}_{suffix}",
            pack(held.blocks),
            lambda: pack(load()),
            qtype,
        )

    # The other forms ------------------------------------------------------------------------------

    def _write_dequantize(self, held: _Held) -> None:
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
        graph = owner_of(held.value)
        attributes: dict[str, int] = {"axis": 1 - axis if whole else axis}
        if not whole:
            attributes["block_size"] = format.block_size
        node = ir.node(
            "DequantizeLinear",
            inputs,
            attributes,
            name=self._names.fresh(f"{name}_DequantizeLinear"),
        )
        result = node.outputs[0]
        result.name = self._names.fresh(f"{name}_dequantized")
        result.type = ir.TensorType(inputs[1].dtype or ir.DataType.FLOAT)
        insert_node(graph, node, None)
        for reader in held.readers:
            read_matrix(reader, result, transposed=rowwise, names=self._names)

    def _write_old_products(self, held: _Held) -> None:
        blocks = widen(held.blocks, 4)
        if any(node.op_type == "Gather" for node in held.readers):
            raise TargetError(
                "runtimes before 1.17 have no table in 4 bits; leave embeddings float."
            )
        blob = self._add(held, "Q4G32", lambda blocks: pack_fp_q4(widen(blocks, 4)))
        shape = add_initializer(
            owner_of(held.value),
            self._names,
            f"{held.name}_shape",
            np.array(blocks.shape, np.int64),
        )
        for node in held.readers:
            bias = take_bias(node)
            become(node, "MatMulFpQ4", [node.inputs[0], blob, shape])
            kind = 0 if blocks.zero_points is None else 1
            node.attributes["blk_quant_type"] = ir.AttrInt64("blk_quant_type", kind)
            if bias is not None:
                add_behind(node, bias, self._names)
        self.uses_domain = True

    def _write_floats(self, held: _Held, transposed: bool) -> None:
        assert held.value.dtype is not None
        dtype = held.value.dtype.numpy()

        def restore(blocks: QuantizedBlocks) -> Array:
            array = blocks.dequantize(np.float32)
            return (array.T if transposed else array).astype(dtype)

        fresh = self._add(held, "rounded", restore)
        for node in held.readers:
            read_matrix(node, fresh, transposed=transposed, names=self._names)


def _packed_zero_points(blocks: QuantizedBlocks) -> Array:
    packed = pack_zero_points(widen(blocks))
    assert packed is not None
    return packed
