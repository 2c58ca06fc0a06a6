"""`TensorQuantOverrides` checked against a model by the peer's own check, each tensor alone.

The peer's `is_valid` ends at the first entry that is not empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx

from bitwright.compat.onnxruntime.peer import peer
from bitwright.errors import RecipeError, did_you_mean


def check_overrides(
    model: str | Path | onnx.ModelProto, overrides: Mapping[str, Any] | None, default_type: Any
) -> None:
    """Refuse overrides that a model has no place for."""
    if not isinstance(overrides, Mapping) or not overrides:
        return
    graph = graph_only(model).graph
    initializers = {tensor.name: tensor for tensor in graph.initializer}
    activations = {value.name for value in graph.input}
    activations |= {name for node in graph.node for name in node.output}
    for tensor, entries in overrides.items():
        helper = peer("tensor_quant_overrides").TensorQuantOverridesHelper({tensor: entries})
        _, fault = helper.is_valid(initializers, activations, default_type)
        if fault:
            known = {*initializers, *activations}
            hint = "" if tensor in known else did_you_mean(tensor, known)
            raise RecipeError(f"{fault.rstrip('.')}.{hint}")


def graph_only(model: str | Path | onnx.ModelProto) -> onnx.ModelProto:
    """Return a model as a message, without the tensors that lie in other files."""
    if isinstance(model, onnx.ModelProto):
        return model
    return onnx.load(str(model), load_external_data=False)
