"""A model that was trained with quantizers: its own scales instead of calibration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import onnx_ir as ir

from bitwright import graph
from bitwright._version import TOOL
from bitwright.decide.layout.trained import lay_out_trained, trained_recipe
from bitwright.decide.planner import decide
from bitwright.errors import ModelError, RecipeError, did_you_mean
from bitwright.jobs.calibration import Calibration
from bitwright.jobs.opening import ON_CPU, Prepared, open_model, upgrade_for
from bitwright.jobs.result import Result
from bitwright.jobs.smoothing import apply_factors
from bitwright.jobs.static import apply_static
from bitwright.plan import QuantPlan
from bitwright.prepare import prepare_exactly, read_trained
from bitwright.recipe import Emulation, Recipe, Selection
from bitwright.run import open_plainly
from bitwright.support.logs import logged

Format = Literal["qdq", "qoperator"]
_FORMATS = ("qdq", "qoperator")


def quantize_trained(
    source: Any,
    format: Format,
    select: Selection | None,
    optimize: bool,
    calibration: Calibration,
    providers: Sequence[str] | None = None,
) -> Result:
    """Write the integers that a model was trained for; data only measures the result."""
    prepared, plan = _open_trained(source, format, select, optimize, providers)
    return apply_static(prepared, plan, calibration, ON_CPU)


@logged("read the trained model")
def _open_trained(
    source: Any,
    format: Format,
    select: Selection | None,
    optimize: bool,
    providers: Sequence[str] | None,
) -> tuple[Prepared, QuantPlan]:
    """Return the float model inside a trained one, and the plan that its trained scales make.

    Results are measured against the model as it was trained.
    """
    if format not in _FORMATS:
        raise RecipeError(f"unknown format {format!r}.{did_you_mean(str(format), _FORMATS)}")
    model = graph.load_model(source)
    size = graph.file_size(source)
    notes = graph.normalize(model)
    graph.infer_shapes(model)
    graph.refuse_unsupported(model, allow_quantized=True)
    recipe = Recipe(
        name="trained",
        rounding="nearest",  # as it was in training
        format=format,
        optimize=optimize,
        select=select or Selection(),
        # Below opset 21 the types of 4 and 16 bits exist in the runtime's own domain only.
        emulate=Emulation(contrib_ops=graph.opset_of(model) < 21 and _has_contrib_pairs(model)),
    )
    model = upgrade_for(model, recipe, notes)
    reference = None
    try:  # without any fusion
        reference = open_plainly(model, providers)
    except ModelError as error:
        notes.append(f"compared with float, since the trained model itself does not run: {error}")
    notes += prepare_exactly(model, optimize=optimize)
    trained = read_trained(model)
    graph.stamp_versions(model)
    recipe = trained_recipe(trained.reads, recipe)
    prepared = Prepared(
        model=model,
        recipe=recipe,
        source=source,
        float_size=size,
        notes=tuple(notes),
        providers=providers,
        trained_session=reference,
    )
    layout, more = lay_out_trained(model, trained.reads, trained.results, recipe)
    plan = decide(model, layout, {}, recipe, fingerprint=prepared.fingerprint, tool=TOOL)
    notes += [*trained.notes, *more, *plan.notes]
    return prepared, msgspec.structs.replace(plan, notes=notes, trained=True)


def open_for_plan(source: Any, plan: QuantPlan, providers: Sequence[str] | None = None) -> Prepared:
    """Return the model that a plan is for: a float model, or the one inside a trained model."""
    format = plan.recipe.format
    if (format == "qdq" or format == "qoperator") and graph.find_quantized_nodes(
        graph.load_model(source)
    ):
        prepared, _ = _open_trained(
            source, format, plan.recipe.select, plan.recipe.optimize, providers
        )
        if prepared.fingerprint == plan.fingerprint:
            return apply_factors(prepared, plan.smoothing)
    prepared = open_model(source, plan.recipe, providers)
    if plan.rotation is not None:
        from bitwright.jobs.weight_only.rotation import apply_rotation  # few plans have one

        prepared = apply_rotation(prepared, plan.rotation)
    return apply_factors(prepared, plan.smoothing)


def open_for_changed(prepared: Prepared, plan: QuantPlan) -> tuple[Prepared, QuantPlan]:
    """Return the model that a changed plan is for, and the plan as it can be applied to it."""
    if plan.recipe != prepared.recipe:
        # Other types may need another opset, and then the prepared model is another.
        prepared = open_for_plan(prepared.source, plan, prepared.providers)
    return prepared, msgspec.structs.replace(plan, fingerprint=prepared.fingerprint)


def _has_contrib_pairs(model: ir.Model) -> bool:
    return any(
        node.domain == "com.microsoft" and node.op_type == "DequantizeLinear"
        for node in model.graph.all_nodes()
    )
