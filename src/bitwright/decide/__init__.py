"""Which tensors, which type, which scale: from a graph and sketches to a plan."""

from __future__ import annotations

from bitwright.decide.layout.dynamic import lay_out_dynamic
from bitwright.decide.layout.entries import Layout
from bitwright.decide.layout.static import lay_out
from bitwright.decide.layout.trained import lay_out_trained, trained_recipe
from bitwright.decide.layout.weight_only import plan_weights, product_source
from bitwright.decide.opsets import needed_opset
from bitwright.decide.planner import decide
from bitwright.decide.scales.corrected_biases import fit_biases
from bitwright.decide.scales.parameters import vote_grids
from bitwright.decide.scales.unsigned import shift_to_unsigned
from bitwright.decide.validation import check_plan

__all__ = [
    "Layout",
    "check_plan",
    "decide",
    "fit_biases",
    "lay_out",
    "lay_out_dynamic",
    "lay_out_trained",
    "needed_opset",
    "plan_weights",
    "product_source",
    "shift_to_unsigned",
    "trained_recipe",
    "vote_grids",
]
