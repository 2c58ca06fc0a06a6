"""The fake quantizers of a plan: what each node of a segment reads through."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import onnx_ir as ir
import torch

from bitwright.errors import ModelError
from bitwright.learning.activation_scales import ActivationScales
from bitwright.learning.fake_quantize import FakeQuantizer, cast_to_type, dequantize
from bitwright.plan import QuantPlan

__all__ = ["Change", "quantizers_of", "reading_quantizers"]

Change = Callable[[torch.Tensor], torch.Tensor]

_FLOATS = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def reading_quantizers(
    nodes: Iterable[ir.Node], plan: QuantPlan, scales: ActivationScales | None = None
) -> dict[tuple[str, int], Change]:
    """Return (node, input) -> what the plan puts before it, for activations.

    `scales` stand in for those of the plan where they learn.
    """
    made: dict[str, Change] = {}
    changes = {}
    for node in nodes:
        planned = plan.nodes.get(node.name or "")
        if planned is None or planned.action == "absorb":
            continue
        for index, key in enumerate(planned.inputs):
            if key is not None and plan.tensors[key].role == "activation":
                if key not in made:
                    made[key] = quantizers_of(key, plan, scales)
                changes[node.name or "", index] = made[key]
    return changes


def quantizers_of(key: str, plan: QuantPlan, scales: ActivationScales | None = None) -> Change:
    """Return the quantizer of an entry, behind that of the entry it is converted from."""
    source = plan.tensors[key].source
    before = None if source is None else quantizers_of(source, plan, scales)
    root = plan.root(key)
    parameters = plan.parameters(key)
    qtype = parameters.qtype
    if not qtype.is_integer and qtype.name not in _FLOATS:
        raise ModelError(f"{qtype} activations have no form in torch here.")

    quantizers: dict[tuple[str, int], FakeQuantizer] = {}

    def change(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        if before is not None:
            tensor = before(tensor)
        place = str(tensor.device), tensor.ndim
        if place not in quantizers:
            quantizers[place] = FakeQuantizer.of(parameters, tuple(tensor.shape), tensor.device)
        quantizer = quantizers[place]
        if qtype.is_integer and scales is not None:
            return scales.quantize(root, tensor, quantizer)
        if qtype.is_integer:
            return quantizer.nearest(tensor)
        stored = cast_to_type(tensor, *quantizer, _FLOATS[qtype.name])
        return dequantize(stored, quantizer.scale, quantizer.zero_point, tensor.dtype)

    return change
