"""Symbolic shape inference, by ONNX Runtime."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import onnx_ir as ir

from bitwright.errors import MissingPackageError, ModelError
from bitwright.graph.opsets import opset_of
from bitwright.graph.shapes import take_over_shapes
from bitwright.graph.skeleton import make_skeleton

__all__ = ["infer_symbolic_shapes"]

_LOGGER = "onnxruntime.tools.symbolic_shape_infer"


def infer_symbolic_shapes(
    model: ir.Model,
    *,
    auto_merge: bool = False,
    int_max: int = 2**31 - 1,
    guess_output_rank: bool = False,
    verbose: int = 0,
) -> None:
    """Fill in shapes in place, open dimensions as formulas of the input's.

    `auto_merge` lets two names that meet be one, `int_max` is the integer that means "to the end"
    in a Slice, `guess_output_rank` takes unknown ops to keep their first input's rank. What could
    be inferred before a failure is kept; the failure is a ModelError.
    """
    try:
        from onnxruntime.tools.symbolic_shape_infer import SymbolicShapeInference
    except ImportError as error:
        raise MissingPackageError(
            "symbolic shape inference needs sympy; install it with `pip install sympy`."
        ) from error
    if opset_of(model) < 7:
        raise ModelError("symbolic shape inference reads opset 7 and above.")
    inference = SymbolicShapeInference(int_max, auto_merge, guess_output_rank, verbose)
    complete = False
    problem: Exception | None = None
    with _logging_at(verbose):
        try:
            # Its one public function writes a file into the working directory when it fails, and
            # throws away what it had found.
            inference._preprocess(make_skeleton(model).proto)
            while inference.run_:
                complete = inference._infer_impl()
            inference._update_output_from_vi()
        except Exception as error:  # noqa: BLE001 (asserts, KeyErrors and sympy's own kinds)
            problem = error
    found: Any = getattr(inference, "out_mp_", None)
    if found is not None:
        take_over_shapes(model, found)
    if problem is not None:
        said = (str(problem).strip().splitlines() or [type(problem).__name__])[0]
        raise ModelError(f"symbolic shape inference gave up: {said[:200]}") from problem
    if not complete:
        raise ModelError(
            "symbolic shape inference is incomplete: some op's output shape is not known; "
            "auto_merge or guess_output_rank may help."
        )


@contextmanager
def _logging_at(verbose: int) -> Iterator[None]:
    """Show as much of the inference's own log as was asked for, and no more."""
    logger = logging.getLogger(_LOGGER)
    before = logger.level
    level = logging.CRITICAL if verbose <= 0 else logging.WARNING if verbose < 3 else logging.DEBUG
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)
