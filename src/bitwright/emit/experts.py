"""Turn a mixture of experts, MoE of com.microsoft, into QMoE, which reads its weights in blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import onnx_ir as ir

from bitwright.emit.quantized import convert_to_contrib
from bitwright.errors import PlanError
from bitwright.graph import NameScope
from bitwright.graph.constants import EXPERT_WEIGHTS, input_at
from bitwright.graph.editing import insert_before
from bitwright.numerics.blocks import BlockFormat

__all__ = ["StoredExperts", "to_experts"]


class StoredExperts(NamedTuple):
    """One weight of all experts, as QMoE reads it."""

    codes: ir.Value
    scales: ir.Value
    zero_points: ir.Value | None
    format: BlockFormat


def to_experts(
    node: ir.Node, stored: Mapping[int, StoredExperts], names: NameScope, *, accuracy_level: int
) -> None:
    """Turn a MoE into QMoE, given its weights by the inputs where it has them."""
    places = [place for place in EXPERT_WEIGHTS if input_at(node, place) is not None]
    floats = [place for place in places if place not in stored]
    if floats:
        values = [value.name for place in floats if (value := input_at(node, place)) is not None]
        raise PlanError(f"{node.name!r} reads all of its weights in blocks or none; add {values}.")
    formats = {(part.format.bits, part.format.block_size) for part in stored.values()}
    if len(formats) > 1:
        raise PlanError(f"the weights of {node.name!r} need the same bits and block size.")
    inputs: list[ir.Value | None] = [*node.inputs[:2]]
    for place in EXPERT_WEIGHTS:
        part = stored.get(place)
        inputs += [part.codes, part.scales] if part else [None, None]
        inputs.append(input_at(node, place + 1))  # its bias
    inputs += [part.zero_points if (part := stored.get(p)) else None for p in EXPERT_WEIGHTS]
    if not node.attributes.get_int("normalize_routing_weights", 0):
        inputs.append(_router_weights(node, names))
    while inputs[-1] is None:
        inputs.pop()
    bits, block_size = formats.pop()
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    attributes["expert_weight_bits"] = bits
    attributes |= {} if block_size == -1 else {"block_size": block_size}
    # An operator before ONNX Runtime 1.31 does not have it.
    attributes |= {"accuracy_level": 4} if accuracy_level == 4 else {}
    convert_to_contrib(node, "QMoE", inputs, attributes)


def _router_weights(node: ir.Node, names: NameScope) -> ir.Value:
    """Return what the outputs of experts are weighed with where a MoE does not normalize it.

    QMoE on CPUs always normalizes over the experts that are chosen, unless it is given weights.
    """
    router = node.inputs[1]
    assert router is not None
    name = names.fresh(f"{node.name}_router_weights")
    output = ir.Value(name=names.fresh(f"{router.name}_weights"), type=router.type)
    return insert_before(node, "Softmax", [router], output, name, {"axis": -1})
