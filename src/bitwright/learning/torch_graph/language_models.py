"""Operators of ONNX Runtime that exporters of language models write: norms and attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor

from bitwright.learning.torch_graph.attributes import Attributes


def simplified_layer_norm(a: Attributes, x: Tensor, scale: Tensor) -> Tensor:
    """SimplifiedLayerNormalization: over the root of the mean square, in float32."""
    wide = x.float()
    mean = wide.square().mean(-1, keepdim=True)
    return (wide * torch.rsqrt(mean + a.number("epsilon", 1e-5))).to(x.dtype) * scale


def skip_simplified_layer_norm(
    a: Attributes, x: Tensor, skip: Tensor, scale: Tensor, bias: Tensor | None = None
) -> tuple[Tensor | None, ...]:
    """SkipSimplifiedLayerNormalization: the norm of a sum, and as fourth output the sum."""
    total = x + skip if bias is None else x + skip + bias
    return simplified_layer_norm(a, total, scale), None, None, total


def group_query_attention(  # noqa: PLR0913 - the inputs of the operator
    a: Attributes,
    query: Tensor,
    key: Tensor | None = None,
    value: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    lengths: Tensor | None = None,
    total: Tensor | None = None,
    cosines: Tensor | None = None,
    sines: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """GroupQueryAttention: causal, of sequences that are padded behind or not at all."""
    heads, groups = a.integer("num_heads"), a.integer("kv_num_heads")
    if key is None or value is None:
        size = query.shape[-1] // (heads + 2 * groups)
        query, key, value = query.split((heads * size, groups * size, groups * size), -1)
    q, k, v = (
        tensor.unflatten(-1, (count, -1)).transpose(1, 2)
        for tensor, count in ((query, heads), (key, groups), (value, groups))
    )
    before = 0 if past_key is None else past_key.shape[2]
    places = torch.arange(before, before + q.shape[2], device=q.device)
    if a.integer("do_rotary") and cosines is not None and sines is not None:
        q, k = (_rotate(tensor, cosines[places], sines[places]) for tensor in (q, k))
    if past_key is not None and past_value is not None:
        k, v = torch.cat([past_key, k], 2), torch.cat([past_value, v], 2)
    seen = torch.arange(k.shape[2], device=q.device)
    distance = places[:, None] - seen
    allowed = distance >= 0
    window = a.integer("local_window_size", -1)
    if window > 0:
        allowed &= distance < window
    scale = a.number("scale") or q.shape[-1] ** -0.5
    repeated = (tensor.repeat_interleave(heads // groups, dim=1) for tensor in (k, v))
    keys, values = repeated
    scores = (q @ keys.transpose(2, 3)).float() * scale
    shares = scores.masked_fill(~allowed, float("-inf")).softmax(-1).to(q.dtype)
    return (shares @ values).transpose(1, 2).flatten(2), k, v


def _rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Return heads [batch, heads, places, size] with the first part of each rotated."""
    half = cosines.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    turned = [first * cosines - second * sines, second * cosines + first * sines, rest]
    return torch.cat(turned, -1)


LANGUAGE_OPS: dict[str, Callable[..., Any]] = {
    "GroupQueryAttention": group_query_attention,
    "SimplifiedLayerNormalization": simplified_layer_norm,
    "SkipSimplifiedLayerNormalization": skip_simplified_layer_norm,
}

_OUTPUTS = {"GroupQueryAttention": (0, 1, 2), "SkipSimplifiedLayerNormalization": (0, 3)}
# What changes a GroupQueryAttention in a way that is not written here.
_UNKNOWN = ("rotary_interleaved", "softcap", "smooth_softmax", "qk_output", "k_quant_type")


def why_not_language_op(node: ir.Node) -> str | None:
    """Return why a node of these cannot be computed here, or None if it can."""
    known = _OUTPUTS.get(node.op_type, (0,))
    for place, value in enumerate(node.outputs):
        if place not in known and (value.uses() or value.is_graph_output()):
            return f"output {place} of {node.op_type} is read"
    if node.op_type == "GroupQueryAttention":
        if any(value is not None for value in node.inputs[9:]):
            return "GroupQueryAttention has positions, a bias or sinks of its own"
        for name in _UNKNOWN:
            attribute = node.attributes.get(name)
            if attribute is not None and attribute.value not in (0, 0.0, "NONE"):
                return f"GroupQueryAttention has a {name}"
    return None
