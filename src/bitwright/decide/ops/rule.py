"""The facts of one operator: what it computes, which of its tensors are quantized, and how."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import onnx_ir as ir


@dataclass(frozen=True, slots=True)
class Skip:
    """Why a node is left float."""

    reason: str


Refusal = Callable[[ir.Node], Skip | None]
AxisOf = Callable[[ir.Node, int], "int | None"]
Bounds = Callable[[ir.Node], "tuple[float, float] | None"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRule:
    """One operator; a row that gives its name only has every float input and output quantized."""

    op_type: str = field(kw_only=False)
    domain: str = ""

    # What it computes
    linear: Literal["convolution", "matrix"] | None = None
    """y = W x + b: a convolution over windows, or a product of matrices."""
    normalizes: Literal["channels", "last axes"] | None = None
    """Normalizes each channel, or over the last axes of its input, then multiplies with weights."""
    pool: bool = False
    elementwise: Literal["unary", "broadcast"] | None = None
    """Computed element by element: from one input and perhaps parameters of one element, or from
    inputs that are broadcast against each other."""
    activation: Literal["whole", "part"] | None = None
    """An activation function, or what exporters write one with that have no operator for it."""
    affine: bool = False
    """With a constant for one operand it scales or shifts the other one."""
    neutral: tuple[float, tuple[int, ...]] | None = None
    """The constant that changes nothing, and the inputs where it may stand."""
    homogeneous: bool = False
    """f(s x) = s f(x) for each element and s > 0: equalization's factors may pass."""
    moves: bool = False
    """Every output element is an input element, at another place."""
    reshapes: bool = False
    """A movement that keeps every element just once."""

    # Which tensors are quantized
    quantizable: bool = True
    """False: there is no rule to quantize it; the row only states facts."""
    by_default: bool = True
    """Quantized when the user names no op types."""
    has_form: bool = False
    """Written by other operators where integers are placed by cost, and quantized there."""
    data: tuple[int, ...] | None = None
    """Inputs quantized as activations; None: every float input."""
    weights: tuple[int, ...] = ()
    """Inputs quantized as weights where they are constant, else as activations."""
    bias: int | None = None
    """Input stored as int32 at (input scale x weight scale)."""
    outputs: tuple[int, ...] | None = None
    """Outputs that are quantized; None: every float output."""

    # How they are quantized
    keeps_scale: bool | Callable[[ir.Node], bool] = False
    """Outputs take the parameters of input 0: no value is computed anew."""
    needs_quantized_input: bool = False
    """Quantize only where the data inputs are quantized already: alone it gains nothing."""
    is_forced: bool = True
    """`place.force_shared` quantizes it behind float inputs, too."""
    only_forced: bool = False
    """Quantized only with `place.force_shared`."""
    needs_all_inputs_quantized: bool = False
    """Quantize only where every input that is computed is quantized already, and where the
    result does not leave the model: between float neighbours it would only add rounding."""
    bounds: Bounds | None = None
    """The op only clips, to these bounds (None: computed ones): a quantizer behind it may do its
    work."""
    saturates: Callable[[ir.Node], tuple[float, float]] | None = None
    """Below and above which inputs the output no longer changes, for 8 bits; see also `bounds`."""
    is_gate: bool = False
    """Its output is 0 where it saturates below: what it is multiplied with goes."""
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

    # What ONNX Runtime has for it
    integer_op: str | None = None
    """The operator that computes it on 8-bit integers, itself where it takes them; None: there is
    none, and it stays float in the format qoperator."""
    integer_range: tuple[float, float] | None = None
    """The range of the output that its integer kernel wants, where it is not `output_range`."""
    dynamic_op: str | None = None
    """The operator that computes it on integers with scales measured at run time."""
    block_op: str | None = None
    """The operator that reads its weight in low-bit blocks."""
    float_only: bool = False
    """ONNX Runtime's CPU kernels for it are float ones, or its float one is the faster: quantize
    only where it is asked for by name, or where pairs are for other hardware."""
    needs_constant_factor: bool = False
    """Its integer kernel takes as long as the float one where both factors are computed, as each is
    rounded for it alone: quantize such a product only where `select.constant_weights_only` is
    false, or where pairs are for other hardware."""
    writes_float: bool = False
    """Its integer kernel writes floats as well as integers, in the same time."""
    float32_scales: Literal["fused", "written"] | None = None
    """Its integer kernel takes no float16 scales; "fused": and the runtime uses it for a node
    between pairs as well, so that it refuses such a model."""
    drops_pairs: bool = False
    """The runtime lets it move integers, and drops the pairs around it."""

    def keeps_scale_of(self, node: ir.Node) -> bool:
        """Return whether the outputs of this node take the parameters of its input 0."""
        return self.keeps_scale(node) if callable(self.keeps_scale) else self.keeps_scale

    def data_inputs(self, node: ir.Node) -> list[int]:
        """Return which inputs hold values to compute with, not shapes, indices or biases."""
        count = len(node.inputs)
        wanted = range(count) if self.data is None else sorted({*self.data, *self.weights})
        return [index for index in wanted if index < count]

    def output_indices(self, node: ir.Node) -> list[int]:
        """Return which outputs of a node hold computed values, not indices or statistics."""
        return [i for i in range(len(node.outputs)) if self.outputs is None or i in self.outputs]
