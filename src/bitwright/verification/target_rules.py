"""Checks by the kind of a rule: how `verify` reads the file of a target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bitwright.targets import rules
from bitwright.verification import (
    attribute_rules,
    operator_rules,
    product_rules,
    tensor_rules,
)
from bitwright.verification.findings import Finding
from bitwright.verification.view import Breach, TargetView

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
    rules.SmallProducts: product_rules.find_small_products,
    rules.LowBitProducts: product_rules.find_low_bit_products,
    rules.KnownOperators: operator_rules.find_unknown,
    rules.RefusedOperators: operator_rules.find_refused,
    rules.StaticShapes: operator_rules.find_open_shapes,
    rules.Rank: attribute_rules.find_ranks,
    rules.InputCount: attribute_rules.find_input_counts,
    rules.ConstantInputs: attribute_rules.find_computed_inputs,
    rules.AttributeValues: attribute_rules.find_attributes,
    rules.LastAxis: attribute_rules.find_other_axes,
    rules.AttributeSets: attribute_rules.find_attribute_sets,
    rules.OddValues: attribute_rules.find_even_values,
    rules.AbsentInputs: attribute_rules.find_optional_inputs,
    rules.IndexValues: attribute_rules.find_negative_indices,
    rules.KeptAxes: attribute_rules.find_changed_axes,
    rules.VectorInputs: attribute_rules.find_matrix_inputs,
    rules.OutputRange: tensor_rules.find_low_ends,
    rules.NestedScales: tensor_rules.find_scales_of_scales,
    rules.StoredWeights: tensor_rules.find_quantized_weights,
    rules.UnmixedTypes: tensor_rules.find_mixtures,
    rules.ConvolutionSizes: product_rules.find_small_products,
    rules.AttentionSizes: product_rules.find_small_products,
    rules.BlockedProducts: product_rules.find_blocked_products,
    rules.WholeUnits: product_rules.find_partial_weights,
    rules.TransposedWeights: product_rules.find_untransposed,
    rules.QuantizedReaders: operator_rules.find_quantized_readers,
    rules.Unquantized: operator_rules.find_unquantized,
}


def check_rules(view: TargetView, given: Mapping[str, rules.Rule]) -> list[Finding]:
    """Return what a model breaks of these rules."""
    return [
        breach.as_finding(name, rule)
        for name, rule in given.items()
        for breach in CHECKS[type(rule)](view, rule)
    ]
