"""`weight_config` and `ratios`: settings of single nodes and weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bitwright.compat.neural_compressor.tensors import is_symmetric
from bitwright.compat.options import choice, ignore_unknown
from bitwright.errors import RecipeError, did_you_mean
from bitwright.graph import load_model, normalize, weight_of
from bitwright.recipe import Nearest, WeightOverride
from bitwright.support.wording import warn_user

_KEYS = ("bits", "group_size", "scheme", "algorithm")
_CALIBRATION = "calib_iteration"
_TEQ = "TEQ learns scales with torch and has never been one for ONNX models; take 'AWQ' or 'GPTQ'"
_read_algorithm = choice({name: name for name in ("RTN", "AWQ", "GPTQ")})


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """What `weight_config` says about one node; None where it says nothing."""

    keep_float: bool = False
    bits: int | None = None
    group_size: int | None = None
    symmetric: bool | None = None
    algorithm: str | None = None

    def override(self, **more: Any) -> WeightOverride:
        """Return the same for a recipe, with more fields."""
        fields = {"keep_float": self.keep_float, **more}
        return WeightOverride(
            bits=self.bits, block_size=self.group_size, symmetric=self.symmetric, **fields
        )


def node_settings(weight_config: Mapping[str, Any]) -> dict[str, NodeSettings]:
    """Return the checked settings of each node that is named; the dict is not changed.

    What Neural Compressor's own adaptor writes beside them has no effect, with a warning.
    """
    if not isinstance(weight_config, Mapping):
        raise RecipeError(f"weight_config is a dict of node names, not {weight_config!r}.")
    if _CALIBRATION in weight_config:
        warn_user(f"{_CALIBRATION} of weight_config is ignored: n_samples says how many are read.")
    return {
        name: _read(name, given) for name, given in weight_config.items() if name != _CALIBRATION
    }


def nearest_overrides(
    model: Any, weight_config: Mapping[str, Any], ratios: Mapping[str, float]
) -> dict[str, WeightOverride]:
    """Return the overrides of single nodes: ratios by weight, settings by name."""
    rounding = {
        name: Nearest(clip=False, shrink=ratio)
        for name, ratio in _ratios_by_node(model, ratios).items()
    }
    found = {name: WeightOverride(rounding=method) for name, method in rounding.items()}
    for name, given in node_settings(weight_config).items():
        found[name] = given.override(rounding=rounding.get(name))
    return found


def _ratios_by_node(model: Any, ratios: Mapping[str, float]) -> dict[str, float]:
    """Return the ratio of each node, from those of the weights that they read."""
    if not ratios:
        return {}
    found: dict[str, float] = {}
    work = load_model(model)
    normalize(work)
    weights: set[str] = set()
    for node in work.graph.all_nodes():
        weight = weight_of(node)
        if weight is None or node.op_type == "Gather":
            continue
        name = weight.value.name or ""
        weights.add(name)
        if name in ratios:
            found[node.name or ""] = float(ratios[name])
    for name in ratios:
        if name not in weights:
            raise RecipeError(f"ratios: no weight is called {name!r}.{did_you_mean(name, weights)}")
    return found


def _read(name: str, given: Any) -> NodeSettings:
    if given == "fp32":
        return NodeSettings(keep_float=True)
    if not isinstance(given, Mapping):
        raise RecipeError(
            f"weight_config of {name!r} is 'fp32' or a dict with {', '.join(_KEYS)}, not {given!r}."
        )
    given = ignore_unknown(given, _KEYS, f" in weight_config of {name!r}")
    algorithm = given.get("algorithm")
    if algorithm == "TEQ":
        raise RecipeError(f"the algorithm of {name!r} is 'TEQ', which is not supported: {_TEQ}.")
    if algorithm is not None:
        algorithm = _read_algorithm(f"the algorithm of {name!r}", algorithm)
    return NodeSettings(
        bits=given.get("bits"),
        group_size=given.get("group_size"),
        symmetric=None if given.get("scheme") is None else is_symmetric(given["scheme"]),
        algorithm=algorithm,
    )
