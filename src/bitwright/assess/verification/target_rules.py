"""Checks by the kind of a rule: how `verify` reads the file of a target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bitwright.assess.verification import operator_rules, tensor_rules
from bitwright.assess.verification.findings import Finding
from bitwright.assess.verification.view import Breach, TargetView
from bitwright.targets import rules

__all__ = ["CHECKS", "check_rules"]

CHECKS: dict[type[rules.Rule], Callable[[TargetView, Any], Iterable[Breach]]] = {
    rules.Types: tensor_rules.find_types,
    rules.ZeroPoints: tensor_rules.find_zero_points,
    rules.PositiveScales: tensor_rules.find_negative_scales,
    rules.Granularity: tensor_rules.find_granularity,
    rules.ChannelAxis: tensor_rules.find_axes,
    rules.WrittenAxis: tensor_rules.find_unwritten_axes,
    rules.BlockShape: tensor_rules.find_blocks,
    rules.WeightCodes: tensor_rules.find_codes,
    rules.Biases: tensor_rules.find_biases,
    rules.FixedOutput: tensor_rules.find_fixed,
    rules.NoOutputType: tensor_rules.find_output_types,
    rules.OneReader: tensor_rules.find_readers,
    rules.OpsetOfTypes: tensor_rules.find_old_opset,
    rules.OpsetRange: tensor_rules.find_foreign_opset,
    rules.NodeUnits: operator_rules.find_partial_units,
    rules.EqualTypes: operator_rules.find_mixed_types,
    rules.EqualParameters: operator_rules.find_rescaled,
    rules.SameScale: operator_rules.find_unequal_scales,
    rules.SignedWeights: operator_rules.find_unsigned_weights,
    rules.TypePairs: operator_rules.find_type_pairs,
    rules.Activations: operator_rules.find_activations,
    rules.FloatOperators: operator_rules.find_float_operators,
    rules.Group: operator_rules.find_pairs_in_groups,
    rules.Residual: operator_rules.find_residuals,
    rules.SmallProducts: operator_rules.find_small_products,
    rules.LowBitProducts: operator_rules.find_low_bit_products,
    rules.KnownOperators: operator_rules.find_unknown,
    rules.RefusedOperators: operator_rules.find_refused,
    rules.StaticShapes: operator_rules.find_open_shapes,
    rules.Rank: operator_rules.find_ranks,
    rules.InputCount: operator_rules.find_input_counts,
    rules.ConstantInputs: operator_rules.find_computed_inputs,
    rules.AttributeValues: operator_rules.find_attributes,
    rules.LastAxis: operator_rules.find_other_axes,
}


def check_rules(view: TargetView, given: Mapping[str, rules.Rule]) -> list[Finding]:
    """Return what a model breaks of these rules."""
    return [
        breach.as_finding(name, rule)
        for name, rule in given.items()
        for breach in CHECKS[type(rule)](view, rule)
    ]
