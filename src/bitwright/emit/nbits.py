"""Write block-wise weights into a graph whose activations stay float.

Four forms: the n-bit product of ONNX Runtime (MatMulNBits, and GatherBlockQuantized for tables of
embeddings), standard DequantizeLinear in blocks, the n-bit product of runtimes before 1.17
(MatMulFpQ4), and floats that have the rounded values. A weight is stored once however many nodes
read it; a head and its embedding share one copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from bitwright.emit.building import (
    add_initializer,
    insert_node,
    owner_of,
    remove_unused_initializers,
)
from bitwright.emit.nbits_nodes import (
    DOMAIN,
    add_behind,
    become,
    reads_transposed,
    reason_against,
    take_bias,
    to_lookup,
    to_nbits,
    weight_index,
)
from bitwright.errors import PlanError, TargetError, did_you_mean
from bitwright.graph import NameScope, iter_values, opset_of
from bitwright.graph.constants import drop_if_unused, is_constant
from bitwright.numerics.blocks import QuantizedBlocks
from bitwright.numerics.nbits import (
    NBitsTensors,
    check_nbits_support,
    kind_of_zero_points,
    pack_fp_q4,
    pack_nbits,
    pack_table,
    slow_reason,
    widen,
)
from bitwright.numerics.types import INT2, INT4, INT8, UINT2, UINT4, UINT8

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
        found = [(use.node, use.idx) for use in weight.uses()]
        taken = [node for node, index in found if reason_against(node, index, wanted) is None]
        transposed = {reads_transposed(node) for node in taken}
        if len(transposed) > 1:
            # Blocks run along the inputs of a product; the other way round they are others.
            taken = [node for node in taken if node.op_type != "Gather"]
            transposed = {reads_transposed(node) for node in taken}
            if len(transposed) > 1:
                raise PlanError(
                    f"weight {weight.name!r} is read both as it is and transposed; leave one of "
                    f"{[node.name for node in taken]} float."
                )
        if not taken:
            reasons = [reason_against(node, index, wanted) for node, index in found]
            raise PlanError(
                f"nothing reads weight {weight.name!r} in a way that blocks allow: "
                f"{'; '.join(sorted({reason for reason in reasons if reason}))}."
            )
        if len(taken) < len(found):
            self.notes.append(
                f"weight {weight.name!r} stays in the model as floats as well, for "
                f"{sorted({n.name or n.op_type for n, _ in found if n not in taken})}."
            )
        blocks = load()
        (turned,) = transposed
        assert weight.const_value is not None
        shape = tuple(weight.const_value.shape.numpy())
        if blocks.shape != (shape[::-1] if turned else shape):
            raise PlanError(
                f"weight {weight.name!r} has shape {shape}, its blocks {blocks.shape}"
                f"{' for its transpose' if turned else ''}."
            )
        if self._output == "float":
            self._write_floats(weight, blocks, taken, turned)
        elif self._output == "qdq":
            self._write_dequantize(weight, blocks, taken)
        elif self._output == "matmul-fpq4":
            self._write_old_products(weight, blocks, taken)
        else:
            self._write_nbits(weight, blocks, load, taken)
        drop_if_unused(weight)

    # MatMulNBits and GatherBlockQuantized ---------------------------------------------------------

    def _write_nbits(
        self,
        weight: ir.Value,
        blocks: QuantizedBlocks,
        load: Callable[[], QuantizedBlocks],
        readers: list[ir.Node],
    ) -> None:
        bits = blocks.format.bits
        blocks = widen(blocks)
        if blocks.format.bits != bits:
            self.notes.append(
                f"weight {weight.name!r} has {bits} bits and is stored in {blocks.format.bits}: "
                "there are no kernels for its own width."
            )
        products = [node for node in readers if node.op_type != "Gather"]
        tables = [node for node in readers if node.op_type == "Gather"]
        graph, name = owner_of(weight), weight.name or "weight"
        shared: ir.Value | None = None
        packed = pack_nbits(blocks) if products else pack_table(blocks)
        scales = add_initializer(graph, self._names, f"{name}_scales", packed.scales)
        zeros = None
        if packed.zero_points is not None:
            zeros = add_initializer(graph, self._names, f"{name}_zero_points", packed.zero_points)
        if products:
            shared = self._add_codes(graph, f"{name}_q{packed.bits}", packed, load, pack_nbits)
            level = self._accuracy_level(blocks, packed, name)
            for node in products:
                to_nbits(node, packed, shared, scales, zeros, level, self._names)
        if tables:
            data = self._table(graph, name, blocks, packed, load, shared)
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

    def _table(
        self,
        graph: ir.Graph,
        name: str,
        blocks: QuantizedBlocks,
        packed: NBitsTensors,
        load: Callable[[], QuantizedBlocks],
        shared: ir.Value | None,
    ) -> ir.Value:
        """Return the codes of a table [entries, bytes]; those of a product where they serve."""
        width, entries = blocks.shape
        if shared is None or width % packed.block_size:
            table = pack_table(blocks)
            return self._add_codes(graph, f"{name}_table_q{table.bits}", table, load, pack_table)
        # The same bytes in another shape: the runtime reshapes a constant when it loads the model.
        shape = add_initializer(
            graph, self._names, f"{name}_table_shape", np.array([entries, -1], np.int64)
        )
        reshape = ir.node("Reshape", [shared, shape], name=self._names.fresh(f"{name}_table"))
        reshape.outputs[0].name = self._names.fresh(f"{name}_table")
        reshape.outputs[0].type = ir.TensorType(ir.DataType.UINT8)
        insert_node(graph, reshape, None)
        return reshape.outputs[0]

    def _add_codes(
        self,
        graph: ir.Graph,
        name: str,
        packed: NBitsTensors,
        load: Callable[[], QuantizedBlocks],
        pack: Callable[[QuantizedBlocks], NBitsTensors],
    ) -> ir.Value:
        """Return a constant whose bytes are made when they are asked for, and not kept."""
        name = self._names.fresh(name)
        tensor = ir.LazyTensor(
            lambda: ir.Tensor(pack(widen(load())).codes, name=name),
            dtype=ir.DataType.UINT8,
            shape=ir.Shape(packed.codes.shape),
            name=name,
        )
        value = ir.Value(
            name=name,
            type=ir.TensorType(ir.DataType.UINT8),
            shape=ir.Shape(packed.codes.shape),
            const_value=tensor,
        )
        graph.register_initializer(value)
        return value

    # The other forms ------------------------------------------------------------------------------

    def _write_dequantize(
        self, weight: ir.Value, blocks: QuantizedBlocks, readers: list[ir.Node]
    ) -> None:
        if kind_of_zero_points(blocks) == "float":
            raise TargetError(
                f"weight {weight.name!r} has zero points that are floats, which DequantizeLinear "
                "does not take."
            )
        # Types of 2 bits came with opset 25.
        blocks = widen(blocks, 2 if self._opset >= 25 else 4)
        # Along the rows for products, which is what the runtime fuses; tables keep their own way.
        rowwise = any(node.op_type == "Gather" for node in readers)
        axis = 1 if rowwise else 0
        zeros = blocks.zero_points
        qtype = (_SIGNED if zeros is None else _UNSIGNED)[blocks.format.bits]
        codes = blocks.codes
        if zeros is None:
            # A missing zero point means zero here, so the codes must have a sign.
            codes = (codes.astype(np.int16) - blocks.format.middle).astype(np.int8)
        arrays = [codes, blocks.scales] + ([] if zeros is None else [zeros])
        whole = blocks.format.block_size == -1
        if whole:
            arrays = [arrays[0], *(array.reshape(-1) for array in arrays[1:])]
        if rowwise:
            arrays = [array.T for array in arrays]
        graph, name = owner_of(weight), weight.name or "weight"
        suffixes = ("quantized", "scales", "zero_points")
        inputs = [
            add_initializer(
                graph, self._names, f"{name}_{suffix}", array, None if suffix == "scales" else qtype
            )
            for suffix, array in zip(suffixes, arrays, strict=False)
        ]
        attributes: dict[str, int] = {"axis": 1 - axis if whole else axis}
        if not whole:
            attributes["block_size"] = blocks.format.block_size
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
        for reader in readers:
            reader.replace_input_with(weight_index(reader), result)
            if reader.op_type == "Gemm":
                reader.attributes["transB"] = ir.AttrInt64("transB", int(rowwise))

    def _write_old_products(
        self, weight: ir.Value, blocks: QuantizedBlocks, readers: list[ir.Node]
    ) -> None:
        blocks = widen(blocks, 4)
        if any(node.op_type == "Gather" for node in readers):
            raise TargetError(
                "runtimes before 1.17 have no table in 4 bits; leave embeddings float."
            )
        graph, name = owner_of(weight), weight.name or "weight"
        blob = add_initializer(graph, self._names, f"{name}_Q4G32", pack_fp_q4(blocks))
        shape = add_initializer(
            graph, self._names, f"{name}_shape", np.array(blocks.shape, np.int64)
        )
        for node in readers:
            bias = take_bias(node)
            become(node, "MatMulFpQ4", [node.inputs[0], blob, shape])
            kind = 0 if blocks.zero_points is None else 1
            node.attributes["blk_quant_type"] = ir.AttrInt64("blk_quant_type", kind)
            if bias is not None:
                add_behind(node, bias, self._names)
        self.uses_domain = True

    def _write_floats(
        self,
        weight: ir.Value,
        blocks: QuantizedBlocks,
        readers: list[ir.Node],
        transposed: bool,
    ) -> None:
        assert weight.dtype is not None
        array = blocks.dequantize(np.float32)
        array = (array.T if transposed else array).astype(weight.dtype.numpy())
        fresh = add_initializer(owner_of(weight), self._names, f"{weight.name}_rounded", array)
        for node in readers:
            node.replace_input_with(weight_index(node), fresh)
