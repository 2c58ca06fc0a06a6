"""The constants of a plan with the values they are stored as, and the model that runs with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
import onnx_ir as ir

from bitwright.emit import EMITTERS, Rounding
from bitwright.graph import clone_model, iter_values
from bitwright.numerics.quantize import dequantize
from bitwright.plan import Parameters, QuantPlan
from bitwright.rounding.planned import round_as_planned
from bitwright.support.array_types import Array


@dataclass(frozen=True, slots=True)
class Constant:
    """A weight or bias of the main graph that is stored in one way only."""

    name: str
    key: str
    """Its entry in the plan."""
    role: str
    array: Array
    nodes: tuple[str, ...]
    """The nodes that read it, quantized."""

    def stored(
        self,
        parameters: Parameters,
        array: Array | None = None,
        rounding: Rounding = round_as_planned,
    ) -> Array:
        """Return the numbers that come back from the integers nearest to it, or to others."""
        given = self.array if array is None else array
        if parameters.qtype.shares_exponent:
            return rounding(given, parameters).astype(given.dtype)
        scale = np.asarray(parameters.scale)
        return dequantize(
            rounding(given, parameters),
            scale if parameters.qtype.bits == 32 else scale.astype(np.float32),
            parameters.zero_point,
            axis=parameters.axis,
            block_size=parameters.block_size,
            dtype=given.dtype,
        )


def find_constants(model: ir.Model, plan: QuantPlan) -> dict[str, Constant]:
    """Return the plan's constants of the main graph by name, without those stored in two ways."""
    values = dict(iter_values(model))
    inside = {node.name for node in model.graph}
    found: dict[str, Constant] = {}
    several = set()
    for node, key in _reads(plan):
        entry = plan.tensors[key]
        value = values.get(entry.tensor)
        if entry.role == "activation" or value is None or value.const_value is None:
            continue
        name = value.name or ""
        if node not in inside or value.graph is not model.graph or entry.source is not None:
            several.add(name)
        elif name not in found:
            found[name] = Constant(name, key, entry.role, value.const_value.numpy(), (node,))
        elif found[name].key != key:
            several.add(name)
        else:
            known = found[name]
            found[name] = Constant(name, key, known.role, known.array, (*known.nodes, node))
    return {name: constant for name, constant in found.items() if name not in several}


def with_quantized_activations(
    model: ir.Model, plan: QuantPlan, constants: Mapping[str, Constant]
) -> ir.Model:
    """Return the model with quantized activations, and with these constants in float."""
    quantized = clone_model(model)
    form = "extended" if plan.recipe.output_format.vendor_ops else "qdq"
    EMITTERS["static", form](quantized, _activations_only(plan, constants), round_as_planned)
    return quantized


def _activations_only(plan: QuantPlan, constants: Mapping[str, Constant]) -> QuantPlan:
    """Return a plan that leaves these constants float, and every node and name of the model."""
    keys = {constant.key for constant in constants.values()}
    nodes = {}
    for name, node in plan.nodes.items():
        inputs = tuple(None if key in keys else key for key in node.inputs)
        # A clip that its quantizer takes over is no harm before it, and a segment may end there.
        action = "float" if node.action == "absorb" else node.action
        nodes[name] = msgspec.structs.replace(node, inputs=inputs, action=action)
    return msgspec.structs.replace(plan, nodes=nodes, outputs={})


def _reads(plan: QuantPlan) -> Iterator[tuple[str, str]]:
    for name, node in plan.nodes.items():
        for key in node.inputs:
            if key is not None:
                yield name, key
