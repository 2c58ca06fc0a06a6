"""What `quantize` and `make_plan` are asked for, and how it is carried out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitwright import graph
from bitwright.data import RandomData, fingerprint_data, paths_of
from bitwright.errors import ArgumentError, OutputError, RecipeError
from bitwright.jobs.calibration import Calibration
from bitwright.jobs.decision_log import log_decisions
from bitwright.jobs.modes import mode_of
from bitwright.jobs.opening import ON_CPU, Compute, Prepared, open_model
from bitwright.jobs.placing import leave_slower_float, plan_all_float
from bitwright.jobs.result import Result
from bitwright.jobs.timing import time_result
from bitwright.plan import QuantPlan
from bitwright.recipe import Recipe

if TYPE_CHECKING:
    from bitwright.jobs.folder import FolderResult
    from bitwright.jobs.improve.effort import Effort

RecipeSource = str | Path | dict[str, Any] | Recipe | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeRequest:
    """What is to be quantized, how, with which data, and where the result goes."""

    source: Any
    output: str | Path | None = None
    weights: str | Path | None = None
    """A file whose weights take the place of the model's own."""
    asked: RecipeSource
    """The recipe as the user named it: one that is given is carried out as it says."""
    recipe: Recipe
    effort: Effort | None
    calibration: Calibration
    compute: Compute = ON_CPU
    external_data: bool | None = None
    providers: Sequence[str] | None = None
    force_dynamic: bool = False
    """Whether a dynamic recipe also takes convolutions and small products, which get slower."""
    timing: bool = False
    """Whether the result is timed beside the prepared float model, once it is written."""
    elsewhere: bool = False
    """Whether it is for a target that is not this machine."""

    def __post_init__(self) -> None:
        """Refuse an engine for a job that runs no samples and rounds nothing by data."""
        mode, calibration = self.recipe.mode, self.calibration
        idle = (mode == "dynamic" and self.recipe.smooth is None and self.effort is None) or (
            mode == "weight-only" and calibration.data is None
        )
        if idle and not calibration.engine.is_local:
            raise RecipeError(
                f"recipe {self.recipe.name!r} observes no activations, so that an engine has "
                "nothing to do; leave it out."
            )

    def open(self) -> Prepared:
        """Return the float model that all stages work on: it is opened here, and handed on."""
        source = with_weights(self.source, self.weights, self.output)
        prepared = open_model(source, self.recipe, self.providers)
        if self.recipe.mode != "dynamic" or self.force_dynamic:
            return prepared
        return leave_slower_float(prepared)

    def chosen_effort(self) -> Effort:
        """Return the effort to make."""
        if self.effort is None and self.asked is not None:
            return "low"
        from bitwright.jobs.improve.effort import check_effort, standard_effort

        if self.effort is None or self.effort == "standard":
            return standard_effort(self.recipe, self.calibration)
        check_effort(self.effort, self.recipe, self.calibration)
        return self.effort


def quantize_request(request: QuantizeRequest) -> Result | FolderResult:
    """Quantize a model, or all models of a folder, and write the result."""
    source, output = request.source, request.output
    is_folder = isinstance(source, str | os.PathLike) and Path(source).is_dir()
    if output is not None and not is_folder:
        is_file = isinstance(request.asked, str | Path) and Path(request.asked).suffix
        file: Any = request.asked if is_file else None
        others = [*paths_of(request.calibration.data), file, request.calibration.sketches]
        graph.check_destination(output, source=source, others=others)
    with request.calibration.engine.connect():
        if is_folder:
            return _quantize_folder(request)
        prepared, made = _quantize_model(request)
        result = save_result(made, output, request.external_data)
    if request.timing:
        _time(request, prepared, result)
    return result


def plan_request(request: QuantizeRequest) -> QuantPlan:
    """Decide everything, and write nothing."""
    calibration, effort = request.calibration, request.chosen_effort()
    with calibration.engine.connect():
        prepared = request.open()
        if effort == "low" or plan_all_float(prepared, calibration) is not None:
            plan = mode_of(request.recipe).make_plan(prepared, calibration)
        else:
            from bitwright.jobs.improve.effort import plan_with_effort

            plan = plan_with_effort(prepared, effort, calibration)
    log_decisions(plan)
    return plan


def _quantize_model(request: QuantizeRequest) -> tuple[Prepared, Result]:
    effort, recipe = request.chosen_effort(), request.recipe
    request = _keep_observed(request, effort)
    calibration, compute = request.calibration, request.compute
    if effort != "high" and recipe.mode == "static" and recipe.fine_tune is None:
        compute.refuse_for_plain_rounding()
    prepared = request.open()
    if effort == "low" or plan_all_float(prepared, calibration) is not None:
        return prepared, mode_of(recipe).quantize(prepared, calibration, compute)
    from bitwright.jobs.improve.effort import quantize_with_effort

    return prepared, quantize_with_effort(prepared, effort, calibration, compute)


def _quantize_folder(request: QuantizeRequest) -> FolderResult:
    from bitwright.jobs.folder import ModelFolder, quantize_folder

    calibration, compute, output = request.calibration, request.compute, request.output
    if calibration.sketches is not None:
        raise ArgumentError("sketches are of one model; leave them out for a folder.")
    opened = ModelFolder.open(request.source)
    if request.weights is not None and len(opened.models) > 1:
        raise ArgumentError(
            f"weights are of one model, and the folder {str(request.source)!r} has "
            f"{len(opened.models)}; give the .onnx file."
        )
    if output is not None:
        opened.check_output(output)

    def quantize_model(name: str, path: Path, recipe: Recipe, data: Any) -> Result:
        work = None if compute.work is None else Path(compute.work) / name
        own = replace(
            request,
            source=path,
            recipe=recipe,
            calibration=replace(calibration, data=data),
            compute=replace(compute, work=work),
        )
        return _quantize_model(own)[1]

    result = quantize_folder(
        opened, request.recipe, calibration.data, quantize_model, calibration.limit
    )
    if output is not None:
        result.save(output, external_data=request.external_data)
    for one in result.results.values() if request.timing else ():
        _time(request, open_model(one.source, one.plan.recipe, request.providers), one)
    return result


def _time(request: QuantizeRequest, prepared: Prepared, result: Result) -> None:
    found = time_result(prepared, result, elsewhere=request.elsewhere)
    if isinstance(found, str):
        result.untimed = found
    else:
        result.clock = found


def with_weights(source: Any, weights: str | Path | None, output: str | Path | None = None) -> Any:
    """Return the model with the weights of a file, if one is given."""
    if weights is None:
        return source
    if output is not None and Path(output).resolve() == Path(weights).resolve():
        raise OutputError(f"writing {str(output)!r} would overwrite the weights; choose another.")
    return graph.fill_weights(source, weights)


def save_result(result: Result, output: str | Path | None, external_data: bool | None) -> Result:
    """Write a result where it is to go, and return it."""
    if output is not None:
        result.save(output, external_data=external_data)
    return result


def _keep_observed(request: QuantizeRequest, effort: Effort) -> QuantizeRequest:
    """Let a folder keep what a cluster observes, where nothing that is rounded or learned is."""
    recipe, calibration, compute = request.recipe, request.calibration, request.compute
    learns = effort == "high" or recipe.mode != "static" or recipe.fine_tune is not None
    if compute.work is None or calibration.engine.is_local or learns:
        return request
    data = calibration.data
    known = repr(data) if isinstance(data, RandomData) else fingerprint_data(data)
    if known is None:
        raise ArgumentError(
            "a work folder with an engine is for data that can be told apart from other data; give "
            "arrays or files, or leave it out."
        )
    identity = f"{known}, {calibration.limit}, {calibration.transform}"
    kept = replace(calibration, work=compute.work, identity=identity)
    return replace(request, calibration=kept, compute=replace(compute, work=None))
