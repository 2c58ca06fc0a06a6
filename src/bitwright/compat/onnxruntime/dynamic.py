"""`quantize_dynamic` with ONNX Runtime's signature, on Bitwright's pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx

from bitwright.api import quantize
from bitwright.compat.onnxruntime.enums import QuantType, as_quant_type
from bitwright.compat.onnxruntime.errors import raises_builtins
from bitwright.compat.onnxruntime.peer_pass import QuantizerRequest, run_peer
from bitwright.compat.onnxruntime.quant_utils import (
    load_model_with_shape_infer,
    update_opset_version,
)
from bitwright.compat.onnxruntime.registries import foreign_op_types, selected_op_types
from bitwright.compat.onnxruntime.writing import RETIRED, write_model, write_of_peer
from bitwright.compat.options import RecipeParts, read_names, read_switch
from bitwright.recipe import Recipe
from bitwright.recipe.rules import DYNAMIC_FIELDS

_RETIRED = {**RETIRED, "activation_type": "activations are uint8, measured at every run"}


@raises_builtins(retired=_RETIRED)
def quantize_dynamic(
    model_input: str | Path | onnx.ModelProto,
    model_output: str | Path,
    op_types_to_quantize: Sequence[str] | None = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    weight_type: Any = QuantType.QInt8,
    nodes_to_quantize: Sequence[str] | None = None,
    nodes_to_exclude: Sequence[str] | None = None,
    use_external_data_format: bool = False,
    extra_options: Mapping[str, Any] | None = None,
) -> None:
    """Store weights in 8 bits, let activations be quantized at every run, and write the model.

    The defaults, the tensor names and the operators are those of ONNX Runtime's tool. Other than
    there, `extra_options` is not written into, options without an effect are ignored with a
    warning, every Gemm is quantized, `per_channel` counts for Conv too, and float16 models work.

    >>> import tempfile, bitwright
    >>> from bitwright.compat.onnxruntime import quantize_dynamic
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     quantize_dynamic(bitwright.load_demo().model_path, f"{folder}/q.onnx")
    ...     bitwright.inspect(f"{folder}/q.onnx").is_quantized
    True
    """
    request = QuantizerRequest(
        model=model_input,
        per_channel=read_switch("per_channel", per_channel),
        reduce_range=read_switch("reduce_range", reduce_range),
        weight_qType=weight_type,
        activation_qType=QuantType.QUInt8,
        nodes_to_quantize=nodes_to_quantize,
        nodes_to_exclude=nodes_to_exclude,
        op_types_to_quantize=selected_op_types(None, op_types_to_quantize),
        extra_options=extra_options,
    )
    external = read_switch("use_external_data_format", use_external_data_format)
    op_types = request.op_types_to_quantize
    recipe = dynamic_recipe(request.recipe_parts(dynamic_op_types(op_types)), weight_type)
    if foreign := foreign_op_types(model_input, None, op_types):
        job = partial(_quantize_by_peer, request)
        write_of_peer(job, foreign, model_output, external_data=external)
        return
    run = partial(quantize, model_input, recipe=recipe, force_dynamic=True)
    write_model(run, model_input, model_output, external_data=external)


def _quantize_by_peer(request: QuantizerRequest) -> onnx.ModelProto:
    """Quantize by the peer's own pass over the nodes, with the defaults of its function."""
    model = update_opset_version(load_model_with_shape_infer(request.model), request.weight_qType)
    options = {"MatMulConstBOnly": True, **(request.extra_options or {})}
    return run_peer(replace(request, model=model, extra_options=options), None)


def dynamic_op_types(op_types: Sequence[str] | None) -> list[str]:
    """Return the op types of a dynamic model, as ONNX Runtime's tool reads them."""
    found = list(read_names("op_types_to_quantize", op_types))
    # There, a Gemm is taken apart first, and its MatMul is what is quantized.
    return [*found, "Gemm"] if "MatMul" in found else found


def dynamic_recipe(parts: RecipeParts, weight_type: Any) -> Recipe:
    """Return the recipe of a dynamic model as ONNX Runtime's tool makes it."""
    for section, read in (
        ("recipe", DYNAMIC_FIELDS),
        ("place", {"force_shared"}),
        ("emulate", {"assumed_type"}),
        ("calibration", set()),
        ("smooth", set()),
    ):
        for name in getattr(parts, section).keys() - read:
            parts.drop(f"{section}.{name}", "it has no effect in a dynamic model")
    parts.select.setdefault("subgraphs", False)  # as there, unless EnableSubgraph asks for it
    parts.emulate["conventions"] = "onnxruntime"
    parts.recipe.update(
        name="onnxruntime-dynamic",
        mode="dynamic",
        dynamic_scale="tensor",
        weight=as_quant_type(weight_type, "weight type").qtype,
        # ONNX Runtime leaves clean-ups to quant_pre_process, and keeps the model's names.
        optimize=False,
        rounding="nearest",
    )
    return Recipe(**parts.build())
