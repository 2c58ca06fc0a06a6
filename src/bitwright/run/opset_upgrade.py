"""Move a model to a newer opset, and prove that it still computes the same."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from bitwright.errors import ModelError
from bitwright.graph import convert_opset, opset_of, serialized_size
from bitwright.run.session import open_plainly

COMPARE_LIMIT = 2_000_000_000
"""Bytes above which a model is not run twice to compare: that would need as much memory."""

_TOLERANCE = 1e-4


def upgrade_opset(
    model: ir.Model, version: int, *, sample: Mapping[str, np.ndarray[Any, Any]] | None = None
) -> ir.Model:
    """Return the model at opset `version` (or as it is, if it is already there or newer).

    Both are run once on `sample`, or on random inputs. A difference is a ModelError. When the
    original does not run on those, a warning says that it was not compared.
    """
    current = opset_of(model)
    upgraded = convert_opset(model, version)
    if upgraded is not model:
        _compare(model, upgraded, sample, f"opset {current} to {version}")
    return upgraded


def _compare(
    before: ir.Model, after: ir.Model, sample: Mapping[str, np.ndarray[Any, Any]] | None, move: str
) -> None:
    step = f"the move from {move}"
    if serialized_size(before) > COMPARE_LIMIT:
        warnings.warn(f"{step} was not compared numerically: the model is too big.", stacklevel=3)
        return
    try:
        feeds = dict(sample) if sample is not None else _random_feeds(before)
        # Unoptimized, so that a difference is the conversion's, where the runtime can do that.
        expected = open_plainly(before).run(feeds)
    except ModelError as error:
        warnings.warn(
            f"{step} was not compared numerically: the original does not run on the inputs "
            f"({str(error).rstrip('.')}).",
            stacklevel=3,
        )
        return
    got = open_plainly(after).run(feeds)
    for name, array in expected.items():
        if not _close(array, got[name]):
            raise ModelError(
                f"{step} changes output {name!r}, so it was not done; "
                "export the model again with a newer opset."
            )


def _close(expected: Any, got: Any) -> bool:
    if not isinstance(expected, np.ndarray) or expected.dtype.kind not in "fiub":
        return True
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return False
    if expected.dtype.kind != "f":
        return bool(np.array_equal(expected, got))
    # float16 results carry 11 bits; everything else is expected to agree to rounding noise
    tolerance = 1e-2 if expected.dtype == np.float16 else _TOLERANCE
    finite = np.abs(expected[np.isfinite(expected)])
    scale = float(finite.max()) if finite.size else 1.0
    return bool(
        np.allclose(
            expected, got, rtol=tolerance, atol=tolerance * max(scale, 1e-6), equal_nan=True
        )
    )


def _random_feeds(model: ir.Model) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    named: dict[str, int] = {}
    feeds = {}
    for value in model.graph.inputs:
        if value.name in model.graph.initializers:
            continue
        assert value.name is not None
        if not isinstance(value.type, ir.TensorType) or value.dtype is None:
            raise ModelError(f"input {value.name!r} is not a tensor")
        if value.shape is None:
            raise ModelError(f"input {value.name!r} has no known rank")
        feeds[value.name] = _random_array(rng, _filled(value.shape, named), value.dtype)
    return feeds


def _filled(shape: ir.Shape, named: dict[str, int]) -> tuple[int, ...]:
    # Images keep a size that survives the strides of a deep network; everything else stays small.
    image = len(shape) == 4
    # Up to four channels behind an open height are those of an image that has them last.
    last = image and not isinstance(shape[1], int) and shape[3] in (1, 3, 4)
    filled = []
    for axis, dimension in enumerate(shape):
        if isinstance(dimension, int):
            filled.append(dimension if dimension > 0 else 1)
            continue
        default = (1, 64 if last else 3, 64, 64)[axis] if image else 4 if axis else 1
        # The exporters' word for "whatever" names no dimension that others share.
        name = dimension.value
        filled.append(named.setdefault(name, default) if name and name != "?" else default)
    return tuple(filled)


def _random_array(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: ir.DataType
) -> np.ndarray[Any, Any]:
    if dtype.is_floating_point():
        return rng.standard_normal(shape).astype(dtype.numpy())
    if dtype == ir.DataType.BOOL:
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype.is_integer():
        return np.ones(shape, dtype.numpy())  # 1 is the likeliest index or length to be valid
    raise ModelError(f"random {dtype.name.lower()} input is not possible")
