"""Products whose activation has one scale for each row, in standard operators.

For a row x, the largest magnitude m in it, and a weight W = s * Wq with a scale s for each column:

    q = round(127 * x / m) + 128            x @ W = m * ((q - 128) / 127 @ (s * Wq))

The quotient x / m lies within -1 and 1, so a pair with the constant scale 1 / 127 rounds it, and
ONNX Runtime computes that pair, the weight's dequantizer and the product with one integer kernel,
MatMulIntegerToFloat. All products that read x share its pair. Where x is bounded below by -c, as
what a Relu or a Gelu gives, all 255 levels are for what is above: q = round(255 * (x + c) / m), and
the bias gets back -c times the sums of the weight's columns.

Rows that no scale fits come out as in float. In one of zeros 0 / 0 rounds to some integer, and m
makes zero of the product. An infinity rounds to the outermost level where m is cut, and m itself
makes it infinite again. ReduceMax passes over a NaN, and ReduceMean does not; behind a layer norm a
row is wholly NaN or finite, and needs no second look.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from bitwright.decide.ops.linear import bias_sum_behind
from bitwright.decide.ops.matching import match_gelu
from bitwright.emit.dynamic_graph import IntegerWriter, Keys
from bitwright.emit.quantized import MICROSOFT, Quantized
from bitwright.errors import PlanError
from bitwright.graph import constant_of, input_at, static_shape, weight_of
from bitwright.graph.editing import Attributes
from bitwright.plan import QuantPlan
from bitwright.support.array_types import Array

_FLOORS = {"Relu": 0.0, "Gelu": 0.1701}
"""Op type -> how far below zero its results lie at most; a Gelu computed by tanh has the lowest,
-0.17004."""
_FINITE_OR_NAN = ("LayerNormalization", "SkipLayerNormalization")
"""Op types of whose rows no number is finite, or every one."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """An activation as a product reads it, with the factor that each row has lost."""

    value: ir.Value
    size: ir.Value
    floor: float = 0.0


@dataclass(frozen=True, slots=True)
class _Bias:
    """A constant that is added to every row of a product."""

    array: Array
    node: ir.Node | None
    """The Add behind the product; None: the product is a Gemm, and adds it."""
    index: int = 0
    """Which input of the Add it is."""


class RowWriter:
    """Writes products with one scale for each row, each activation and each weight once."""

    def __init__(self, writer: IntegerWriter, model: ir.Model, plan: QuantPlan) -> None:
        self._writer, self._plan = writer, plan
        self._opset = model.opset_imports[""]
        self._rows: dict[ir.Value, _Rows] = {}
        self._flipped: dict[str, ir.Value] = {}
        self._weights: dict[tuple[str, bool], ir.Value] = {}
        self._as_it_is = {
            key
            for node in model.graph.all_nodes()
            if self._reads_rows(node)
            for key in plan.nodes[node.name or ""].inputs
            if key is not None and not _flips(node)
        }
        """Matrices that some node reads in the order in which the model stores them."""
        erfs = (node for node in model.graph.all_nodes() if node.op_type == "Erf")
        self._gelus = {found.last.outputs[0] for erf in erfs if (found := match_gelu(erf))}
        self._constants: dict[str, ir.Value] = {}

    def write(self, node: ir.Node, keys: Keys) -> None:
        """Write a MatMul or Gemm whose second input is a stored matrix, or a Gather of its rows."""
        data, name = input_at(node, 0), node.name or ""
        if node.op_type == "Gather" and keys[0]:
            self._write_table(node, keys)
            return
        is_gemm = node.op_type == "Gemm"
        flags = [bool(node.attributes.get_int(flag, 0)) for flag in ("transA", "transB")]
        if (node.op_type != "MatMul" and not is_gemm) or data is None or keys[0] or not keys[1]:
            raise PlanError(
                f"node {name!r} ({node.op_type}) cannot have one scale for each row: that is for "
                "products of an activation with a stored matrix; set its per_token to false."
            )
        if flags[0]:
            raise PlanError(f"node {name!r} reads its rows as columns; set its per_token to false.")
        rows = self._rows.get(data) or self._measure(data)
        weight = self._weight(node, keys[1])
        bias, label = self._bias(node), node.outputs[0].name or ""
        addend = input_at(node, 2) if is_gemm else None
        product = self._writer.add(node, "MatMul", [rows.value, weight], output=f"{label}_of_rows")
        result = self._writer.add(node, "Mul", [product, rows.size], name=f"{name}_row_sizes")
        if bias is not None:
            moved = bias.array - rows.floor * self._column_sums(node, keys[1])
            # Two axes: with one, the runtime would fuse it to a Gelu behind, into a slower kernel.
            rank = 2 if is_gemm else len(node.outputs[0].shape or ())
            wide = moved.astype(np.float32)[None] if rank > 1 else moved.astype(np.float32)
            fresh = self._writer.constant(f"{label}_bias", wide)
            if bias.node is not None:
                bias.node.replace_input_with(bias.index, fresh)
            else:
                addend = fresh
        if addend is not None:
            result = self._writer.add(node, "Add", [result, addend], name=f"{name}_Add")
        self._replace(node, result)

    def _write_table(self, node: ir.Node, keys: Keys) -> None:
        """Take rows of integers and their scales from a table, and multiply the two."""
        table, indices = self._matrix(node, keys[0] or "", (-1, 1)), node.inputs[1]
        assert indices is not None
        to_float, label = {"to": int(ir.DataType.FLOAT)}, node.outputs[0].name or ""
        taken = [
            self._writer.add(node, "Gather", [part, indices], dtype, name=f"{label}_{what}")
            for part, dtype, what in (
                (table.value, table.dtype or ir.DataType.INT8, "integers"),
                (table.scale, ir.DataType.FLOAT, "scales"),
            )
        ]
        name = f"{label}_floats"
        taken[0] = self._writer.add(node, "Cast", taken[:1], name=name, attributes=to_float)
        result = self._writer.add(node, "Mul", taken, name=f"{node.name}_row_scales")
        self._replace(node, result)

    def _replace(self, node: ir.Node, result: ir.Value) -> None:
        """Let a value take the place of a node's result, and drop the Transpose that it had."""
        weight = weight_of(node)
        self._writer.replace(node, result)
        through = None if weight is None else weight.through
        if through is not None and not through.outputs[0].uses() and through.graph is not None:
            through.graph.remove(through, safe=True)

    # Activations --------------------------------------------------------------------------

    def _measure(self, value: ir.Value) -> _Rows:
        """Round an activation where it is made, for all that read it by rows."""
        floor, producer = self._floor(value), value.producer()
        source = value
        if floor is None:
            magnitudes = self._behind(value, "Abs", [value], "abs")
        elif floor:
            shift = self._number("row_shift", floor)
            magnitudes = source = self._behind(value, "Add", [value, shift], "shifted")
        else:
            magnitudes = value
        size = divisor = self._reduce(value, "ReduceMax", magnitudes, "row_max")
        if producer is None or producer.op_type not in _FINITE_OR_NAN:
            mean = self._reduce(value, "ReduceMean", source, "row_mean")
            size = self._behind(value, "Max", [size, mean], "row_size")
            largest = self._number("largest_float", float(np.finfo(np.float32).max))
            divisor = self._behind(value, "Clip", [size, None, largest], "row_divisor")
        scaled = self._behind(value, "Div", [source, divisor], "row_scaled")
        levels, zero = (127, 128) if floor is None else (255, 0)
        pair = [
            self._number(f"row_scale_{levels}", 1 / levels),
            self._constant(f"row_zero_point_{zero}", np.uint8(zero)),
        ]
        integers = self._behind(
            value, "QuantizeLinear", [scaled, *pair], "row_quantized", ir.DataType.UINT8
        )
        again = self._behind(value, "DequantizeLinear", [integers, *pair], "row_dequantized")
        self._rows[value] = _Rows(again, size, floor or 0.0)
        return self._rows[value]

    def _floor(self, value: ir.Value) -> float | None:
        """Return how far below zero a tensor lies at most, where products can make up for it."""
        node = value.producer()
        if node is None or node.domain not in ("", "ai.onnx", MICROSOFT):
            return None
        floor = _FLOORS.get("Gelu" if value in self._gelus else node.op_type)
        readers = [use.node for use in value.uses() if self._reads_rows(use.node) and not use.idx]
        if floor and any(self._bias(reader) is None for reader in readers):
            return None
        return floor

    def _reads_rows(self, node: ir.Node) -> bool:
        planned = self._plan.nodes.get(node.name or "")
        return planned is not None and planned.per_token and planned.quantized

    def _reduce(self, behind: ir.Value, op_type: str, source: ir.Value, what: str) -> ir.Value:
        if self._opset >= 18:
            axes = self._constant("row_axis", np.array([-1], np.int64))
            return self._behind(behind, op_type, [source, axes], what)
        return self._behind(behind, op_type, [source], what, attributes={"axes": [-1]})

    def _behind(
        self,
        value: ir.Value,
        op_type: str,
        inputs: list[ir.Value | None],
        what: str,
        dtype: ir.DataType = ir.DataType.FLOAT,
        attributes: Attributes = None,
    ) -> ir.Value:
        name = f"{value.name}_{what}"
        return self._writer.add_behind(
            value, op_type, inputs, dtype, name=name, attributes=attributes
        )

    # Constants ----------------------------------------------------------------------------

    def _weight(self, node: ir.Node, key: str) -> ir.Value:
        """Return the dequantized matrix of a product."""
        place = key, _flips(node)
        if place not in self._weights:
            stored = self._matrix(node, key)
            axis = {"axis": 1} if stored.scale.shape else None
            parts = [stored.value, stored.scale, stored.zero_point]
            name = f"{stored.value.name}_DequantizeLinear"
            self._weights[place] = self._writer.add_behind(
                stored.value, "DequantizeLinear", parts, name=name, attributes=axis
            )
        return self._weights[place]

    def _matrix(
        self, node: ir.Node, key: str, scale_shape: tuple[int, ...] | None = None
    ) -> Quantized:
        """Return a matrix in the order that a node wants; it is stored once.

        Where a product and a table share it, the runtime transposes its integers when it opens the
        model: that takes less than a file with both.
        """
        stored, flips = self._stored(node, key, scale_shape)
        if not flips:
            return stored
        if key not in self._flipped:
            perm, dtype = {"perm": [1, 0]}, stored.dtype or ir.DataType.INT8
            name = f"{stored.value.name}_transposed"
            self._flipped[key] = self._writer.add_behind(
                stored.value, "Transpose", [stored.value], dtype, name=name, attributes=perm
            )
        return replace(stored, value=self._flipped[key])

    def _stored(
        self, node: ir.Node, key: str, scale_shape: tuple[int, ...] | None = None
    ) -> tuple[Quantized, bool]:
        """Return a matrix as it is stored, and whether a node wants it transposed."""
        flips = _flips(node)
        order = (1, 0) if flips and key not in self._as_it_is else None
        return self._writer.stored(key, order, scale_shape, "each"), flips and order is None

    def _column_sums(self, node: ir.Node, key: str) -> Array:
        """Return the sums of the columns of a product's matrix, as the kernel takes it."""
        stored, flips = self._stored(node, key)
        integers, scale, zero_point = (
            np.asarray(constant_of(part))
            for part in (stored.value, stored.scale, stored.zero_point)
        )
        integers = integers.T if flips else integers
        sums: Array = ((integers.astype(np.float64) - zero_point) * scale.astype(np.float64)).sum(0)
        return sums

    def _bias(self, node: ir.Node) -> _Bias | None:
        """Return what is added to every row of a product, if that is constant."""
        columns = self._columns(node)
        if node.op_type == "Gemm":
            array = constant_of(input_at(node, 2))
            if (
                array is None
                or array.size not in (1, columns)
                or array.shape[:-1] not in ((), (1,))
            ):
                return None
            return _Bias(np.broadcast_to(array.ravel(), columns), None)
        found, shape = bias_sum_behind(node), node.outputs[0].shape
        other = None if found is None else constant_of(found.bias)
        if (
            found is None
            or other is None
            or other.size != columns
            or other.shape[-1:] != (columns,)
        ):
            return None
        rank = 1 if shape is None else max(len(shape), 1)
        return _Bias(other.ravel(), found.node, found.index) if other.ndim <= rank else None

    @staticmethod
    def _columns(node: ir.Node) -> int:
        weight = weight_of(node)
        shape = None if weight is None else static_shape(weight.value)
        assert weight is not None and shape is not None  # it is stored
        return shape[0 if weight.transposed else 1]

    def _number(self, name: str, value: float) -> ir.Value:
        return self._constant(name, np.float32(value))

    def _constant(self, name: str, array: Array | np.generic) -> ir.Value:
        if name not in self._constants:
            self._constants[name] = self._writer.constant(name, array)
        return self._constants[name]


def _flips(node: ir.Node) -> bool:
    """Whether a node wants a matrix in another order than that in which the model stores it."""
    weight = weight_of(node)
    return weight is not None and weight.transposed != (node.op_type == "Gather")
