"""`compress_weights`, on `bitwright.quantize` with weights alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bitwright.compat.nncf.data.dataset import Dataset, first_inputs
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
from bitwright.recipe import AWQ, GPTQ, ByLoss, ByPlace, Nearest, Recipe, WeightOnly
from bitwright.support.notices import warn_user

if TYPE_CHECKING:
    import onnx

__all__ = ["compress_weights"]

_BACKUP_BITS = 8
_MODES = {
    CompressWeightsMode.INT8_SYM: (8, True),
    CompressWeightsMode.INT8_ASYM: (8, False),
    CompressWeightsMode.INT4_SYM: (4, True),
    CompressWeightsMode.INT4_ASYM: (4, False),
    CompressWeightsMode.INT3_SYM: (3, True),
    CompressWeightsMode.INT2_SYM: (2, True),
}
"""Bits, and whether weights are symmetric."""
_OF_OTHER_SEARCHES = (
    "awq_params",
    "scale_estimation_params",
    "group_size_fallback_mode",
    "min_adjusted_group_size",
    "lora_adapter_rank",
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
    'MatMulNBits'
    """
    import onnx_ir as ir

    from bitwright import api

    advanced = advanced_parameters or AdvancedCompressionParameters()
    _refuse_unsupported(mode, backup_mode, compression_format, lora_correction, advanced)
    if subset_size < 1:
        raise ValidationError(f"subset_size is at least 1, not {subset_size}.")
    by_data = {
        "all_layers": all_layers,
        "sensitivity_metric": sensitivity_metric,
        "dataset": dataset,
        "awq": awq,
        "scale_estimation": scale_estimation,
        "gptq": gptq,
        "backup_mode": backup_mode,
    }
    bits, symmetric = _MODES[CompressWeightsMode(mode)]
    if bits == _BACKUP_BITS:
        _refuse_for_int8({**by_data, "ratio": ratio, "group_size": group_size})
    if dataset is None and (scale_estimation or gptq):
        raise ParameterNotSupportedError("scale_estimation and gptq look at data; give a dataset.")
    for name in _OF_OTHER_SEARCHES:
        if getattr(advanced, name) != getattr(AdvancedCompressionParameters(), name):
            warn_user(
                f"{name} of advanced_parameters has no effect: the searches here have steps of "
                "their own, and groups of any size are stored."
            )
    if sensitivity_metric is not None:
        warn_user(
            "sensitivity_metric has no effect: what each weight loses is measured at the end of "
            "its branch."
        )
    if awq and dataset is None:
        warn_user("awq has no effect: AWQ scales by what a layer reads; give a dataset.")
    backup = None if all_layers else _BACKUP_BITS
    weights = WeightOnly(
        bits=bits,
        symmetric=symmetric,
        block_size=-1 if bits == _BACKUP_BITS else _group(group_size),
        rounding=GPTQ(damping=advanced.gptq_params.damp_percent) if gptq else Nearest(),
        awq=AWQ() if awq and dataset is not None else None,
        refine=1 if scale_estimation else 0,
        embeddings=True,
        embedding_bits=backup,
        head_bits=backup,
        mixed=None if bits == _BACKUP_BITS else _mixed(bits, ratio, dataset),
    )
    data = None if dataset is None else list(first_inputs(dataset, subset_size))
    with naming_the_scope(ignored_scope):
        result = api.quantize(
            whole_model(model, advanced.backend_params),
            data=data,
            recipe=Recipe(
                name="nncf",
                mode="weight-only",
                weights=weights,
                select=selection_of(ignored_scope),
            ),
            holdout=False,  # all items count, as there
            progress=False,
        )
    return ir.to_proto(result.model)


def _refuse_unsupported(
    mode: CompressWeightsMode,
    backup: BackupMode | None,
    form: CompressionFormat,
    lora: bool | None,
    advanced: AdvancedCompressionParameters,
) -> None:
    """Refuse what is refused there for ONNX models, and floats of eight bits."""
    if CompressWeightsMode(mode) not in _MODES:
        raise ParameterNotSupportedError(
            f"mode {str(mode)!r} has no form here; take one of {', '.join(_MODES)}."
        )
    if backup not in (None, BackupMode.INT8_ASYM, BackupMode.INT8_SYM):
        raise ParameterNotSupportedError(
            f"backup_mode {str(backup)!r} has no form here; name layers that stay float in "
            "ignored_scope."
        )
    if CompressionFormat(form) is not CompressionFormat.DQ:
        raise ParameterNotSupportedError(f"compression_format is DQ, not {str(form)!r}.")
    if lora is not None:
        raise ParameterNotSupportedError("lora_correction is not for ONNX models; leave it out.")
    if advanced.statistics_path is not None:
        raise ParameterNotSupportedError("statistics_path is not for ONNX models; leave it out.")


def _refuse_for_int8(given: dict[str, Any]) -> None:
    """Refuse options that eight bits for all weights leave nothing to."""
    usual = {"ratio": (None, 0, 1), "group_size": (None, 0, -1)}
    named = [name for name, value in given.items() if value not in usual.get(name, (None,))]
    if named:
        raise ParameterNotSupportedError(
            f"modes of eight bits take no {', '.join(named)}: all weights have a scale for each "
            "channel; leave it out."
        )


def _group(size: int | None) -> int:
    size = size or 128
    if size != -1 and (size < 16 or size & (size - 1)):
        raise InvalidGroupSizeError(
            f"group_size is a power of two from 16 on, or -1 for whole channels, not {size}."
        )
    return size


def _mixed(bits: int, ratio: float | None, dataset: Dataset | None) -> ByLoss | ByPlace | None:
    """Return which weights get eight bits, where not all have few."""
    if ratio is not None and not 0 <= ratio <= 1:
        raise ValidationError(f"ratio lies in [0, 1], not at {ratio}.")
    share = ratio or 1.0  # 0 is taken as 1 there, too
    if share == 1:
        return None
    if dataset is None:
        warn_user(
            f"ratio {ratio} goes by place: without data the values of attention and the last "
            "products of some layers get them, as in llama.cpp; give a dataset for the exact share."
        )
        return ByPlace(wide_bits=_BACKUP_BITS)
    average = bits * share + _BACKUP_BITS * (1 - share)
    return ByLoss(average_bits=average, wide_bits=_BACKUP_BITS)
