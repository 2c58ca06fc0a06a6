"""What a client changed in the registries of `onnxruntime.quantization`, read as a request.

The registries are the peer's own dictionaries: op type -> the class that quantizes its nodes.
An op type that has the generic class, or none any more, is a matter of which nodes are selected;
any other class is run by the peer's own quantizers.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx

from bitwright.compat.onnxruntime.enums import QuantFormat
from bitwright.compat.onnxruntime.override_checks import graph_only
from bitwright.compat.onnxruntime.peer import PEER, peer
from bitwright.compat.paths import was_imported

# The registries whose keys are the op types to quantize by default, and the one that has the
# classes, with the generic class of op types that it does not have; dynamic is None.
_DEFAULTS: dict[QuantFormat | None, tuple[str, ...]] = {
    QuantFormat.QDQ: ("QLinearOpsRegistry", "QDQRegistry"),
    QuantFormat.QOperator: ("QLinearOpsRegistry", "QDQRegistry"),
    None: ("IntegerOpsRegistry",),
}
_CLASSES: dict[QuantFormat | None, tuple[str, str]] = {
    QuantFormat.QDQ: ("QDQRegistry", "QDQOperatorBase"),
    QuantFormat.QOperator: ("QLinearOpsRegistry", "QuantOperatorBase"),
    None: ("IntegerOpsRegistry", "QuantOperatorBase"),
}


def default_op_types(written: QuantFormat | None) -> list[str]:
    """Return the op types that the registries list for a format; None is a dynamic model."""
    return sorted(_keys(peer("registry"), written))


def selected_op_types(
    written: QuantFormat | None, op_types: Iterable[str] | None
) -> list[str] | None:
    """Return the op types to select, where a registry says others than the installed one does."""
    asked = [*op_types] if op_types else None
    if not was_imported(f"{PEER}.registry"):  # nor changed by anybody
        return asked
    now, before = (_keys(module, written) for module in (peer("registry"), _as_installed()))
    chosen = asked if asked is not None else (sorted(now) if now != before else None)
    if written is QuantFormat.QDQ:
        return chosen
    # In the other formats a type without a class stays float; in QDQ it gets pairs.
    name, _ = _CLASSES[written]
    removed = getattr(_as_installed(), name).keys() - getattr(peer("registry"), name).keys()
    if not removed:
        return chosen
    return [op for op in (chosen or sorted(now)) if op not in removed]


def foreign_op_types(
    model: str | Path | onnx.ModelProto, written: QuantFormat | None, op_types: Iterable[str] | None
) -> set[str]:
    """Return the selected op types of a model whose class is another than the installed one."""
    if not was_imported(f"{PEER}.registry"):  # nor changed by anybody
        return set()
    name, generic = _CLASSES[written]
    now, before = (getattr(module, name) for module in (peer("registry"), _as_installed()))
    default = getattr(_as_installed(), generic)
    changed = {
        op
        for op in {*now, *before}
        if now.get(op, default) is not before.get(op, default)
        # Outside QDQ a type without a class stays float, which is a matter of selection.
        and (op in now or written is QuantFormat.QDQ)
    } & set(op_types or _keys(peer("registry"), written))
    if not changed:
        return set()
    return changed & {node.op_type for node in graph_only(model).graph.node}


def _keys(registry: Any, written: QuantFormat | None) -> set[str]:
    found: list[Mapping[str, Any]] = [getattr(registry, name) for name in _DEFAULTS[written]]
    return set().union(*found)


@cache
def _as_installed() -> ModuleType:
    """Run the peer's module once more: its registries as they were before anybody changed them."""
    spec = importlib.util.spec_from_file_location(
        f"{PEER}.registry_as_installed", peer("registry").__file__
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
