"""Int8 activations of a plan stored as uint8, where ONNX Runtime refuses them or is slow."""

from __future__ import annotations

import msgspec
import numpy as np

from bitwright.numerics.types import INT8, UINT8
from bitwright.plan import QuantPlan

REFUSED = "stored int8 activations as uint8 (the same values), since ONNX Runtime refused int8"


def shift_to_unsigned(plan: QuantPlan, note: str = REFUSED) -> QuantPlan | None:
    """Return the plan with int8 activations as uint8, 128 higher, and a note; None if it has none.

    Every value keeps its meaning: (q + 128) - (z + 128) = q - z. ONNX Runtime's extended
    optimizations refuse some valid models with int8 activations at opset 21 and above
    (onnxruntime issue 25526) and take the same model in uint8.
    """
    shifted = {}
    for key, entry in plan.tensors.items():
        if entry.role == "activation" and entry.qtype == INT8:
            zeros = entry.zero_point
            zeros = None if zeros is None else (np.asarray(zeros) + 128).tolist()
            shifted[key] = msgspec.structs.replace(entry, qtype=UINT8, zero_point=zeros)
    return plan.with_tensors(shifted).with_notes([note]) if shifted else None
