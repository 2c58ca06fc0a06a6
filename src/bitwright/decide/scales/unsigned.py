"""Int8 activations of a plan stored as uint8, where ONNX Runtime refuses them."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from bitwright.numerics.types import INT8, UINT8
from bitwright.plan import QuantPlan

__all__ = ["raised", "shift_to_unsigned"]


def shift_to_unsigned(plan: QuantPlan) -> QuantPlan | None:
    """Return the plan with int8 activations as uint8, 128 higher; None if it has none.

    Every value keeps its meaning: (q + 128) - (z + 128) = q - z. ONNX Runtime's extended
    optimizations refuse some valid models with int8 activations at opset 21 and above
    (onnxruntime issue 25526) and take the same model in uint8.

    >>> from bitwright.plan import TensorPlan
    >>> from bitwright.recipe import Recipe
    >>> entry = TensorPlan(tensor="x", role="activation", qtype=INT8, scale=0.1, zero_point=-5)
    >>> plan = QuantPlan(fingerprint="", recipe=Recipe(), tensors={"x": entry}, nodes={})
    >>> shifted = shift_to_unsigned(plan)
    >>> shifted.tensors["x"].qtype.name, shifted.tensors["x"].zero_point
    ('uint8', 123)
    """
    shifted = {
        key: msgspec.structs.replace(entry, qtype=UINT8, zero_point=raised(entry.zero_point))
        for key, entry in plan.tensors.items()
        if entry.role == "activation" and entry.qtype == INT8
    }
    if not shifted:
        return None
    note = "stored int8 activations as uint8 (the same values), since ONNX Runtime refused int8"
    return plan.with_tensors(shifted).with_notes([note])


def raised(zero_point: Any) -> Any:
    """Return the zero point of a tensor whose integers are 128 higher."""
    return None if zero_point is None else (np.asarray(zero_point) + 128).tolist()
