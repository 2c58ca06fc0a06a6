"""Pre-processing: shapes and clean-ups that make a model easier to quantize."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx_ir as ir

from bitwright import graph
from bitwright.errors import MissingPackageError, ModelError
from bitwright.prepare import prepare_exactly
from bitwright.run import IN_MEMORY_LIMIT, check_still_opens, upgrade_opset
from bitwright.support.logs import logged

# What ONNX Runtime's own tool looks for before it quantizes.
_MARK = ("onnx.quant.pre_process", "onnxruntime.quant")

_OLDEST_OPSET = 11


@dataclass(slots=True)
class Preprocessed:
    """A model after pre-processing, what was done to it, and which steps could not run."""

    model: ir.Model = field(repr=False)
    notes: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    """Step -> why it could not run; the others ran."""
    path: Path | None = None


@logged("pre-process the model")
def preprocess_model(
    source: Any,
    *,
    optimize: bool = True,
    onnx_shapes: bool = True,
    symbolic_shapes: bool = True,
    auto_merge: bool = False,
    int_max: int = 2**31 - 1,
    guess_output_rank: bool = False,
    verbose: int = 0,
) -> Preprocessed:
    """Return the model with an opset of at least 11, cleaned up, and with its shapes filled in.

    Weights stay on disk until they are written, so that models over 2 GB take no more memory
    than small ones. A step that cannot run is left out with a warning that names it.
    """
    result = Preprocessed(graph.load_model(source))
    before = graph.opset_of(result.model)
    if 0 < before < _OLDEST_OPSET:
        _run(result, "opset upgrade", _upgrade)
    if symbolic_shapes:

        def infer(model: ir.Model) -> tuple[ir.Model, list[str]]:
            graph.infer_symbolic_shapes(
                model,
                auto_merge=auto_merge,
                int_max=int_max,
                guess_output_rank=guess_output_rank,
                verbose=verbose,
            )
            return model, []

        _run(result, "symbolic shape inference", infer, keep_partial=True)
    if optimize:
        _run(result, "optimization", _optimize)
    if onnx_shapes:
        _run(result, "ONNX shape inference", _infer_shapes, keep_partial=True)
    graph.stamp_versions(result.model)
    key, value = _MARK
    result.model.metadata_props[key] = value
    return result


Step = Callable[[ir.Model], tuple[ir.Model, Sequence[str]]]


def _run(result: Preprocessed, name: str, step: Step, *, keep_partial: bool = False) -> None:
    """Run one step, or say why not; a step that fails leaves the model as it was."""
    model = result.model if keep_partial else graph.clone_model(result.model)
    try:
        changed, notes = step(model)
        if not keep_partial:
            check_still_opens(changed, result.model, IN_MEMORY_LIMIT)
        result.model = changed
    except (ModelError, MissingPackageError) as error:
        result.skipped[name] = str(error)
        warnings.warn(f"pre-processing went on without {name}: {error}", UserWarning, stacklevel=5)
        return
    result.notes += notes


def _upgrade(model: ir.Model) -> tuple[ir.Model, list[str]]:
    before = graph.opset_of(model)
    return upgrade_opset(model, _OLDEST_OPSET), [f"upgraded opset {before} to {_OLDEST_OPSET}"]


def _optimize(model: ir.Model) -> tuple[ir.Model, list[str]]:
    notes = graph.normalize(model)
    graph.infer_shapes(model)
    notes += prepare_exactly(model, widen=False)
    graph.check_model(model)
    return model, notes


def _infer_shapes(model: ir.Model) -> tuple[ir.Model, list[str]]:
    problem = graph.infer_shapes(model)
    if problem is not None:
        raise ModelError(problem)
    return model, []
