"""What every placement of a model's integers needs to know: one calibration serves them all."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from bitwright.decide.layout.static import lay_out
from bitwright.decide.layout.tensors import is_float
from bitwright.decide.ops.conventions import rule_for
from bitwright.graph import is_constant, iter_values
from bitwright.recipe import Recipe, Selection


def placeable_tensors(
    model: ir.Model, recipe: Recipe, *, keep_float: Mapping[str, str]
) -> list[str]:
    """Return the activations that are quantized wherever some of a model's nodes are left float.

    What the recipe itself leaves float does not matter. What a fused operation computes between
    its nodes is among them: a node that stays float exposes what the others read or write. Missing
    is what only op types take that are not quantized by default, for any purpose.
    """
    asked = recipe.select
    select = Selection(subgraphs=asked.subgraphs, constant_weights_only=asked.constant_weights_only)
    recipe = recipe.replace(select=select, overrides={})
    if recipe.can_be_placed:  # which takes more op types than size does
        recipe = recipe.replace(place={"purpose": "balanced"})
    layout = lay_out(model, recipe, keep_float=keep_float)
    values = set[ir.Value | None]()
    for node in model.graph.all_nodes():
        if (plan := layout.nodes.get(node.name or "")) is not None and plan.quantized:
            rule = rule_for(node.op_type, recipe)
            values.update(node.inputs[index] for index in rule.data_inputs(node))
            values.update(node.outputs[index] for index in rule.output_indices(node))
    return [
        name
        for name, value in iter_values(model)
        if value in values and is_float(value) and not is_constant(value)
    ]
