"""Weight-only quantization of products, each by its settings, one algorithm after another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bitwright.compat.model_wrapper import ONNXModel
from bitwright.compat.neural_compressor.inputs import source_of
from bitwright.compat.neural_compressor.weight_only import awq_quantize, gptq_quantize, rtn_quantize
from bitwright.compat.options import ignore_unknown
from bitwright.graph import load_model, normalize, weight_of

ARGUMENTS = {
    "RTN": ("accuracy_level", "ratios"),
    "GPTQ": ("percdamp", "blocksize", "actorder", "mse", "perchannel", "accuracy_level"),
    "AWQ": ("enable_auto_scale", "enable_mse_search", "accuracy_level"),
}
"""The arguments of each algorithm beside those of its weights."""
WeightConfig = dict[str, Any]
"""Name of a product -> "fp32", or its bits, group_size, scheme and algorithm."""


def product_types(model: Any) -> dict[str, str]:
    """Return the op type of each product with a constant weight, by its name, in order."""
    work = load_model(source_of(model))
    normalize(work)
    return {
        node.name or "": node.op_type
        for node in work.graph.all_nodes()
        if node.op_type in ("MatMul", "Gemm") and weight_of(node) is not None
    }


def quantize_products(
    model: Any,
    config: WeightConfig,
    arguments: Mapping[str, Mapping[str, Any]],
    loader: Any = None,
    samples: int = -1,
) -> ONNXModel:
    """Return the model with its products quantized as a `weight_config` says.

    GPTQ comes first, and then AWQ or RTN for what it has left, as there; `arguments` are those of
    the algorithms, by the names of these.
    """
    asked = {one["algorithm"] for one in config.values() if one != "fp32"}
    given = {
        name: ignore_unknown(arguments.get(name) or {}, known, f" of {name}")
        for name, known in ARGUMENTS.items()
    }
    made = model if isinstance(model, ONNXModel) else ONNXModel(source_of(model))
    if "GPTQ" in asked:
        made = gptq_quantize(made, loader, config, n_samples=samples, **given["GPTQ"])
    if "AWQ" in asked:
        made = awq_quantize(made, loader, config, n_samples=samples, **given["AWQ"])
    elif "RTN" in asked:
        made = rtn_quantize(made, config, **given["RTN"])
    return made
