"""Inspection of a model: ops, types, opsets, sizes, and what of it is quantized and how."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from bitwright.decide.ops.quantized_view import QuantizedView, is_conversion
from bitwright.graph import Decisions, input_at, sizes_of
from bitwright.graph.quantized_ops import (
    BLOCK_ROUNDERS,
    DEQUANTIZERS,
    ROUNDERS,
    is_integer_op,
)
from bitwright.numerics.shared_exponent import SHARED_EXPONENT_FORMATS, Microscaling
from bitwright.support import Section, Summarized, counted, show_bytes

_DEQUANTIZING = DEQUANTIZERS | ROUNDERS


@dataclass(frozen=True, slots=True, repr=False)
class Inspection(Summarized):
    """The facts of one model.

    >>> import bitwright
    >>> facts = bitwright.inspect(bitwright.load_demo().model_path)
    >>> facts.ops["Conv"], facts.is_quantized
    (7, False)
    """

    ir_version: int
    opsets: dict[str, int]
    producer: str
    inputs: list[str]
    outputs: list[str]
    nodes: int
    ops: dict[str, int]
    """Op type -> how many, most frequent first."""
    weights: dict[str, dict[str, int]]
    """Element type -> number of tensors, elements and bytes."""
    parameters: int
    bytes: int
    quantized_ops: dict[str, int]
    """Op type -> how many are quantized: as the metadata says where this package made the model,
    else those that read dequantized values. Operators on integers always count."""
    float_ops: dict[str, int]
    """Op type -> how many were left float, where the metadata says it."""
    left_float: dict[str, dict[str, int]]
    """The same, op type -> reason -> how many."""
    quantized_types: dict[str, int]
    """Element type of Q/DQ pairs -> how many."""
    scales: dict[str, int]
    """Scale granularity -> how many dequantizers: per tensor, per channel, per block."""
    metadata: dict[str, str]

    @property
    def is_quantized(self) -> bool:
        """Whether anything in the model is quantized."""
        return bool(self.quantized_ops or self.quantized_types)

    def summary(self) -> str:
        """Return what the model is made of, in a few lines."""
        state = "quantized" if self.is_quantized else "float"
        head = f"{state} model of {counted(self.nodes, 'node')}, {self.parameters:,} parameters in "
        left = (f"Left float: {op} x{n} because {why}" for op, n, why in self._left_rows())
        facts = (f"{name}: {text}" for name, text in self.facts())
        return "\n".join([head + show_bytes(self.bytes), *facts, *left])

    def facts(self) -> list[tuple[str, str]]:
        """Return what the model is made of: names, and what is to be said of each."""
        opsets = (f"{domain or 'ai.onnx'} {number}" for domain, number in self.opsets.items())
        counts = {
            "Quantized ops": self.quantized_ops,
            "Number types": self.quantized_types,
            "Scales": self.scales,
        }
        found = [
            ("Made by", self.producer or "unknown"),
            ("IR version", str(self.ir_version)),
            ("Opsets", ", ".join(opsets)),
            *(("Input", text) for text in self.inputs),
            *(("Output", text) for text in self.outputs),
            ("Nodes", str(self.nodes)),
            ("Parameters", f"{self.parameters:,} in {show_bytes(self.bytes)}"),
            *(
                (name, ", ".join(f"{op} x{count}" for op, count in rows.items()))
                for name, rows in counts.items()
                if rows
            ),
        ]
        return found if self.is_quantized else [*found, ("Quantized", "nothing")]

    def _left_rows(self) -> list[tuple[str, str, str]]:
        return [
            (op, str(count), why)
            for op in self.float_ops
            for why, count in self.left_float[op].items()
        ]

    def sections(self, *, verbose: bool = False) -> list[Section]:
        """Return why nodes are float, and what there is of each op and each type."""
        ops = [
            (op, str(count), str(self.quantized_ops.get(op, 0) or "-"))
            for op, count in self.ops.items()
        ]
        weights = [
            (kind, str(row["tensors"]), str(row["elements"]), show_bytes(row["bytes"]))
            for kind, row in self.weights.items()
        ]
        return [
            ("Left float", ("op", "nodes", "because"), self._left_rows()),
            ("Ops", ("op", "nodes", "quantized"), ops),
            ("Constants", ("type", "tensors", "elements", "size"), weights),
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as plain data."""
        return {name: getattr(self, name) for name in self.__slots__} | {
            "is_quantized": self.is_quantized
        }


def inspect_model(model: ir.Model) -> Inspection:
    """Return the facts of a model, reading no weights."""
    nodes = list(model.graph.all_nodes())
    weights = _weights(model)
    dequantizers = [node for node in nodes if node.op_type in _DEQUANTIZING]
    ops = Counter(node.op_type for node in nodes)
    decided = Decisions.read(model)
    left = {} if decided is None else decided.left_float
    float_ops = Counter({op: sum(reasons.values()) for op, reasons in left.items()})
    if decided is None:
        view = QuantizedView(model)
        working = (n for n in nodes if view.works_on_integers(n) and not is_conversion(n))
        quantized = Counter(node.op_type for node in working)
    else:
        quantized = Counter(node.op_type for node in filter(_computes_integers, nodes))
        for op, count in decided.quantized.items():
            quantized[op] += max(0, min(count, ops[op] - float_ops[op]))
    return Inspection(
        ir_version=model.ir_version,
        opsets=dict(model.opset_imports),
        producer=" ".join(filter(None, (model.producer_name, model.producer_version))),
        inputs=[f"{v.name}: {show_type(v)}" for v in model.graph.inputs],
        outputs=[f"{v.name}: {show_type(v)}" for v in model.graph.outputs],
        nodes=len(nodes),
        ops=_ranked(ops),
        weights=weights,
        parameters=sum(row["elements"] for row in weights.values()),
        bytes=sum(row["bytes"] for row in weights.values()),
        quantized_ops=_ranked(+quantized),
        float_ops=_ranked(float_ops),
        left_float=left,
        quantized_types=_ranked(Counter(_stored_type(node) for node in dequantizers)),
        scales=_ranked(Counter(_granularity(node) for node in dequantizers)),
        metadata=dict(model.metadata_props),
    )


def _weights(model: ir.Model) -> dict[str, dict[str, int]]:
    """Return element type -> number of initializers, of their elements and of their bytes."""
    weights: dict[str, dict[str, int]] = {}
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is None:
                continue
            empty = {"tensors": 0, "elements": 0, "bytes": 0}
            row = weights.setdefault(tensor.dtype.name.lower(), empty)
            row["tensors"] += 1
            row["elements"] += tensor.size
            row["bytes"] += tensor.nbytes
    return weights


def _ranked(counter: Counter[str]) -> dict[str, int]:
    return dict(sorted(counter.items(), key=lambda item: (-item[1], item[0])))


def show_type(value: ir.Value) -> str:
    """Return the type and shape of a value."""
    dtype = "?" if value.dtype is None else value.dtype.name.lower()
    dims = "…" if value.shape is None else ",".join(str(dim) for dim in value.shape)
    return f"{dtype}[{dims}]"


def _computes_integers(node: ir.Node) -> bool:
    return is_integer_op(node.op_type) and not is_conversion(node)


def _stored_type(node: ir.Node) -> str:
    """Return the type of a dequantizer, from its zero point, its input or its attributes."""
    if node.op_type in BLOCK_ROUNDERS:
        return _block_format(node)
    for index in (2, 0):
        value = input_at(node, index)
        if value is not None and value.dtype is not None:
            return value.dtype.name.lower()
    return "uint8" if len(node.inputs) < 3 else "unknown"


def _block_format(node: ir.Node) -> str:
    given = {name: attribute.value for name, attribute in node.attributes.items()}
    for name, known in SHARED_EXPONENT_FORMATS.items():
        if isinstance(known, Microscaling):
            if (
                node.op_type.startswith("MX")
                and given.get("element_dtype", "int8") == known.element
            ):
                return name
        elif node.op_type.startswith("BFP"):
            prime = given.get("bfp_method") == "to_bfp_prime"
            if given.get("bit_width", 16) == known.bit_width and prime == bool(
                known.sub_block_size
            ):
                return name
    return "blocks"


def _granularity(node: ir.Node) -> str:
    if node.attributes.get_int("block_size", 0):
        return "per block"
    sizes = sizes_of(node.inputs[1]) or ()
    return "per channel" if any(size != 1 for size in sizes) else "per tensor"
