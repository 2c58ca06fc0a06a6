"""Which tensors, which type, which scale: from a graph and sketches to a plan."""

from __future__ import annotations

from bitwright.decide.biases import fit_biases
from bitwright.decide.dynamic import lay_out_dynamic
from bitwright.decide.entries import Layout
from bitwright.decide.layout import lay_out
from bitwright.decide.opsets import needed_opset
from bitwright.decide.parameters import vote_grids
from bitwright.decide.planner import decide
from bitwright.decide.trained import lay_out_trained, trained_recipe
from bitwright.decide.unsigned import shift_to_unsigned
from bitwright.decide.validation import check_plan
from bitwright.decide.weight_only import plan_weights, product_source

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
