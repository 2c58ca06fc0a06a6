"""A `QConfig` in plain dicts and back: specs and steps by their class, enumerations by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from typing import Any

from bitwright.compat.options import find_name
from bitwright.compat.quark import algorithms
from bitwright.compat.quark.algorithms import AlgoConfig
from bitwright.compat.quark.specs import QLayerConfig, Spec
from bitwright.errors import RecipeError
from bitwright.numerics.types import QType

__all__ = ["config_from_dict", "config_to_dict"]

_BY_LAYER = ("specific_layer_config", "layer_type_config")
_STEPS = {name: getattr(algorithms, name) for name in algorithms.__all__}


def config_to_dict(config: Any) -> dict[str, Any]:
    """Return every field of a `QConfig`; a dict with layers as keys becomes a list of pairs."""
    found: dict[str, Any] = {}
    for name in (field.name for field in fields(config)):
        value = getattr(config, name)
        if name in _BY_LAYER:
            value = [[layer, list(names)] for layer, names in value.items()]
        found[name] = _plain(value)
    return found


def config_from_dict(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a `QConfig`."""
    found = dict(given)
    if "global_config" not in found:
        raise RecipeError("a QConfig has a global_config; it is missing in the dict.")
    found["global_config"] = _layer(found["global_config"])
    for key in _BY_LAYER:
        found[key] = {_layer(layer): names for layer, names in found.get(key) or ()}
    found["algo_config"] = [_step(step) for step in found.get("algo_config") or ()]
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Spec | AlgoConfig):
        kind = "spec" if isinstance(value, Spec) else "name"
        return {kind: type(value).__name__} | _fields(value)
    if isinstance(value, QLayerConfig):
        return _fields(value)
    if isinstance(value, Enum | QType):
        return value.name
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}


def _layer(given: Any) -> QLayerConfig | None:
    return None if given is None else QLayerConfig.from_dict(given)


def _step(given: Any) -> AlgoConfig:
    settings = dict(given)
    kind = find_name(settings.pop("name", None), _STEPS, "step")
    # JSON has made lists of the tuples.
    made: AlgoConfig = kind(
        **{key: tuple(each) if isinstance(each, list) else each for key, each in settings.items()}
    )
    return made
