"""What an operator rule is: which tensors of a node are quantized, and how."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

__all__ = ["OpRule", "Skip", "generic_rule"]


@dataclass(frozen=True, slots=True)
class Skip:
    """Why a node is left float.

    >>> Skip("its weight is computed at run time").reason
    'its weight is computed at run time'
    """

    reason: str


Refusal = Callable[[ir.Node], Skip | None]
AxisOf = Callable[[ir.Node, int], "int | None"]
Bounds = Callable[[ir.Node], "tuple[float, float] | Skip"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRule:
    """Which inputs and outputs of one operator are quantized, and which share parameters.

    >>> OpRule(op_type="MaxPool", data=(0,), outputs=(0,), keeps_scale=True).keeps_scale
    True
    """

    op_type: str
    data: tuple[int, ...] | None = None
    """Inputs quantized as activations; None: every float input."""
    weights: tuple[int, ...] = ()
    """Inputs quantized as weights where they are constant, else as activations."""
    bias: int | None = None
    """Input stored as int32 at (input scale x weight scale)."""
    outputs: tuple[int, ...] | None = None
    """Outputs that are quantized; None: every float output."""
    keeps_scale: bool | Callable[[ir.Node], bool] = False
    """Outputs take the parameters of input 0: the op only moves values."""
    needs_quantized_input: bool = False
    """Quantize only where the data inputs are quantized already: alone it gains nothing."""
    needs_all_inputs_quantized: bool = False
    """Quantize only where every input that is computed is quantized already, and where the
    result does not leave the model: between float neighbours it would only add rounding."""
    float_only: bool = False
    """ONNX Runtime's CPU kernels for it are float ones: quantize only where it is asked for by
    name, or where pairs are for other hardware."""
    bounds: Bounds | None = None
    """The op only clips, to these bounds: a quantizer behind it may do its work."""
    output_range: tuple[float, float] | None = None
    """The range of the output, where the maths fixes it."""
    channel_axis: AxisOf | None = None
    """The output-channel axis of the weight at this input; None: no kernel takes channels."""
    fixed_axis: bool = False
    """The runtime's 8-bit kernel reads channel scales along `channel_axis`, whatever axis the
    dequantizer before it names."""
    tile: Callable[[ir.Node], int] | None = None
    """How often the weight's channels repeat along the bias."""
    refuse: Refusal | None = None
    min_opset: int = 1
    by_default: bool = True
    """Quantized when the user names no op types."""


def generic_rule(op_type: str) -> OpRule:
    """Return the rule for an op without its own: every float input and output gets a pair.

    >>> generic_rule("Atan").data is None
    True
    """
    return OpRule(op_type=op_type)
