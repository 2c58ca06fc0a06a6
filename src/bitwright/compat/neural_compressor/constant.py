"""Settings of operators, to be given by type or name, and the logger that scripts import."""

import logging

logger = logging.getLogger("neural_compressor")

_Setting = dict[str, list[str]]


def _both(dtype: str) -> dict[str, _Setting]:
    return {"weight": {"dtype": [dtype]}, "activation": {"dtype": [dtype]}}


def _integers(*values: str) -> _Setting:
    names = ("dtype", "scheme", "algorithm", "granularity")
    return {name: [value] for name, value in zip(names, values, strict=True)}


FP32 = _both("fp32")
BF16 = _both("bf16")
INT8_SYM_MINMAX_PERCHANNEL = _integers("int8", "sym", "minmax", "per_channel")
INT8_SYM_MINMAX_PERTENSOR = _integers("int8", "sym", "minmax", "per_tensor")
INT8_SYM_KL_PERTENSOR = _integers("int8", "sym", "kl", "per_tensor")
INT8_SYM_KL_PERCHANNEL = _integers("int8", "sym", "kl", "per_channel")
UINT8_ASYM_MINMAX_PERCHANNEL = _integers("uint8", "asym", "minmax", "per_channel")
UINT8_ASYM_MINMAX_PERTENSOR = _integers("uint8", "asym", "minmax", "per_tensor")
UINT8_ASYM_KL_PERTENSOR = _integers("uint8", "asym", "kl", "per_tensor")
UINT8_ASYM_KL_PERCHANNEL = _integers("uint8", "asym", "kl", "per_channel")
