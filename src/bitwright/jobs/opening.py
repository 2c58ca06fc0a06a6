"""From what the user gives to the float model that the stages work on: load, prepare, equalize."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx_ir as ir

from bitwright import graph
from bitwright.data import InputSpec, fix_shapes, show_shape
from bitwright.decide.casting import decide_casts
from bitwright.decide.opsets import needed_opset
from bitwright.emit.casts import emit_casts
from bitwright.errors import ModelError, RecipeError
from bitwright.plan import QuantPlan
from bitwright.prepare import (
    approximate,
    approximates,
    give_biases,
    prepare_exactly,
    prepare_for_halves,
    prepare_weights,
    simulation_steps,
    widen_bfloat16,
)
from bitwright.recipe import RECIPES, Recipe
from bitwright.rounding.planned import RoundOnce
from bitwright.run import Session, upgrade_opset
from bitwright.support import counted, logged
from bitwright.targets.npu_operations import why_not_fixed


@dataclass(frozen=True, slots=True)
class Compute:
    """The device of heavy arithmetic, and the folder that keeps what it has finished."""

    device: str = "cpu"
    work: str | Path | None = None

    def refuse_for_plain_rounding(self) -> None:
        """Refuse options that a job without such arithmetic would ignore."""
        if self.work is not None:
            raise RecipeError(
                "a work folder is for weight-only recipes and fine-tuning; leave it out."
            )
        if self.device != "cpu":
            raise RecipeError(
                f"the device {self.device!r} is for weight-only recipes and fine-tuning; leave it "
                "out."
            )


ON_CPU = Compute()


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A float model in the form that the stages work on, and what was done to it so far."""

    model: ir.Model
    recipe: Recipe
    source: Any
    """What the user gave."""
    float_size: int
    """Bytes of the given model."""
    notes: tuple[str, ...] = ()
    before_simulation: ir.Model | None = None
    """The model before it was made to simulate hardware; None: it was not."""
    keep_float: Mapping[str, str] = field(default_factory=dict)
    """Nodes that must read and write float, and why."""
    defaults: graph.HiddenDefaults = field(default_factory=graph.HiddenDefaults)
    providers: Sequence[str] | None = None
    trained_session: Any = None
    """A session of the model as it was trained with quantizers; None: it was not."""
    rounding: RoundOnce = field(default_factory=RoundOnce, repr=False, compare=False)
    """What makes integers of its weights."""

    @property
    def reference(self) -> ir.Model:
        """What results are measured against: the model before it simulates hardware."""
        return self.before_simulation or self.model

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """What the model expects."""
        return input_specs(self.model)

    @cached_property
    def fingerprint(self) -> str:
        """What a plan for this model must carry."""
        return graph.fingerprint(self.model)

    @cached_property
    def content_fingerprint(self) -> str:
        """What sketches of this model must carry: other weights make other activations."""
        return graph.fingerprint(self.model, weights=True)

    @cached_property
    def reference_session(self) -> Any:
        """A session of what results are measured against."""
        if self.trained_session is not None:
            return self.trained_session
        return Session(self.reference, providers=self.providers)


@logged("prepare the model")
def open_model(source: Any, recipe: Recipe, providers: Sequence[str] | None = None) -> Prepared:
    """Load a model, clean it up, and rewrite and equalize it as the recipe asks."""
    model, notes = _load(source, recipe)
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
            widen_interface=recipe.emulate.widen_interface,
        )
    if recipe.overrides and recipe.float16 == "widen":
        recipe = _follow_widened_tensors(model, recipe)
    if recipe.bias_correction != "off":
        give_biases(model)
    before_simulation, changes = _approximate(model, recipe)
    notes += changes
    _refuse_merged_nodes(recipe, named - {node.name for node in model.graph.all_nodes()})
    _infer_shapes(model, recipe)
    notes += _equalize(model, recipe)
    notes += _shape_warnings(model, recipe)
    for one in (model, before_simulation):
        if one is not None:
            graph.stamp_versions(one)
    replaceable = dict.fromkeys(defaults.nodes, "callers can replace what it gives")
    return Prepared(
        model=model,
        recipe=recipe,
        source=source,
        float_size=graph.file_size(source),
        notes=tuple(notes),
        before_simulation=before_simulation,
        keep_float=simulation_steps(model) | replaceable,
        defaults=defaults,
        providers=providers,
    )


def _approximate(model: ir.Model, recipe: Recipe) -> tuple[ir.Model | None, list[str]]:
    """Change the function on purpose, where the recipe asks for it; return what it was, and notes.

    Results are measured against what it was; None: it still is.
    """
    if recipe.float16 == "cast":
        exact, half = graph.clone_model(model), RECIPES["float16"]
        _infer_shapes(model, recipe)
        prepare_for_halves(model)
        _infer_shapes(model, recipe)
        nodes = decide_casts(model, half)
        plan = QuantPlan(recipe=half, fingerprint="", tool="", tensors={}, nodes=nodes)
        return exact, emit_casts(model, plan)
    if recipe.mode == "cast" and recipe.rewrite.fuse_layer_norm and not recipe.casts_weights_only:
        return None, prepare_for_halves(model)
    if not approximates(recipe.rewrite, recipe.simulate, recipe.emulate):
        return None, []
    exact = graph.clone_model(model)
    changes = approximate(
        model, rewrite=recipe.rewrite, simulate=recipe.simulate, emulate=recipe.emulate
    )
    return (exact if changes else None), changes


def _load(source: Any, recipe: Recipe) -> tuple[ir.Model, list[str]]:
    """Return a model in its present form, at an opset that the recipe can work with, and notes."""
    model = graph.load_model(source)
    notes = graph.normalize(model, keep_defaults=recipe.keep_defaults)
    if recipe.rewrite.fix_shapes:
        notes.append(_fix_shapes(model, recipe))
    _infer_shapes(model, recipe)
    widened = widen_bfloat16(model).changed
    if widened:
        notes.append(
            f"widened {counted(widened, 'bfloat16 tensor')}: inputs and outputs are float32, too"
        )
    # Other products of the model may be stored in low-bit blocks already.
    graph.refuse_unsupported(model, allow_quantized=recipe.mode == "weight-only")
    return upgrade_for(model, recipe, notes), notes


def prepare_further(prepared: Prepared, recipe: Recipe) -> Prepared:
    """Return a prepared model as a recipe wants it that adds biases or equalization to its own.

    In all else both recipes prepare alike. What cannot come on top is prepared from the start.
    """
    given = prepared.recipe
    adds_biases = recipe.bias_correction != "off" and given.bias_correction == "off"
    drops_biases = recipe.bias_correction == "off" and given.bias_correction != "off"
    simulates = prepared.before_simulation is not None  # that comes behind the biases
    if given.equalize is not None or drops_biases or (simulates and adds_biases):
        return open_model(prepared.source, recipe, prepared.providers)
    model = graph.clone_model(prepared.model)
    if adds_biases:
        give_biases(model)
    _infer_shapes(model, recipe)
    notes = (*prepared.notes, *_equalize(model, recipe))
    graph.stamp_versions(model)
    return replace(prepared, model=model, recipe=recipe, notes=notes)


def _equalize(model: ir.Model, recipe: Recipe) -> list[str]:
    """Equalize weights where the recipe asks for it, and return the note on that."""
    if recipe.equalize is None:
        return []
    from bitwright.equalize.cle import equalize_layers  # few recipes ask for it

    return [str(equalize_layers(model, recipe.equalize, recipe.emulate.equalize))]


def upgrade_for(model: ir.Model, recipe: Recipe, notes: list[str]) -> ir.Model:
    """Return the model at an opset that has what the recipe needs, and note the move."""
    before, opset = graph.opset_of(model), needed_opset(model, recipe)
    if opset <= before:
        return model
    notes.append(f"upgraded opset {before} to {opset}")
    upgraded = upgrade_opset(model, opset)
    graph.normalize(upgraded, keep_defaults=recipe.keep_defaults)  # attributes became constants
    return upgraded


def _infer_shapes(model: ir.Model, recipe: Recipe) -> None:
    graph.infer_shapes(model)
    if recipe.emulate.assumed_type is not None:
        graph.assume_types(model, ir.DataType[_ASSUMED[recipe.emulate.assumed_type]])


_ASSUMED = {"float32": "FLOAT", "float16": "FLOAT16"}


def _fix_shapes(model: ir.Model, recipe: Recipe) -> str:
    """Give inputs the shapes that the recipe has for them, and return what was done."""
    specs = input_specs(model)
    fixed, sizes = fix_shapes(specs, recipe.rewrite.fix_shapes)
    for before, after in zip(specs, fixed, strict=True):
        clash = [
            (old, new)
            for old, new in zip(before.shape or (), after.shape or (), strict=False)
            if isinstance(old, int) and old != new
        ]
        if clash or (before.shape and len(before.shape) != len(after.shape or ())):
            raise ModelError(
                f"the input {before} cannot have the shape {show_shape(after.shape or ())} of "
                "fix_shapes; only open dimensions can be set."
            )
    shapes = {spec.name: spec.shape for spec in fixed if spec.shape is not None}
    graph.set_input_shapes(model, shapes, sizes)
    return "fixed the shapes of inputs: " + ", ".join(map(str, fixed))


def _shape_warnings(model: ir.Model, recipe: Recipe) -> Iterator[str]:
    """Yield a note for each input whose sizes the target, or the NPU's compiler, does not take."""
    fix = "fix them with rewrite.fix_shapes or --fix-shape NAME=SIZE"
    fed = [value for value in model.graph.inputs if not value.is_initializer()]
    for value, spec in zip(fed, input_specs(model), strict=True):
        reason = None if recipe.limits is None else why_not_fixed(value)
        is_open = spec.shape is None or not all(isinstance(size, int) for size in spec.shape)
        if reason is not None:
            takes = "the NPU takes fixed shapes and a batch of 1"
            yield f"warning: the input {value.name!r} {reason}, and {takes}; {fix}"
        elif recipe.limits is None and recipe.rewrite.needs_fixed_shapes and is_open:
            takes = "the target takes fixed shapes only"
            yield f"warning: the input {spec} has open sizes, and {takes}; {fix}"


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


def _follow_widened_tensors(model: ir.Model, recipe: Recipe) -> Recipe:
    """Return the recipe with overrides of float16 inputs and outputs at what is computed with.

    Behind an input, and before an output, a Cast parts the tensor from its float32 form.
    """
    renamed: dict[str, str] = {}
    half = ir.DataType.FLOAT16
    for node in model.graph:
        source, result = node.inputs[0] if node.inputs else None, node.outputs[0]
        if node.op_type != "Cast" or source is None or not source.name or not result.name:
            continue
        if source.is_graph_input() and source.dtype == half:
            renamed[source.name] = result.name
        elif result.is_graph_output() and result.dtype == half:
            renamed[result.name] = source.name
    overrides = {
        renamed.get(name, name) if given.for_tensors else name: given
        for name, given in recipe.overrides.items()
    }
    return recipe if overrides == recipe.overrides else recipe.replace(overrides=overrides)


def _refuse_merged_nodes(recipe: Recipe, merged: set[str | None]) -> None:
    """Say what became of a node that the user names and that preparation took away."""
    of_nodes = (name for name, override in recipe.overrides.items() if override.for_nodes)
    named = (*recipe.select.named, *of_nodes)
    for name in named if recipe.select.unknown_names == "refuse" else ():
        if name in merged:
            raise RecipeError(
                f"node {name!r} was merged into its neighbours or rewritten before quantizing",
                remedy="name what it became, or keep the model's nodes as they are with "
                "optimize=False (and no rewrite)",
                command="name what it became, or keep the model's nodes as they are with --set "
                "optimize=false (and no rewrite)",
            )
