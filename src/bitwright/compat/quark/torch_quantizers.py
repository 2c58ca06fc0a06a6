"""The torch quantizers of `quark.onnx.finetuning.create_torch.base_qdq_quantizers`.

The functions pass gradients on as they come; the modules stop them outside of the range.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bitwright.errors import MissingPackageError
from bitwright.numerics.broadcasting import along_axis

try:
    import torch
except ImportError as error:
    raise MissingPackageError(
        "torch is not installed, and these quantizers are torch modules; install bitwright[torch]."
    ) from error

from bitwright.learning import fake_quantize as core
from bitwright.learning.fake_quantize import RoundHalfToEven

# torch is untyped for us, so its classes are too.
# mypy: disable-error-code="misc"


def _rounding(compute: Callable[..., torch.Tensor]) -> Any:
    """Return the forward step of a Function; it is given what rounds: a function or a Function."""

    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        scale: torch.Tensor,
        zero_point: torch.Tensor,
        min_q: torch.Tensor,
        max_q: torch.Tensor,
        round_func: Any,
    ) -> torch.Tensor:
        rounded = getattr(round_func, "apply", round_func)
        return compute(tensor, scale, zero_point, min_q, max_q, rounded)

    return staticmethod(forward)


class INTQuantFunction(torch.autograd.Function):
    """Quantize as QuantizeLinear does, to whole floats; the gradient passes straight through."""

    forward = _rounding(core.quantize)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Pass the gradient on."""
        return grad_output, None, None, None, None, None


class INTDeQuantFunction(torch.autograd.Function):
    """Dequantize as DequantizeLinear does; the gradient is the scale."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor
    ) -> torch.Tensor:
        """Return the floats."""
        ctx.save_for_backward(scale)
        return core.dequantize(tensor, scale, zero_point)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """Multiply the gradient by the scale."""
        (scale,) = ctx.saved_tensors
        return grad_output * scale, None, None


class INTQuantDequantFunction(INTQuantFunction):
    """Quantize and dequantize as a Q/DQ pair does; the gradient passes straight through."""

    forward = _rounding(core.fake_quantize)


class INTQuantizer(torch.nn.Module):
    """A quantizer with its parameters; called, it quantizes and dequantizes.

    `q_folded` is kept for whoever writes the result back: it says that the model stores integers
    and has no QuantizeLinear here.
    """

    def __init__(
        self,
        scale: torch.Tensor,
        zero_point: torch.Tensor,
        min_q: torch.Tensor,
        max_q: torch.Tensor,
        ch_axis: int = 0,
        q_folded: bool = False,
    ) -> None:
        super().__init__()
        self.scale: torch.Tensor  # both move with the module, and are in its state
        self.zero_point: torch.Tensor
        self.register_buffer("scale", torch.as_tensor(scale))
        self.register_buffer("zero_point", torch.as_tensor(zero_point))
        self.min_q = min_q
        self.max_q = max_q
        self.ch_axis = ch_axis
        self.q_folded = q_folded

    def round_impl(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the nearest integers, ties to even."""
        return RoundHalfToEven.apply(tensor)

    def tensor_sync(self, tensor: torch.Tensor) -> None:
        """Bring the parameters to the tensor's device, in a shape that covers its channels."""
        self.scale, self.zero_point = (
            along_axis(parameter.to(tensor.device), self.ch_axis, tensor.ndim)
            for parameter in (self.scale, self.zero_point)
        )
        self.min_q, self.max_q = (
            bound.to(tensor.device) if isinstance(bound, torch.Tensor) else bound
            for bound in (self.min_q, self.max_q)
        )

    def quantize(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return what QuantizeLinear gives, as whole floats."""
        self.tensor_sync(tensor)
        return core.quantize(
            tensor, self.scale, self.zero_point, self.min_q, self.max_q, self.round_impl
        )

    def dequantize(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return what DequantizeLinear gives."""
        self.tensor_sync(tensor)
        return core.dequantize(tensor, self.scale, self.zero_point)

    def quantize_dequantize(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return what a Q/DQ pair gives, in the tensor's type."""
        self.tensor_sync(tensor)
        return core.fake_quantize(
            tensor, self.scale, self.zero_point, self.min_q, self.max_q, self.round_impl
        )

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        """Quantize and dequantize."""
        return self.quantize_dequantize(tensor)


class AdaroundConstants:
    """The ends of AdaRound's stretched sigmoid."""

    GAMMA = core.GAMMA
    ZETA = core.ZETA


class AdaroundINTQuantizer(INTQuantizer):
    """A quantizer that learns which weights to round up: `alpha`, made from the first tensor.

    With `use_soft_rounding` off, weights are rounded up where alpha is not negative.

    >>> quantizer = AdaroundINTQuantizer(torch.tensor(0.5), torch.tensor(0), -128, 127)
    >>> quantizer(torch.tensor([0.7])).detach()
    tensor([0.7000])
    >>> quantizer.use_soft_rounding = False
    >>> quantizer(torch.tensor([0.7])).detach()
    tensor([0.5000])
    """

    def __init__(self, *parameters: Any, **settings: Any) -> None:
        super().__init__(*parameters, **settings)
        self.alpha: torch.nn.Parameter | None = None
        self.use_soft_rounding = True

    def round_impl(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the scaled weights rounded as alpha says, softly or hard."""
        if self.alpha is None:
            self._start_from(tensor)
        assert self.alpha is not None
        if self.use_soft_rounding:
            up = core.soft_rounding(self.alpha)
        else:
            up = (self.alpha >= 0).to(tensor.dtype)
        return torch.floor(tensor) + up

    def initialize_alpha(self, tensor: torch.Tensor) -> None:
        """Make alpha so that the soft rounding gives the tensor itself."""
        self.tensor_sync(tensor)
        self._start_from(tensor / self.scale)

    def _start_from(self, scaled: torch.Tensor) -> None:
        fraction = (scaled - torch.floor(scaled)).detach()
        self.alpha = torch.nn.Parameter(core.rounding_for(fraction))


class FPQuantizer(INTQuantizer):
    """A quantizer to float16 or bfloat16, with a scale and zero point all the same."""

    def __init__(
        self, *parameters: Any, quant_type: torch.dtype = torch.bfloat16, **settings: Any
    ) -> None:
        *given, self.quant_type = parameters if len(parameters) > 6 else (*parameters, quant_type)
        super().__init__(*given, **settings)

    def quantize(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor in its type."""
        self.tensor_sync(tensor)
        return core.cast_to_type(
            tensor, self.scale, self.zero_point, self.min_q, self.max_q, self.quant_type
        )

    def quantize_dequantize(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor as it reads once stored in its type."""
        values = self.quantize(tensor)
        return core.dequantize(values, self.scale, self.zero_point, tensor.dtype)
