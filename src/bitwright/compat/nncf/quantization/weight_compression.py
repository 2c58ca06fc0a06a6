"""`compress_weights`, on `bitwright.quantize` with weights alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx
import onnx_ir as ir

from bitwright.compat.nncf.dataset import Dataset, first_inputs
from bitwright.compat.nncf.errors import (
    InvalidGroupSizeError,
    ParameterNotSupportedError,
    ValidationError,
)
from bitwright.compat.nncf.parameters import (
    BackupMode,
    CompressionFormat,
    CompressWeightsMode,
    SensitivityMetric,
)
from bitwright.compat.nncf.quantization.advanced_parameters import AdvancedCompressionParameters
from bitwright.compat.nncf.quantization.translation import whole_model
from bitwright.compat.nncf.scopes import IgnoredScope, naming_the_scope, selection_of
from bitwright.errors import NothingQuantizedError
from bitwright.graph import constant_tensor, iter_values, load_model, normalize, opset_of
from bitwright.recipe import AWQ, GPTQ, ByLoss, ByPlace, Nearest, Recipe, WeightOnly, WeightOverride
from bitwright.support.wording import warn_user

_BACKUP_BITS = 8
_KERNEL_SIZES = (16, 32, 64, 128, 256, -1)
"""Groups that products of n bits have; others are in pairs."""
_MODES = {
    CompressWeightsMode.INT8_SYM: (8, True),
    CompressWeightsMode.INT8_ASYM: (8, False),
    CompressWeightsMode.INT4_SYM: (4, True),
    CompressWeightsMode.INT4_ASYM: (4, False),
    CompressWeightsMode.INT3_SYM: (3, True),
    CompressWeightsMode.INT2_SYM: (2, True),
}
"""Bits, and whether weights are symmetric."""
_NOT_FOR_INT8: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys("all_layers sensitivity_metric dataset awq".split(), (None,)),
    **dict.fromkeys("scale_estimation gptq backup_mode".split(), (None,)),
    "ratio": (None, 0, 1),
    "group_size": (None, 0, -1),
}
"""Options that eight bits for all weights leave nothing to, and values that ask for nothing."""
_SEARCH_PARAMETERS = (
    "awq_params scale_estimation_params group_size_fallback_mode min_adjusted_group_size "
    "lora_adapter_rank".split()
)


def compress_weights(
    model: Any,
    *,
    mode: CompressWeightsMode = CompressWeightsMode.INT8_ASYM,
    ratio: float | None = None,
    group_size: int | None = None,
    ignored_scope: IgnoredScope | None = None,
    all_layers: bool | None = None,
    dataset: Dataset | None = None,
    sensitivity_metric: SensitivityMetric | None = None,
    subset_size: int = 128,
    awq: bool | None = None,
    scale_estimation: bool | None = None,
    gptq: bool | None = None,
    lora_correction: bool | None = None,
    backup_mode: BackupMode | None = None,
    compression_format: CompressionFormat = CompressionFormat.DQ,
    advanced_parameters: AdvancedCompressionParameters | None = None,
) -> onnx.ModelProto:
    """Store the weights of products and lookups in few bits, and return the model.

    >>> import bitwright, onnx
    >>> from bitwright.compat import nncf
    >>> small = nncf.compress_weights(onnx.load(bitwright.load_demo().model_path))
    >>> small.graph.node[-1].op_type
    'Gemm'
    """
    return _compress(dict(locals()))


def _compress(given: Mapping[str, Any]) -> onnx.ModelProto:
    """Compress weights by the arguments of `compress_weights`."""
    from bitwright import api

    advanced = given["advanced_parameters"] or AdvancedCompressionParameters()
    scope, dataset = given["ignored_scope"], given["dataset"]
    data = None if dataset is None else list(first_inputs(dataset, given["subset_size"]))
    source = whole_model(given["model"], advanced.backend_params)
    weights = _weights(given, advanced, source)
    recipe = Recipe(name="nncf", mode="weight-only", weights=weights, select=selection_of(scope))
    if given["backup_mode"] == BackupMode.NONE:
        recipe = _with_float_backup(recipe, source)
    try:
        with naming_the_scope(scope, source):
            result = api.quantize(
                source,
                data=data,
                recipe=_with_head_in_budget(recipe, source),
                holdout=False,  # all items count, as there
                progress=False,
            )
    except NothingQuantizedError as error:
        warn_user(f"the model stays as it is: {error}")
        return ir.to_proto(load_model(source))
    return _with_last_axes(ir.to_proto(result.model))


def _with_last_axes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Count the axes of products' scales from the end, as there.

    ONNX Runtime takes axis 1 for an n-bit product, whose inputs it rounds to eight bits: 1 dB less.
    """
    for node in model.graph.node:
        given = {each.name: each for each in node.attribute if node.op_type == "DequantizeLinear"}
        if "block_size" not in given and "axis" in given and given["axis"].i == 1:
            given["axis"].i = -1
    return model


def _with_float_backup(recipe: Recipe, source: Any) -> Recipe:
    """Return the recipe with the weights float that would have eight bits where others have few."""
    from bitwright import api

    plain = {"awq": None, "refine": 0, "rounding": Nearest()}
    plan = api.make_plan(source, recipe=recipe.replace(weights=plain), progress=False)
    kept = [weight for weight in plan.weights.values() if weight.bits == _BACKUP_BITS]
    overrides = {name: WeightOverride(keep_float=True) for one in kept for name in one.nodes}
    return recipe.replace(weights={"overrides": overrides})


def _weights(
    given: Mapping[str, Any], advanced: AdvancedCompressionParameters, source: Any
) -> WeightOnly:
    """Return how weights are stored; options that have no form here are refused, or warned of."""
    _refuse_unsupported(given, advanced)
    _warn_of_differences(given, advanced)
    bits, symmetric = _MODES[CompressWeightsMode(given["mode"])]
    has_data = given["dataset"] is not None
    in_groups = bits != _BACKUP_BITS
    model = load_model(source)
    normalize(model)
    # Fewer bits have a DequantizeLinear from opset 21 on, before that products of the runtime.
    in_products = in_groups and opset_of(model) < 21 and not _has_stacked_weights(model)
    damping, size = advanced.gptq_params.damp_percent, given["group_size"] or 128
    if size != -1 and size < 2:
        raise InvalidGroupSizeError(
            f"group_size is at least 2, or -1 for whole channels, not {size}."
        )
    return WeightOnly(
        bits=bits,
        symmetric=symmetric,
        block_size=size if in_groups else -1,
        output="matmul-nbits" if in_products and size in _KERNEL_SIZES else "qdq",
        rounding=GPTQ(damping=damping) if given["gptq"] else Nearest(clip=False),
        awq=AWQ() if given["awq"] and has_data else None,
        refine=1 if given["scale_estimation"] else 0,
        embeddings=True,
        overrides=_wide_layers(model) if in_groups and not given["all_layers"] else {},
        mixed=_mixed(bits, given["ratio"], has_data) if in_groups else None,
    )


def _wide_layers(model: ir.Model) -> dict[str, WeightOverride]:
    """Return the layers that have eight bits where others have fewer: tables, the last product."""
    nodes = [
        node
        for node in model.graph.all_nodes()
        if node.op_type in ("Gather", "Gemm", "MatMul")
        and any(constant_tensor(value) is not None for value in node.inputs[:2])
    ]
    last = [node for node in nodes if node.op_type != "Gather"][-1:]
    eight = WeightOverride(bits=_BACKUP_BITS, symmetric=False, block_size=-1)
    return {n.name or "": eight for n in nodes if n.op_type == "Gather" or n in last}


def _warn_of_differences(given: Mapping[str, Any], advanced: AdvancedCompressionParameters) -> None:
    """Warn of options that do nothing here."""
    for name in _SEARCH_PARAMETERS:
        if getattr(advanced, name) != getattr(AdvancedCompressionParameters(), name):
            warn_user(
                f"{name} of advanced_parameters has no effect: the searches here have steps of "
                "their own, and groups of any size are stored."
            )
    if given["sensitivity_metric"] is not None:
        warn_user(
            "sensitivity_metric has no effect: what each weight loses is measured at the end of "
            "its branch."
        )
    if given["awq"] and given["dataset"] is None:
        warn_user("awq has no effect: AWQ scales by what a layer reads; give a dataset.")


def _with_head_in_budget(recipe: Recipe, source: Any) -> Recipe:
    """Return the recipe with an average that counts the head: `ratio` is a share of the others."""
    from bitwright import api

    mixed = recipe.weights.mixed
    wanted = mixed.average_bits if isinstance(mixed, ByLoss) else None
    if not isinstance(mixed, ByLoss) or wanted is None or not recipe.weights.overrides:
        return recipe
    plain = {"mixed": None, "awq": None, "refine": 0, "rounding": Nearest()}
    plan = api.make_plan(source, recipe=recipe.replace(weights=plain), progress=False)
    model = load_model(source)
    normalize(model)
    values = dict(iter_values(model))
    sizes = {False: 0, True: 0}
    for name, weight in plan.weights.items():
        tensor = values[name].const_value
        if tensor is not None and plan.nodes[weight.nodes[0]].op != "Gather":
            sizes[weight.bits == _BACKUP_BITS] += tensor.size
    if not sizes[True]:
        return recipe
    if not sizes[False]:
        return recipe.replace(weights={"mixed": None})
    head = sizes[True] / sum(sizes.values())
    average = head * _BACKUP_BITS + (1 - head) * wanted
    # A rounding error in the budget must not cost a weight its bits.
    return recipe.replace(weights={"mixed": mixed.replace(average_bits=average + 1e-9)})


def _refuse_unsupported(given: Mapping[str, Any], advanced: AdvancedCompressionParameters) -> None:
    """Refuse options that NNCF refuses for ONNX models, and eight-bit floats."""
    mode, backup, form = given["mode"], given["backup_mode"], given["compression_format"]
    if CompressWeightsMode(mode) not in _MODES:
        raise ParameterNotSupportedError(
            f"mode {str(mode)!r} has no form here; take one of {', '.join(_MODES)}."
        )
    if backup in (BackupMode.MXFP8_E4M3, BackupMode.FP8_E4M3):
        raise ParameterNotSupportedError(
            f"backup_mode {str(backup)!r} has no form here; take INT8_ASYM, or NONE for float."
        )
    if backup == BackupMode.NONE and given["ratio"] not in (None, 0, 1):
        raise ParameterNotSupportedError(
            "backup_mode NONE has no form here beside a ratio; name layers that stay float in "
            "ignored_scope."
        )
    if CompressionFormat(form) is not CompressionFormat.DQ:
        raise ParameterNotSupportedError(f"compression_format is DQ, not {str(form)!r}.")
    for name, value in (
        ("lora_correction", given["lora_correction"]),
        ("statistics_path", advanced.statistics_path),
    ):
        if value is not None:
            raise ParameterNotSupportedError(f"{name} is not for ONNX models; leave it out.")
    if given["subset_size"] < 1:
        raise ValidationError(f"subset_size is at least 1, not {given['subset_size']}.")
    bits, _ = _MODES[CompressWeightsMode(mode)]
    named = [name for name, usual in _NOT_FOR_INT8.items() if given[name] not in usual]
    if bits == _BACKUP_BITS and named:
        raise ParameterNotSupportedError(
            f"modes of eight bits take no {', '.join(named)}: all weights have a scale for each "
            "channel; leave it out."
        )
    if given["dataset"] is None and (given["scale_estimation"] or given["gptq"]):
        raise ParameterNotSupportedError("scale_estimation and gptq look at data; give a dataset.")


def _has_stacked_weights(model: ir.Model) -> bool:
    """Whether a product reads several matrices at once, for which there is no n-bit kernel."""
    products = (node for node in model.graph.all_nodes() if node.op_type == "MatMul")
    constants = (constant_tensor(node.inputs[1]) for node in products)
    return any(each is not None and len(each.shape) > 2 for each in constants)


def _mixed(bits: int, ratio: float | None, has_data: bool) -> ByLoss | ByPlace | None:
    """Return which weights get eight bits, where not all have few."""
    if ratio is not None and not 0 <= ratio <= 1:
        raise ValidationError(f"ratio lies in [0, 1], not at {ratio}.")
    share = ratio or 1.0  # 0 is taken as 1 there, too
    if share == 1:
        return None
    if not has_data:
        warn_user(
            f"ratio {ratio} goes by place: without data the values of attention and the last "
            "products of some layers get them, as in llama.cpp; give a dataset for the exact share."
        )
        return ByPlace(wide_bits=_BACKUP_BITS)
    average = bits * share + _BACKUP_BITS * (1 - share)
    return ByLoss(average_bits=average, wide_bits=_BACKUP_BITS)
