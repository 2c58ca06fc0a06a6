"""From what the user gives to the float model that a job works on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from bitwright import graph
from bitwright.data import InputSpec
from bitwright.decide.opsets import needed_opset
from bitwright.errors import ModelError, RecipeError
from bitwright.prepare import (
    approximate,
    approximates,
    give_biases,
    prepare_exactly,
    prepare_weights,
    simulation_steps,
)
from bitwright.recipe import Recipe

__all__ = ["Opened", "input_specs", "open_model", "upgrade_for"]


@dataclass(frozen=True, slots=True)
class Opened:
    """A float model in the form that the stages work on."""

    model: ir.Model
    reference: ir.Model | None
    """The model before it was made to imitate hardware; None: `model` itself."""
    notes: list[str]
    """What was done to it."""
    keep_float: dict[str, str]
    """Nodes that must read and write float, and why."""
    defaults: graph.HiddenDefaults


def open_model(source: Any, recipe: Recipe) -> Opened:
    """Load a model, clean it up, and rewrite it as the recipe asks."""
    model = graph.load_model(source)
    notes = graph.normalize(model, keep_defaults=recipe.keep_defaults)
    _infer_shapes(model, recipe)
    # Other products of the model may be stored in few bits already.
    graph.refuse_unsupported(model, allow_quantized=recipe.mode == "weight-only")
    model = upgrade_for(model, recipe, notes)
    named = {node.name for node in model.graph.all_nodes()}
    defaults = graph.hide_defaults(model)
    if recipe.mode == "weight-only":
        notes += prepare_weights(model, optimize=recipe.optimize)
    else:
        notes += prepare_exactly(
            model,
            optimize=recipe.optimize,
            widen=recipe.float16 == "widen",
            rewrite=recipe.rewrite,
        )
    if recipe.bias_correction != "off":
        give_biases(model)
    reference = None
    if approximates(recipe.rewrite, recipe.simulate):
        # This changes the function on purpose: results are measured against what it was.
        before = graph.clone_model(model)
        told = approximate(model, rewrite=recipe.rewrite, simulate=recipe.simulate)
        notes += told
        reference = before if told else None
    _refuse_merged_nodes(recipe, named - {node.name for node in model.graph.all_nodes()})
    _infer_shapes(model, recipe)
    if recipe.equalize is not None:
        from bitwright.equalize import equalize_layers  # few recipes ask for it

        notes.append(str(equalize_layers(model, recipe.equalize)))
    for one in (model, reference):
        if one is not None:
            graph.stamp_versions(one)
    replaceable = dict.fromkeys(defaults.nodes, "callers can replace what it gives")
    return Opened(
        model,
        reference,
        notes,
        simulation_steps(model) | replaceable,
        defaults,
    )


def upgrade_for(model: ir.Model, recipe: Recipe, notes: list[str]) -> ir.Model:
    """Return the model at an opset that has what the recipe needs, and note the move."""
    before, opset = graph.opset_of(model), needed_opset(model, recipe)
    if opset <= before:
        return model
    notes.append(f"upgraded opset {before} to {opset}")
    return graph.upgrade_opset(model, opset)


def _infer_shapes(model: ir.Model, recipe: Recipe) -> None:
    graph.infer_shapes(model)
    if recipe.assumed_type is not None:
        graph.assume_types(model, ir.DataType[_ASSUMED[recipe.assumed_type]])


_ASSUMED = {"float32": "FLOAT", "float16": "FLOAT16"}


def input_specs(model: ir.Model) -> tuple[InputSpec, ...]:
    """Return what a model expects at each of its inputs."""
    return tuple(_input_spec(v) for v in model.graph.inputs if not v.is_initializer())


def _input_spec(value: ir.Value) -> InputSpec:
    """Return what an input expects, without opening a session for it."""
    if value.dtype is None or value.name is None or not isinstance(value.type, ir.TensorType):
        raise ModelError(f"input {value.name!r} is not a tensor, and only tensors can be fed.")
    shape = value.shape
    return InputSpec(
        value.name,
        value.dtype.numpy(),
        None if shape is None else tuple(d if isinstance(d, int) else d.value for d in shape),
    )


def _refuse_merged_nodes(recipe: Recipe, merged: set[str | None]) -> None:
    """Say what became of a node that the user names and that preparation took away."""
    for name in recipe.select.named:
        if name in merged:
            raise RecipeError(
                f"node {name!r} was merged into its neighbours or rewritten before quantizing; "
                "name what it became, or set optimize=false (and no rewrite) to keep the model's "
                "nodes as they are."
            )
