"""From a float model and a plan to the quantized model."""

from __future__ import annotations

from bitwright.emit.dynamic import emit_dynamic
from bitwright.emit.qdq import Rounding, emit_qdq

__all__ = ["EMITTERS", "Rounding", "emit_dynamic", "emit_qdq"]

# Mode and format of a recipe -> what writes it.
EMITTERS = {
    ("static", "qdq"): emit_qdq,
    # Integer operators have one form; a dynamic recipe leaves the format as it is.
    ("dynamic", "qdq"): emit_dynamic,
}
