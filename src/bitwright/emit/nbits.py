"""Write low-bit block-wise weights into a graph whose activations stay float.

Three forms: the n-bit operators of ONNX Runtime (MatMulNBits, GatherBlockQuantized for tables of
embeddings, QMoE for mixtures of experts), standard DequantizeLinear in blocks, and floats that
have the rounded values. A weight is stored once however many nodes read it; a head and its
embedding share one copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from bitwright.emit.nbits_nodes import (
    Reader,
    StoredExperts,
    read_matrix,
    readers_of,
    reason_against,
    to_experts,
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
from bitwright.graph.constants import float_constant_of
from bitwright.numerics import as_stack, float_type
from bitwright.numerics.blocks import QuantizedBlocks
from bitwright.numerics.nbits import (
    LazyBlocks,
    NBitsForm,
    check_nbits_support,
    check_table_support,
    expert_codes,
    expert_scales,
    expert_zero_points,
    slow_reason,
    table_codes,
    widen,
)
from bitwright.numerics.nvfp4 import NVFP4_BLOCK, quantize_nvfp4
from bitwright.numerics.types import INT2, INT4, INT8, UINT2, UINT4, UINT8, QType
from bitwright.plan import QuantPlan
from bitwright.support.array_types import Array

NVFP4_VALUES = "nvfp4-values"
"""The form with the numbers of nvfp4 in float, which any runtime can run."""

Blocks = QuantizedBlocks | LazyBlocks

_SIGNED = {2: INT2, 4: INT4, 8: INT8}
_UNSIGNED = {2: UINT2, 4: UINT4, 8: UINT8}


def emit_weight_only(model: ir.Model, plan: QuantPlan, weights: Mapping[str, Blocks]) -> list[str]:
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
    weights: Mapping[str, Blocks],
    *,
    readers: Mapping[str, Sequence[str]] | None = None,
    output: str = "matmul-nbits",
    accuracy_level: int | None = None,
) -> list[str]:
    """Store low-bit weights, in place; return a sentence for each thing worth knowing.

    `weights` maps the (qualified) names of constants to their blocks, [K, N] as a product reads
    them, whichever way round the model holds them. It is asked for one weight at a time, and again
    when the model is written, so that it may keep them on disk, or make them only then. `readers`
    names the nodes that read each weight in blocks; without it all do that can (MatMul, Gemm and
    Gather by rows). The accuracy level None is 4 where nothing else is fast, else 0.
    """
    values = dict(iter_values(model))
    for name in weights:
        if name not in values or not is_constant(values[name]):
            raise PlanError(f"the model has no constant {name!r}.{did_you_mean(name, values)}")
    if output == "nvfp4" and opset_of(model) < 23:
        raise PlanError(f"float4 needs opset 23, and the model has {opset_of(model)}.")
    if output.startswith("qdq") and opset_of(model) < 21:
        raise PlanError(
            f"blocks of DequantizeLinear need opset 21, and the model has {opset_of(model)}; "
            "upgrade it first."
        )
    writer = _Writer(model, output, accuracy_level)
    for name in weights:
        wanted = None if readers is None else frozenset(readers.get(name, ()))
        writer.write(values[name], _lazy(weights, name), wanted)
    writer.write_experts()
    if writer.uses_domain:
        model.opset_imports.setdefault(MICROSOFT, 1)
    remove_unused_initializers(model)
    return list(dict.fromkeys(writer.notes))


def _lazy(weights: Mapping[str, Blocks], name: str) -> LazyBlocks:
    found = weights[name]
    if isinstance(found, LazyBlocks):
        return found
    waiting = [found]  # what was read to see what it looks like is not read twice for that

    def load() -> QuantizedBlocks:
        blocks = waiting.pop() if waiting else weights[name]
        assert isinstance(blocks, QuantizedBlocks)
        return blocks

    return LazyBlocks.of(load)


class _Held(NamedTuple):
    """A weight, its blocks, and the nodes that will read them."""

    value: ir.Value
    blocks: LazyBlocks
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

    def write(self, weight: ir.Value, blocks: LazyBlocks, wanted: frozenset[str] | None) -> None:
        """Store one weight for those of its readers that take it in blocks."""
        taken = self._choose_readers(weight, wanted)
        held = _Held(weight, blocks, taken, taken[0].transposed)
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
        name, form, bits = held.name, held.blocks.form, held.blocks.format.bits
        if form.bits != bits:
            self.notes.append(
                f"weight {name!r} has {bits} bits and is stored in {form.bits}: there are no "
                "kernels for its own width."
            )
        self.uses_domain = True
        if held.leading:
            self._keep_experts(held)
            return
        products = [r.node for r in held.readers if r.node.op_type != "Gather"]
        tables = [r.node for r in held.readers if r.node.op_type == "Gather"]
        level = self._accuracy_level(form, name) if products else 0
        if tables:
            check_table_support(form)
        # One table and its head share the bytes where these are the same.
        shares = bool(products) and form.rows % form.block_size == 0
        width = form.rows * form.bits // 8
        uint8, numbers = np.dtype(np.uint8), np.dtype(float_type(form.scale_type))
        parts = {"scales": _Part(lambda p: p.scales, form.scales_shape, numbers)}
        if form.zero_points != "none":
            kind = numbers if form.zero_points == "float" else uint8
            parts["zero_points"] = _Part(lambda p: p.zero_points, form.zero_points_shape, kind)
        if products:
            parts[f"q{form.bits}"] = _Part(lambda p: p.codes, form.codes_shape, uint8)
        if tables and not shares:
            table = (form.columns, width)
            parts[f"table_q{form.bits}"] = _Part(table_codes, table, uint8)
        stored = self._add(held, held.blocks.pack, parts)
        scales, zeros = stored["scales"], stored.get("zero_points")
        for node in products:
            to_nbits(node, form, stored[f"q{form.bits}"], scales, zeros, level, self._names)
        if tables:
            codes = stored.get(f"table_q{form.bits}")
            data = self._as_table(held, stored[f"q{form.bits}"]) if codes is None else codes
            for node in tables:
                to_lookup(node, form, data, scales, zeros)

    def _keep_experts(self, held: _Held) -> None:
        """Store one weight of all experts, until their node has all of its weights."""
        name, (experts, *others) = held.name, held.leading
        load = held.blocks.load
        format, form = held.blocks.format, held.blocks.form
        if others or any(reader.node.op_type != "MoE" for reader in held.readers):
            raise PlanError(f"weight {name!r} is a stack of matrices, which MatMulNBits has not.")
        packs = {f"q{form.bits}": expert_codes, "scales": expert_scales}
        if form.zero_points != "none":
            packs["zero_points"] = expert_zero_points

        def make() -> dict[str, Array]:
            blocks = widen(load())
            return {suffix: pack(blocks, experts) for suffix, pack in packs.items()}

        stored = self._add(held, make, _parts_of(make()))
        codes, scales, *zeros = (stored[suffix] for suffix in packs)
        format = replace(format, bits=form.bits)
        kept = StoredExperts(codes, scales, next(iter(zeros), None), format)
        for reader in held.readers:
            self._experts.setdefault(reader.node, {})[reader.place] = kept
        if format.bits < 8 and format.block_size == -1:
            # 4 bits, 8 experts of 512 by 1024, one token: 10 times as long as the float MoE.
            self.notes.append(f"weight {name!r} will be slow on CPUs: QMoE is fast in blocks only.")
        if format.bits == 8 and format.block_size != -1:
            self.notes.append(
                "experts of 8 bits in blocks: ONNX Runtime from 1.31 on rounds what they read to "
                "8 bits, too; whole columns (block_size=-1) read floats"
            )

    def write_experts(self) -> None:
        """Turn the mixtures whose weights have been stored into the runtime's own."""
        for node, stored in self._experts.items():
            to_experts(node, stored, self._names, accuracy_level=self._level or 0)
            self.notes.append("QMoE needs ONNX Runtime 1.27 or newer, and is laid out for CPUs")

    def _accuracy_level(self, form: NBitsForm, name: str) -> int:
        bits, size, kind = form.bits, form.block_size, form.zero_points
        level = self._level
        if level is None:
            slow = slow_reason(bits, size, kind) is not None
            level = 4 if slow and slow_reason(bits, size, kind, accuracy_level=4) is None else 0
        check_nbits_support(bits, size, kind, accuracy_level=level)
        reason = slow_reason(bits, size, kind, accuracy_level=level)
        if reason is not None:
            self.notes.append(f"weight {name!r} will be slow on CPUs: {reason}.")
        return level

    def _as_table(self, held: _Held, shared: ir.Value) -> ir.Value:
        """Return the codes of a product as those of a table, [entries, bytes]."""
        # The same bytes in another shape: the runtime reshapes a constant when it loads the model.
        sizes = np.array([held.blocks.form.columns, -1], np.int64)
        shape = add_initializer(
            graph_of(held.value), self._names, f"{held.name}_table_shape", sizes
        )
        name = f"{held.name}_table"
        return self._insert_first(held, "Reshape", [shared, shape], ir.DataType.UINT8, name, name)

    # The other forms ------------------------------------------------------------------------------

    def write_dequantize(self, held: _Held, *, transposed: bool = False) -> None:
        """Put a DequantizeLinear before the nodes, and a Transpose behind it where asked for."""
        name = held.name
        if held.blocks.form.zero_points == "float":
            raise TargetError(
                f"weight {name!r} has zero points that are floats, which DequantizeLinear does not "
                "take."
            )
        least = 2 if self._opset >= 25 else 4  # types of 2 bits came with opset 25
        load = held.blocks.load
        first = widen(load(), least)
        format = first.format
        whole = format.block_size == -1
        # Along the rows for products, which is what the runtime fuses; tables keep their own way.
        leading = held.leading
        rowwise = any(reader.rowwise for reader in held.readers) or (transposed and not leading)
        axis = len(leading) + (1 if rowwise else 0)
        # One scale for each of several axes is one for each block of all inputs.
        block_size = first.shape[0] if whole and leading else format.block_size

        def made(blocks: QuantizedBlocks) -> dict[str, Array]:
            """Return codes, scales and, where there are any, zero points."""
            codes, zeros = blocks.codes, blocks.zero_points
            if zeros is None:
                # A missing zero point means zero here, so the codes must have a sign.
                codes = (codes.astype(np.int16) - blocks.format.middle).astype(np.int8)
            rest = {"scales": blocks.scales} | ({} if zeros is None else {"zero_points": zeros})
            if whole and not leading:
                codes = as_stack(codes, (), transposed=rowwise)
                return {"quantized": codes} | {key: a.reshape(-1) for key, a in rest.items()}
            every = {"quantized": codes} | rest
            return {k: as_stack(a, leading, transposed=rowwise) for k, a in every.items()}

        qtype = (_SIGNED if first.zero_points is None else _UNSIGNED)[format.bits]
        parts = _parts_of(made(first), {"quantized": qtype, "zero_points": qtype})
        inputs = list(self._add(held, lambda: made(widen(load(), least)), parts).values())
        attributes = {"axis": axis, "block_size": block_size}
        if whole and not leading:
            attributes = {"axis": 1 - axis}
        dtype = inputs[1].dtype or ir.DataType.FLOAT
        result = self._dequantize_first(held, inputs, dtype, attributes)
        for reader in held.readers:
            read_matrix(reader, result, transposed=rowwise, names=self._names)

    def write_nvfp4(self, held: _Held) -> None:
        """Put two DequantizeLinear before the nodes: of the scales, and of the weight."""
        name, weight = held.name, quantize_nvfp4(_rows_of(held))
        graph = graph_of(held.value)
        stored = {
            suffix: add_initializer(graph, self._names, f"{name}_{suffix}", ir.tensor(array))
            for suffix, array in (
                ("nvfp4", weight.codes),
                ("block_scales", weight.scales),
                ("scale", np.asarray(weight.scale)),
            )
        }
        # Each goes to the front of the graph, so that the last inserted is the first.
        scales = ir.Value(name=self._names.fresh(f"{name}_scales"), type=_FLOAT)
        inputs, attributes = [stored["nvfp4"], scales], {"axis": 1, "block_size": NVFP4_BLOCK}
        result = self._dequantize_first(held, inputs, ir.DataType.FLOAT, attributes)
        made = ir.node(
            "DequantizeLinear",
            [stored["block_scales"], stored["scale"]],
            outputs=[scales],
            name=self._names.fresh(f"{name}_scales_DequantizeLinear"),
        )
        insert_after(graph, made, None)
        for reader in held.readers:
            read_matrix(reader, result, transposed=True, names=self._names)

    def write_nvfp4_values(self, held: _Held) -> None:
        """Give the nodes the numbers of float4 in float, for runtimes without it."""
        array = quantize_nvfp4(_rows_of(held)).dequantize()
        graph, name = graph_of(held.value), f"{held.name}_rounded"
        rounded = add_initializer(graph, self._names, name, ir.tensor(array))
        for reader in held.readers:
            read_matrix(reader, rounded, transposed=True, names=self._names)

    def write_floats(self, held: _Held) -> None:
        """Give the nodes the rounded values in float."""
        assert held.value.dtype is not None
        dtype = held.value.dtype.numpy()

        load = held.blocks.load

        def restore() -> dict[str, Array]:
            array = load().dequantize(np.float32)
            stacked = as_stack(array, held.leading, transposed=held.transposed)
            return {"rounded": stacked.astype(dtype)}

        assert held.value.const_value is not None
        shape = tuple(held.value.const_value.shape.numpy())
        part = _Part(itemgetter("rounded"), shape, np.dtype(dtype))
        rounded = self._add(held, restore, {"rounded": part})["rounded"]
        for reader in held.readers:
            read_matrix(reader, rounded, transposed=held.transposed, names=self._names)

    # The graph ------------------------------------------------------------------------------------

    def _add(
        self, held: _Held, make: Callable[[], Any], parts: Mapping[str, _Part]
    ) -> dict[str, ir.Value]:
        """Return constants by their suffixes, made all at once when the model is written."""
        shared = _Shared(make, frozenset(parts))
        added = {}
        for suffix, part in parts.items():
            dtype = None if part.qtype is None else ir.DataType(part.qtype.onnx_type)
            tensor = ir.LazyTensor(
                lambda suffix=suffix, part=part: quantized_tensor(  # type: ignore[misc]
                    part.take(shared.get(suffix)), part.qtype
                ),
                dtype=dtype or ir.DataType.from_numpy(part.dtype),
                shape=ir.Shape(part.shape),
                cache=False,
            )
            graph, name = graph_of(held.value), f"{held.name}_{suffix}"
            added[suffix] = add_initializer(graph, self._names, name, tensor)
        return added

    def _dequantize_first(
        self,
        held: _Held,
        inputs: Sequence[ir.Value],
        dtype: ir.DataType,
        attributes: Mapping[str, int],
    ) -> ir.Value:
        """Add the DequantizeLinear of a weight, as the first node of its graph."""
        name, output = f"{held.name}_DequantizeLinear", f"{held.name}_dequantized"
        return self._insert_first(held, "DequantizeLinear", inputs, dtype, name, output, attributes)

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


class _Part(NamedTuple):
    """One of the constants that are made of a weight."""

    take: Callable[[Any], Array]
    """Takes it from what was made."""
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    qtype: QType | None = None


def _parts_of(
    made: Mapping[str, Array], qtypes: Mapping[str, QType] | None = None
) -> dict[str, _Part]:
    """Return parts that are made as a mapping, given what was made once."""
    return {
        suffix: _Part(itemgetter(suffix), array.shape, array.dtype, (qtypes or {}).get(suffix))
        for suffix, array in made.items()
    }


class _Shared:
    """Makes the parts of a weight together, and keeps them until each has been asked for."""

    def __init__(self, make: Callable[[], Any], parts: frozenset[str]) -> None:
        self._make, self._parts = make, parts
        self._missing: set[str] = set()
        self._made: Any = None

    def get(self, part: str) -> Any:
        """Return what was made, for one part."""
        if part not in self._missing:
            self._made, self._missing = self._make(), set(self._parts)
        self._missing.remove(part)
        made = self._made
        if not self._missing:
            self._made = None
        return made


FORMS: dict[str, Callable[[_Writer, _Held], None]] = {
    "matmul-nbits": _Writer.write_nbits,
    "matmul-nbits-and-rows": _Writer.write_nbits,  # the rows are another model
    "qdq": _Writer.write_dequantize,
    "qdq-transposed": partial(_Writer.write_dequantize, transposed=True),
    "float": _Writer.write_floats,
    "nvfp4": _Writer.write_nvfp4,
    NVFP4_VALUES: _Writer.write_nvfp4_values,
}
"""The output of a weight-only recipe -> how one weight is written."""


def _rows_of(held: _Held) -> Array:
    """Return a weight as [N, K], one row for each output."""
    if held.leading or any(reader.rowwise for reader in held.readers):
        raise PlanError(f"weight {held.name!r} is no matrix of a product, which nvfp4 is for.")
    array = float_constant_of(held.value)
    assert array is not None
    return array if held.transposed else array.T


_FLOAT = ir.TensorType(ir.DataType.FLOAT)


def _check_shape(held: _Held) -> None:
    assert held.value.const_value is not None
    shape = tuple(held.value.const_value.shape.numpy())
    *leading, first, second = shape if len(shape) > 1 else (0, 0)
    inputs, outputs = (second, first) if held.transposed else (first, second)
    form = held.blocks.form
    if (form.rows, form.columns) != (inputs, math.prod(leading) * outputs):
        raise PlanError(
            f"weight {held.value.name!r} has shape {shape}, its blocks {(form.rows, form.columns)}"
            f"{' for its transpose' if held.transposed else ''}."
        )
