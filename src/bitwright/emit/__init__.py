"""From a float model and a plan to the quantized model."""

from __future__ import annotations

from bitwright.emit.qdq import Rounding, emit_qdq

__all__ = ["EMITTERS", "Rounding", "emit_qdq"]

# Mode and format of a recipe -> what writes it.
EMITTERS = {("static", "qdq"): emit_qdq}
