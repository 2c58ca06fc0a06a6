"""Overrides of tensors in the types of ONNX Runtime's tool and of ours, and how both compare."""

from __future__ import annotations

import copy
import importlib
from enum import Enum

import numpy as np
import pytest

pytest.importorskip("onnxruntime.quantization")

OURS, PEER = "bitwright.compat.onnxruntime", "onnxruntime.quantization"


def both(module):
    """Return (ours, the peer's) module of this name."""
    return tuple(importlib.import_module(f"{package}.{module}") for package in (OURS, PEER))


def in_types_of(module, value):
    """Return a copy in which the names of types are members of a module's package."""
    package = OURS if module.__name__.startswith(OURS) else PEER
    kind = importlib.import_module(package).QuantType
    value = copy.deepcopy(value)
    if isinstance(value, str) and value in kind.__members__:
        return kind[value]
    if isinstance(value, dict):
        return {key: in_types_of(module, item) for key, item in value.items()}
    if isinstance(value, list):
        return [in_types_of(module, item) for item in value]
    return value


def normal_form(value):
    """Return something that is equal for equal values of both packages."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tolist()
    if isinstance(value, dict):
        return {key: normal_form(item) for key, item in value.items()}
    if isinstance(value, set):
        return sorted(map(normal_form, value))
    if isinstance(value, list):
        return [normal_form(item) for item in value]
    if hasattr(value, "quant_type"):
        return normal_form(vars(value))
    return value
