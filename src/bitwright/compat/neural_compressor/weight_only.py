"""`neural_compressor.adaptor.ox_utils.weight_only` by its own names; the algorithms are ours."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from bitwright.api import quantize
from bitwright.compat.model_wrapper import ONNXModel
from bitwright.compat.neural_compressor.awq import apply_awq_clip, apply_awq_scale
from bitwright.compat.neural_compressor.inputs import (
    Loader,
    ModelSource,
    available_providers,
    count_inputs,
    prepare_inputs,
    source_of,
)
from bitwright.compat.neural_compressor.packed import (
    is_packed_name,
    rename_packed,
    round_for_wide_scales,
)
from bitwright.compat.neural_compressor.settings import nearest_overrides, node_settings
from bitwright.compat.neural_compressor.tensors import (
    get_blob_size,
    get_weight_scale,
    gptq,
    is_symmetric,
    make_matmul_weight_only_node,
    pad_tensor,
    qdq_tensor,
    quant_tensor,
)
from bitwright.errors import RecipeError
from bitwright.graph import load_model
from bitwright.recipe import AWQ, GPTQ, Nearest, Recipe, Selection, WeightOnly, WeightOverride

__all__ = [
    "apply_awq_clip",
    "apply_awq_scale",
    "awq_quantize",
    "get_blob_size",
    "get_weight_scale",
    "gptq",
    "gptq_quantize",
    "make_matmul_weight_only_node",
    "pad_tensor",
    "prepare_inputs",
    "qdq_tensor",
    "quant_tensor",
    "rtn_quantize",
]


# Defaults are the ones there, dicts and lists included; nothing here ever changes them.


def rtn_quantize(
    model: ModelSource,
    weight_config: Mapping[str, Any] = {},
    num_bits: int = 4,
    group_size: int = 32,
    scheme: str = "asym",
    ratios: Mapping[str, float] = {},
    accuracy_level: int = 0,
    providers: Sequence[str] = ["CPUExecutionProvider"],
) -> ONNXModel:
    """Return the model with weights rounded to the nearest of their groups' values.

    Args:
        model: a path, a message or an `ONNXModel`; it is never changed.
        weight_config: node name -> `bits`, `group_size`, `scheme`, or `"fp32"` to leave it alone.
        num_bits: 2 to 8.
        group_size: so many inputs of an output share a scale: 16 to 256, -1 for all of them.
        scheme: `"asym"`, or `"sym"` without zero points.
        ratios: weight name -> the part of its groups' ranges that is kept.
        accuracy_level: what the product computes in: 0 as is fast, 4 int8.
        providers: where the result is tried out.

    >>> import bitwright
    >>> model = rtn_quantize(bitwright.load_demo().model_path, scheme="sym")
    >>> model.plan.weights["classify_weight"].symmetric
    True
    """
    overrides = nearest_overrides(source_of(model), weight_config, ratios)
    weights = _weights(num_bits, group_size, scheme, accuracy_level, overrides)
    return _run(model, weights, weight_config, providers)


def awq_quantize(
    model: ModelSource,
    dataloader: Any,
    weight_config: Mapping[str, Any] = {},
    num_bits: int = 4,
    group_size: int = 32,
    scheme: str = "asym",
    n_samples: int = 128,
    enable_auto_scale: bool = True,
    enable_mse_search: bool = True,
    accuracy_level: int = 0,
    providers: Sequence[str] = ["CPUExecutionProvider"],
) -> ONNXModel:
    """Return the model with weights scaled and clipped for the inputs they meet, then rounded.

    `enable_auto_scale` scales up what large inputs meet, `enable_mse_search` searches the range of
    each group by the error of the product; either works without the other. Nodes whose
    `algorithm` is not AWQ are only rounded. The other arguments are those of `rtn_quantize`,
    `dataloader` and `n_samples` those of `prepare_inputs`.
    """
    awq = None
    if enable_auto_scale or enable_mse_search:
        awq = AWQ(scale=enable_auto_scale, clip=enable_mse_search)
    overrides = {
        name: given.override(awq=False if given.algorithm not in (None, "AWQ") else None)
        for name, given in node_settings(weight_config).items()
    }
    weights = _weights(num_bits, group_size, scheme, accuracy_level, overrides, awq=awq)
    data = Loader(dataloader, n_samples, count_inputs(model))
    return _run(model, weights, weight_config, providers, data)


def gptq_quantize(
    model: ModelSource,
    dataloader: Any,
    weight_config: Mapping[str, Any] = {},
    num_bits: int = 4,
    group_size: int = 32,
    scheme: str = "asym",
    n_samples: int = 128,
    percdamp: float = 0.01,
    blocksize: int = 128,
    actorder: bool = False,
    mse: bool = False,
    perchannel: bool = True,
    accuracy_level: int = 0,
    providers: Sequence[str] = ["CPUExecutionProvider"],
) -> ONNXModel:
    """Return the model with weights rounded row after row, each making up for those before (GPTQ).

    Layers are rounded in turn, each for the inputs that the rounded ones before it give. Nodes
    whose `algorithm` is not GPTQ stay float, for another function to quantize. The result does
    not depend on `blocksize`. The other arguments are those of `gptq`, `rtn_quantize` and
    `prepare_inputs`.
    """
    if blocksize < 1:
        raise RecipeError(f"blocksize must be at least 1, not {blocksize}.")
    overrides = {
        name: given.override(keep_float=given.keep_float or given.algorithm not in (None, "GPTQ"))
        for name, given in node_settings(weight_config).items()
    }
    rounding = GPTQ(damping=percdamp, act_order=actorder, clip=mse, per_column=perchannel)
    weights = _weights(num_bits, group_size, scheme, accuracy_level, overrides, rounding=rounding)
    data = Loader(dataloader, n_samples, count_inputs(model))
    return _run(model, weights, weight_config, providers, data)


def _weights(
    num_bits: int,
    group_size: int,
    scheme: str,
    accuracy_level: int,
    overrides: dict[str, WeightOverride],
    **methods: Any,
) -> WeightOnly:
    """Return how weights are stored, by the settings that every function here takes."""
    return WeightOnly(
        bits=num_bits,
        block_size=group_size,
        symmetric=is_symmetric(scheme),
        accuracy_level=accuracy_level or None,
        overrides=overrides,
        embeddings=False,  # as there, even where a head shares the table
        **{"rounding": Nearest(clip=False), **methods},
    )


def _run(
    model: ModelSource,
    weights: WeightOnly,
    named: Mapping[str, Any],
    providers: Sequence[str],
    data: Any = None,
) -> ONNXModel:
    """Quantize, and say which of the named nodes could not be."""
    weights = _without_packed(weights, source_of(model))
    select = Selection(subgraphs=True)
    recipe = Recipe(name="neural-compressor", mode="weight-only", weights=weights, select=select)
    used = available_providers(providers)
    result = quantize(source_of(model), data=data, recipe=recipe, holdout=False, providers=used)
    for name in weights.overrides:
        node, wanted = result.plan.nodes.get(name), weights.overrides[name]
        if node is None or node.quantized or wanted.keep_float or node.op not in _FLOAT_OPS:
            continue
        what = f"node {name!r} of weight_config stays float: {node.reason}."
        warnings.warn(what, UserWarning, stacklevel=3)
    if isinstance(weights.rounding, Nearest) and weights.awq is None:
        round_for_wide_scales(result.model, result.plan, source_of(model))
    rename_packed(result.model, result.plan)
    return ONNXModel(result.model, result.plan)


def _without_packed(weights: WeightOnly, model: Any) -> WeightOnly:
    """Leave out the settings of nodes that an earlier call has packed under another name."""
    nodes = [node.name or "" for node in load_model(model).graph.all_nodes()]
    overrides = {
        name: given
        for name, given in weights.overrides.items()
        if name in nodes or not any(is_packed_name(node, name) for node in nodes)
    }
    return weights.replace(overrides=overrides)


# A model may hold products that an earlier call has quantized.
_FLOAT_OPS = ("MatMul", "Gemm")
