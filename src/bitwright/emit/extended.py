"""Write a plan with the vendor's operators, for every number type, and their bodies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from bitwright.emit.functions.scaled import (
    QUARK_DOMAIN,
    VENDOR_DOMAIN,
    Op,
    Use,
    distinguishing_attributes,
    scaled_function,
)
from bitwright.emit.functions.shared_exponent import (
    block_attributes,
    block_function,
    block_op,
    distinguishing_block_attributes,
)
from bitwright.emit.qdq import QdqWriter, Rounding, StandardOp
from bitwright.graph.editing import add_initializer, graph_of, insert_after
from bitwright.numerics import BFLOAT16, INT32, QType, axis_within, dequantize
from bitwright.numerics.shared_exponent import Rounding as BlockRounding
from bitwright.plan import Parameters, QuantPlan, TensorPlan


def emit_extended(model: ir.Model, plan: QuantPlan, round_weights: Rounding) -> list[str]:
    """Turn the float model, in place, into one with pairs of the vendor's operators.

    Tensors in block formats get one operator instead of a pair. With `place.portable` each
    operator has a body in standard ones; with `emulate.extended_ops` off, standard operators stand
    wherever they take the type.
    """
    _ExtendedWriter(model, plan, round_weights).write()
    return []


def emit_fix_neuron(model: ir.Model, plan: QuantPlan, round_weights: Rounding) -> list[str]:
    """Turn the float model, in place, into one with a FixNeuron instead of each pair.

    Constants stay float, rounded to what their type can hold. Biases at (input scale x weight
    scale) are integers of 32 bits behind a dequantizer: rounding them twice would gain nothing.
    """
    _ExtendedWriter(model, plan, round_weights, fused=True).write()
    return []


_ROUNDINGS: dict[str, BlockRounding] = {"half-away": 0, "half-up": 1, "half-even": 2}

# FixNeuron is not among them: it has no name there any more.
_QUARK_NAMES = {
    "VitisQuantizeLinear": "ExtendedQuantizeLinear",
    "VitisDequantizeLinear": "ExtendedDequantizeLinear",
    "BFPFixNeuron": "BFPQuantizeDequantize",
    "MXFixNeuron": "MXQuantizeDequantize",
}


class _ExtendedWriter(QdqWriter):
    def __init__(
        self, model: ir.Model, plan: QuantPlan, round_weights: Rounding, *, fused: bool = False
    ) -> None:
        super().__init__(model, plan, round_weights)
        self._fused = fused
        self._rounding = _ROUNDINGS.get(plan.recipe.emulate.block_rounding or "")
        self._as_quark = plan.recipe.emulate.vendor_names == "quark"
        self._opset = model.opset_imports[""]
        self._scaled_nodes: list[tuple[ir.Node, Op, Use]] = []
        self._block_nodes: list[tuple[ir.Node, QType]] = []

    def write(self) -> None:
        """Write the plan, then one body for each of the operators that were used."""
        super().write()
        if not self._scaled_nodes and not self._block_nodes:
            return
        self._model.opset_imports.setdefault(VENDOR_DOMAIN, 1)
        if self._plan.recipe.place.portable:
            self._add_scaled_functions()
            self._add_block_functions()
        if self._as_quark:
            self._rename()

    def _rename(self) -> None:
        """Give operators and their bodies the names and the domain of today's tool."""
        for node in self._model.graph.all_nodes():
            if node.domain == VENDOR_DOMAIN:
                node.domain, node.op_type = QUARK_DOMAIN, _QUARK_NAMES[node.op_type]
        for key, function in list(self._model.functions.items()):
            if function.domain == VENDOR_DOMAIN:
                del self._model.functions[key]
                function.domain, function.name = QUARK_DOMAIN, _QUARK_NAMES[function.name]
                self._model.functions[function.identifier()] = function
        self._model.opset_imports.pop(VENDOR_DOMAIN)
        self._model.opset_imports[QUARK_DOMAIN] = 1

    # Bodies -------------------------------------------------------------------------------

    def _add_scaled_functions(self) -> None:
        for op in dict.fromkeys(op for _, op, _ in self._scaled_nodes):
            uses = list(dict.fromkeys(use for _, other, use in self._scaled_nodes if other == op))
            self._add_function(scaled_function(op, uses, self._opset))
            for node, other, use in self._scaled_nodes:
                if other == op:
                    _add_attributes(node, distinguishing_attributes(op, uses, use.qtype))

    def _add_block_functions(self) -> None:
        for op in dict.fromkeys(node.op_type for node, _ in self._block_nodes):
            nodes = [item for item in self._block_nodes if item[0].op_type == op]
            types = list(dict.fromkeys(qtype for _, qtype in nodes))
            self._add_function(block_function(types, self._opset, rounding=self._rounding))
            for node, qtype in nodes:
                _add_attributes(node, distinguishing_block_attributes(types, qtype))

    def _add_function(self, function: ir.Function) -> None:
        self._model.functions[function.identifier()] = function
        for domain, version in function.opset_imports.items():
            self._model.opset_imports.setdefault(domain, version)

    # One entry ----------------------------------------------------------------------------

    def _write_entry(
        self, key: str, entry: TensorPlan, source: ir.Value, result: tuple[ir.Graph, int] | None
    ) -> ir.Value:
        parameters = self._plan.parameters(key)
        if parameters.qtype.shares_exponent:
            axis, qtype = _axis_within(parameters.axis, source), parameters.qtype
            attributes = block_attributes(qtype, axis, rounding=self._rounding)
            if self._as_quark:
                attributes.pop("use_compiler_version_cpu_kernel", None)
            node = ir.node(block_op(qtype), [None], attributes, domain=VENDOR_DOMAIN)
            self._block_nodes.append((node, qtype))
            return self._write_single(entry, source, parameters, result, node)
        if self._fused and entry.role != "bias":
            label = self._values[entry.tensor].name or ""
            scale, zero_point = self._parameter_values(key, label, parameters, source)
            node = self._scaled_node("FixNeuron", [None, scale, zero_point], parameters)
            return self._write_single(entry, source, parameters, result, node)
        return super()._write_entry(key, entry, source, result)

    def _write_single(
        self,
        entry: TensorPlan,
        source: ir.Value,
        parameters: Parameters,
        result: tuple[ir.Graph, int] | None,
        node: ir.Node,
    ) -> ir.Value:
        """Put one operator behind a tensor, or behind the rounded values of a constant.

        Constants in blocks are stored as they are: rounding again need not give the same, since
        -2 times the scale of a block of MXINT8 has another exponent than all that it stands for.
        """
        graph = graph_of(source)
        tensor = self._values[entry.tensor]
        label = tensor.name or ""
        suffix = self._dedicated_suffix(entry)
        # Quark calls them as it calls the pairs of other types.
        name = f"{label}_{'DequantizeLinear' if self._as_quark else node.op_type}"
        before = f"{label}_{'QuantizeLinear' if self._as_quark else node.op_type}_Input"
        output = node.outputs[0]
        output.name = self._names.fresh(f"{name}_Output{suffix}")
        if result is not None:
            # The public name stays on what the model gives out.
            tensor.name = self._names.fresh(before)
            output.name = label
        output.type, output.shape = source.type, source.shape
        node.name = self._names.fresh(f"{name}{suffix}")
        producer = source.producer()
        if entry.role != "activation" and not parameters.qtype.shares_exponent:
            source = self._rounded_constant(entry, source, parameters)
        node.replace_input_with(0, source)
        insert_after(graph, node, producer)
        if result is not None:
            owner, index = result
            owner.outputs[index] = output
        return output

    def _rounded_constant(
        self, entry: TensorPlan, source: ir.Value, parameters: Parameters
    ) -> ir.Value:
        array = self._planned_constant(entry, source)
        rounded = dequantize(
            self._round(array, parameters),
            np.asarray(parameters.scale).astype(np.float32),
            parameters.zero_point,
            axis=parameters.axis,
            block_size=parameters.block_size,
            dtype=array.dtype,
        )
        name = f"{source.name}_rounded"
        return add_initializer(graph_of(source), self._names, name, rounded)

    # One node -----------------------------------------------------------------------------

    def _node(
        self,
        op_type: StandardOp,
        inputs: Sequence[ir.Value | None],
        parameters: Parameters,
        output: ir.Value,
        name: str,
    ) -> ir.Node:
        if self._is_left_standard(op_type, parameters, inputs[0]):
            return super()._node(op_type, inputs, parameters, output, name)
        plain = np.all(np.asarray(parameters.scale) == 1) and not np.any(parameters.zero_point)
        only_rounds = plain and parameters.qtype == BFLOAT16
        if only_rounds and self._plan.recipe.emulate.bfloat16_casts:
            kind = ir.DataType.BFLOAT16 if op_type == "QuantizeLinear" else output.dtype
            assert kind is not None
            return ir.node("Cast", inputs[:1], {"to": kind.value}, outputs=[output], name=name)
        vendor: dict[StandardOp, Op] = {
            "QuantizeLinear": "VitisQuantizeLinear",
            "DequantizeLinear": "VitisDequantizeLinear",
        }
        node = self._scaled_node(vendor[op_type], inputs, parameters, output)
        node.name = name
        return node

    def _is_left_standard(
        self, op_type: StandardOp, parameters: Parameters, source: ir.Value | None
    ) -> bool:
        if parameters.block_size:
            return True  # scales in blocks are ONNX's own; the vendor's operator has none
        if self._plan.recipe.emulate.extended_ops or self._fused:
            return False
        if parameters.qtype == INT32:  # ONNX dequantizes it, but has no op that quantizes to it
            is_bias = op_type == "DequantizeLinear" and _is_like_a_bias(source)
            return is_bias and not np.any(parameters.zero_point)
        return parameters.qtype.is_integer and parameters.qtype.bits <= 16

    def _scaled_node(
        self,
        op: Op,
        inputs: Sequence[ir.Value | None],
        parameters: Parameters,
        output: ir.Value | None = None,
    ) -> ir.Node:
        per_channel = bool(np.ndim(parameters.scale))
        axis = (parameters.axis or 0) if per_channel else 0
        outputs = [output or ir.Value()]
        node = ir.node(op, inputs, {"axis": axis}, domain=VENDOR_DOMAIN, outputs=outputs)
        use = Use(
            parameters.qtype,
            per_channel,
            centred=not np.any(parameters.zero_point),
            is_bias=_is_like_a_bias(inputs[0]),
        )
        self._scaled_nodes.append((node, op, use))
        return node


def _is_like_a_bias(value: ir.Value | None) -> bool:
    """Whether a value is a constant of one axis at most."""
    tensor = None if value is None else value.const_value
    return tensor is not None and len(tensor.shape) <= 1


def _add_attributes(node: ir.Node, attributes: dict[str, Any]) -> None:
    for attribute in ir.convenience.convert_attributes(attributes):
        node.attributes[attribute.name] = attribute


def _axis_within(axis: int | None, value: ir.Value) -> int:
    """Return the axis of blocks: the second, or the last of a tensor that has no second."""
    wanted = 1 if axis is None else axis
    return wanted if value.shape is None else axis_within(wanted, len(value.shape))
