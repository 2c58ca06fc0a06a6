"""What other tools decide by other rules than ours: named facts, and changed rows of operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bitwright.decide.ops import RULES, OpRule, rule_of
from bitwright.recipe import Recipe

_PAIRS: dict[str, dict[str, Any]] = {
    "ArgMax": {"needs_quantized_input": False},
    "AveragePool": {"keeps_scale": True},
    # The value that fills is quantized, too.
    "Pad": {"data": (0, 2), "needs_quantized_input": False, "min_opset": 10},
    "Split": {"needs_quantized_input": False},
}
_INTEGER_OPS: dict[str, dict[str, Any]] = {
    "ArgMax": {"is_forced": False},
    "AveragePool": {"needs_quantized_input": False},
    "GlobalAveragePool": {"needs_quantized_input": True, "is_forced": False},
    # The value that fills is rounded with the scale of what is filled.
    "Pad": {"keeps_scale": True, "is_forced": False},
    "Split": {"needs_quantized_input": False},
    "Where": {"only_forced": True},
    **{
        op_type: {"is_forced": False}
        for op_type in ("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "MaxPool")
    },
}
_CLIPS = {op_type: {"is_forced": False} for op_type, rule in RULES.items() if rule.bounds}

# Of all known ranges, other tools fix that of a Softmax.
_OBSERVED = {
    op_type: replace(rule, output_range=None)
    for op_type, rule in RULES.items()
    if rule.output_range is not None and op_type != "Softmax"
}

_ONNXRUNTIME = {
    integer_ops: {
        op_type: replace(RULES[op_type], **changes) for op_type, changes in (rows | _CLIPS).items()
    }
    for integer_ops, rows in ((False, _PAIRS), (True, _INTEGER_OPS))
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Conventions:
    """What tools decide differently where all of it can be right; the defaults are ours."""

    rows: Mapping[bool, Mapping[str, OpRule]] = field(default_factory=lambda: {False: {}, True: {}})
    """Operators with facts of their own, for pairs (False) and for integer operators (True)."""
    keeps_opset: bool = False
    """A model keeps the opset that it has, where its types and scales can be written there."""
    contrib_bits: tuple[int, ...] = (4, 16)
    """Widths of integers that contrib operators take below the opset of standard ones."""
    float_biases_of_float_weights: bool = False
    """The bias of a float8 layer stays float; else it is one more weight."""
    blocks_along_outputs: bool = False
    """Blocks of `per_channel` weights lie along the axis of channels; else along what is summed."""
    clips_give_ranges: bool = False
    """What a Relu or Clip alone reads takes the range of its result, also where the clip stays."""
    absorbs_any_clip: bool = False
    """A Relu or Clip goes behind any operator, unless activations are symmetric; else where the
    quantizer does exactly its work."""
    float_nodes_read_dedicated_pairs: bool = False
    """With a pair for each reader, a float node that reads alone reads through one, too."""
    keeps_precise_nodes: bool = True
    """Nodes stay float of which integers would leave nothing right, or which no kernel takes."""
    keeps_symmetric_clips: bool = False
    """A Relu or Clip of symmetric activations stays float in the format qoperator, and a MaxPool of
    float8 everywhere."""


_CONVENTIONS = {
    "bitwright": Conventions(),
    "onnxruntime": Conventions(
        rows=_ONNXRUNTIME,
        keeps_opset=True,
        # They take 16 as well, but that tool raises the opset for them all the same.
        contrib_bits=(4,),
        float_biases_of_float_weights=True,
        blocks_along_outputs=True,
        clips_give_ranges=True,
        absorbs_any_clip=True,
        float_nodes_read_dedicated_pairs=True,
        keeps_precise_nodes=False,
        keeps_symmetric_clips=True,
    ),
}


def conventions_of(recipe: Recipe) -> Conventions:
    """Return whose rules hold for a recipe where tools differ."""
    return _CONVENTIONS[recipe.emulate.conventions]


def rule_for(op_type: str, recipe: Recipe) -> OpRule:
    """Return how a recipe quantizes an operator."""
    rows = conventions_of(recipe).rows[recipe.output_format.integer_ops]
    if op_type in rows:
        return rows[op_type]
    if not recipe.emulate.known_ranges and op_type in _OBSERVED:
        return _OBSERVED[op_type]
    return rule_of(op_type)
