"""Write the quantized model that a plan describes, in any output format."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from bitwright.emit.bnb4 import emit_bnb4, emit_planned_bnb4
from bitwright.emit.casts import emit_casts
from bitwright.emit.dynamic import emit_dynamic
from bitwright.emit.extended import emit_extended, emit_fix_neuron
from bitwright.emit.functions.scaled import QUARK_DOMAIN, VENDOR_DOMAIN
from bitwright.emit.nbits import FORMS, emit_blocks, emit_weight_only
from bitwright.emit.qdq import Rounding, emit_qdq
from bitwright.emit.qoperator import emit_qoperator
from bitwright.plan import QuantPlan

__all__ = [
    "EMITTERS",
    "QUARK_DOMAIN",
    "VENDOR_DOMAIN",
    "Rounding",
    "emit_blocks",
    "emit_bnb4",
    "emit_casts",
    "emit_dynamic",
    "emit_extended",
    "emit_fix_neuron",
    "emit_qdq",
    "emit_qoperator",
    "emit_weight_only",
]

Emitter = Callable[[ir.Model, QuantPlan, Any], list[str]]

# Mode and format of a recipe -> what turns the float model into it, in place, and returns notes.
# The last argument makes the integers: a `Rounding`, or the blocks of each weight by its name.
EMITTERS: dict[tuple[str, str], Emitter] = {
    ("static", "qdq"): emit_qdq,
    ("static", "qoperator"): emit_qoperator,
    ("static", "extended"): emit_extended,
    ("static", "fix-neuron"): emit_fix_neuron,
    # Integer operators have one form; a dynamic recipe leaves the format as it is.
    ("dynamic", "qdq"): emit_dynamic,
    # A model in float16 has no quantizers, and so no format of them.
    ("cast", "qdq"): emit_casts,
    ("weight-only", "bnb4"): emit_planned_bnb4,
    **{("weight-only", form): emit_weight_only for form in FORMS},
}
