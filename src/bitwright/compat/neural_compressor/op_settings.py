"""`op_type_dict`, `op_name_dict`: settings of operators, by patterns of their types and names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import onnx_ir as ir

from bitwright.compat.options import ignore_unknown, read_mapping
from bitwright.errors import RecipeError
from bitwright.graph.constants import input_at
from bitwright.recipe import Entropy, MinMax, Override, Percentile, RangeMethod, Recipe
from bitwright.support.wording import warn_user

_KEYS = ("dtype", "scheme", "granularity", "algorithm", "bits", "group_size", "quant_mode")
_FLOATS = ("fp32", "bf16", "fp16")
# In the order in which they are tried there: the first of those that are given is what counts.
_RANGES: dict[str, RangeMethod] = {"minmax": MinMax(), "kl": Entropy(), "percentile": Percentile()}
_OF_WEIGHTS = ("bits", "group_size")
_Options = Mapping[str, Sequence[Any]]
_GRANULARITIES = ("per_channel", "per_tensor")
_SCHEMES = (("weights", "sym"), ("activations", "asym"))
_OBSERVED = ("Conv", "FusedConv", "MatMul", "Gemm", "Attention")


@dataclass(frozen=True, slots=True)
class OpSetting:
    """Settings of an operator; None where none is given."""

    keep_float: bool | None = None
    ranges: str | None = None
    granularity: str | None = None
    algorithm: str | None = None
    """Of weights alone: RTN, AWQ or GPTQ."""
    bits: int | None = None
    group_size: int | None = None
    schemes: tuple[str | None, str | None] = (None, None)
    """Of weights and of activations."""

    def merged(self, other: OpSetting) -> OpSetting:
        """Return both; where they differ, the other one counts."""
        values = ((one.name, getattr(other, one.name)) for one in fields(other))
        given = {name: value for name, value in values if value not in (None, (None, None))}
        return replace(self, **given)

    def of_weight(self) -> Any:
        """Return the entry of a `weight_config` that it stands for."""
        if self.keep_float:
            return "fp32"
        return {
            "bits": self.bits or 4,
            "group_size": self.group_size or 32,
            "scheme": self.schemes[0] or "sym",
            "algorithm": self.algorithm or "RTN",
        }


def apply_op_settings(
    recipe: Recipe, model: ir.Model, by_type: Any, by_name: Any, *, dynamic: bool = False
) -> Recipe:
    """Return a static or dynamic recipe with the settings of single operators of a model.

    Patterns match whole names and whole types; settings of a name override those of its type.
    """
    settings = setting_by_node(model, by_type, by_name)
    nodes = {node.name or "": node for node in model.graph.all_nodes()}
    for schemes in {one.schemes: None for one in settings.values()}:
        for (what, usual), given in zip(_SCHEMES, schemes, strict=True):
            if given not in (None, usual):
                warn_user(
                    f"scheme {given!r} of {what} is ignored: it is there, too, for ONNX models."
                )
    floats = [name for name, setting in settings.items() if setting.keep_float]
    whole, names = _by_whole_types(nodes, floats)
    changes: dict[str, Any] = {
        "select": {
            "exclude": (*recipe.select.exclude, *as_pattern(names)),
            "exclude_op_types": (*recipe.select.exclude_op_types, *whole),
        }
    }
    by_tensor = [name for name, one in settings.items() if one.granularity == "per_tensor"]
    if not dynamic:
        whole, names = _by_whole_types(nodes, by_tensor)
        changes["place"] = {"per_tensor_ops": (*recipe.place.per_tensor_ops, *whole)}
        weights = (input_at(nodes[name], 1) for name in names)
        overrides = {
            weight.name or "": Override(per_tensor=True)
            for weight in weights
            if weight is not None and weight.is_initializer()
        }
        changes["overrides"] = {**recipe.overrides, **overrides}
        changes |= _ranges(nodes, settings)
    elif by_tensor:
        changes["per_channel"] = False
    return recipe.replace(**changes)


def as_pattern(names: Iterable[str]) -> tuple[str, ...]:
    """Return one pattern for several nodes, some of which clean-ups may take away."""
    escaped = "|".join(map(re.escape, names))
    return (f"re:{escaped}",) if escaped else ()


def setting_by_node(model: ir.Model, by_type: Any, by_name: Any) -> dict[str, OpSetting]:
    """Return the settings of each node that a pattern matches."""
    found: dict[str, OpSetting] = {}
    nodes = list(model.graph.all_nodes())
    for option, given, label in (
        ("op_type_dict", by_type, "op_type"),
        ("op_name_dict", by_name, "name"),
    ):
        for pattern, setting in _read(option, given):
            fits = [node for node in nodes if pattern.fullmatch(str(getattr(node, label)))]
            if not fits:
                warn_user(
                    f"{option} {pattern.pattern!r} is ignored: nothing in the model is called so."
                )
            for node in fits:
                name = node.name or ""
                found[name] = found.get(name, OpSetting()).merged(setting)
    return found


def _read(option: str, given: Any) -> Iterator[tuple[re.Pattern[str], OpSetting]]:
    for pattern, settings in read_mapping(option, given, "patterns").items():
        where = f" in {option} of {pattern!r}"
        try:
            compiled = re.compile(pattern)
        except re.error as error:
            raise RecipeError(
                f"{option}: {pattern!r} is no regular expression: {error}."
            ) from error
        names = ("weight", "activation")
        parts = ignore_unknown(read_mapping(where, settings, "parts"), names, where)
        known = (ignore_unknown(parts.get(name) or {}, _KEYS, where) for name in names)
        weight, activation = (
            {
                key: value if isinstance(value, list | tuple) else [value]
                for key, value in one.items()
            }
            for one in known
        )
        yield compiled, _setting(weight, activation, where)


def _setting(weight: _Options, activation: _Options, where: str) -> OpSetting:
    algorithm = next((name for name in weight.get("algorithm", ()) if name != "minmax"), None)
    of_weights = {name: next(iter(weight.get(name, ())), None) for name in _OF_WEIGHTS}
    dtypes = [*weight.get("dtype", ()), *activation.get("dtype", ())]
    if "fp32" not in dtypes and any(dtype in _FLOATS for dtype in dtypes):
        warn_user(
            f"a dtype{where} stands for fp32: few CPU kernels compute in halves, and a cast is no "
            "quantization."
        )
    # Activations stay float anyway where weights alone are quantized.
    alone = algorithm is not None or any(value is not None for value in of_weights.values())
    counted = weight.get("dtype", ()) if alone else dtypes
    return OpSetting(
        keep_float=any(dtype in _FLOATS for dtype in counted) if dtypes else None,
        ranges=next((name for name in _RANGES if name in activation.get("algorithm", ())), None),
        granularity=next((g for g in _GRANULARITIES if g in weight.get("granularity", ())), None),
        algorithm=algorithm,
        schemes=(
            next(iter(weight.get("scheme", ())), None),
            next(iter(activation.get("scheme", ())), None),
        ),
        **of_weights,
    )


def _by_whole_types(
    nodes: Mapping[str, ir.Node], chosen: list[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the op types of which all nodes are chosen, and the names of the other ones."""
    left = {node.op_type for name, node in nodes.items() if name not in chosen}
    types = dict.fromkeys(nodes[name].op_type for name in chosen)
    whole = tuple(op_type for op_type in types if op_type not in left)
    return whole, tuple(name for name in chosen if nodes[name].op_type not in whole)


def _ranges(nodes: Mapping[str, ir.Node], settings: Mapping[str, OpSetting]) -> dict[str, Any]:
    """Return the range method of a model; there it is one of each operator."""
    asked = {one.ranges for one in settings.values()} - {None, "minmax"}
    if not asked:
        return {}
    if len(asked) > 1:
        raise RecipeError(
            "the activations of a model have ranges by one algorithm here, and kl and percentile "
            "are asked for; give bitwright.quantize overrides with ranges for tensors."
        )
    [name] = asked
    others = [
        node.op_type
        for key, node in nodes.items()
        if node.op_type in _OBSERVED and settings.get(key, OpSetting()).ranges != name
    ]
    if others:
        warn_user(
            f"algorithm {name!r} is that of all activations: a tensor between two operators has "
            "one range."
        )
    return {"ranges": _RANGES[str(name)]}
