"""Encodings files of AIMET and QNN, and scale files of onnxruntime-genai, written and read.

Such a file has, for each tensor by name, bits, scale and offset; an offset is minus the zero point
of unsigned integers, so that a signed symmetric type has -128 for 8 bits. Version 0.6.1 lists dicts
with min and max, version 1.0.0 lists of channels.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
import numpy as np

from bitwright.decide.ops import OPERATORS
from bitwright.errors import ArgumentError, PlanError, RecipeError
from bitwright.graph.constants import input_at, is_constant
from bitwright.jobs.opening import open_model
from bitwright.numerics.types import QTYPES
from bitwright.plan import Parameters, QuantPlan
from bitwright.recipe import Override, Recipe
from bitwright.support.files import read_parsed, write_file

Version = Literal["0.6.1", "1.0.0"]


def to_encodings(plan: QuantPlan, *, version: Version = "1.0.0") -> dict[str, Any]:
    """Return what a plan decided as the content of an encodings file."""
    if version not in get_args(Version):
        raise ArgumentError(f"encodings have version 0.6.1 or 1.0.0 here, not {version!r}.")
    if plan.caches:
        return _to_scale_file(plan)
    if plan.recipe.mode in ("weight-only", "cast"):
        mode = plan.recipe.mode
        raise PlanError(f"encodings are of static plans; a {mode} plan has no scales in it.")
    groups: dict[str, dict[str, Any]] = {"activation_encodings": {}, "param_encodings": {}}
    for key, entry in plan.tensors.items():
        if not entry.qtype.is_integer or entry.source is not None:
            continue  # a tensor that is quantized again has its first type here
        found = plan.parameters(key)
        if found.block_size:
            raise PlanError(
                f"tensor {entry.tensor!r} has blocks, which encodings files do not hold; retarget "
                "the plan to scales of channels first."
            )
        group = "activation_encodings" if entry.role == "activation" else "param_encodings"
        groups[group].setdefault(entry.tensor, _encode(entry.tensor, found, version))
    content: dict[str, Any] = {"version": version}
    for group, tensors in groups.items():
        content[group] = tensors if version == "0.6.1" else list(tensors.values())
    return content


def write_encodings_file(plan: QuantPlan, path: str | Path, *, version: Version = "1.0.0") -> None:
    """Write the encodings of a plan."""
    content = msgspec.json.encode(to_encodings(plan, version=version))
    write_file(Path(path), msgspec.json.format(content, indent=2))


def _encode(name: str, found: Parameters, version: Version) -> Any:
    qtype, scales = found.qtype, np.asarray(found.scale, np.float64).reshape(-1)
    zeros = np.broadcast_to(np.asarray(found.zero_point, np.int64).reshape(-1), scales.shape)
    offsets = (int(qtype.lowest) - zeros).tolist()
    symmetric = bool(np.all(zeros == (0 if qtype.signed else (int(qtype.highest) + 1) // 2)))
    if version == "1.0.0":
        return {
            "name": name,
            "enc_type": "PER_TENSOR" if scales.size == 1 else "PER_CHANNEL",
            "dtype": "INT",
            "bw": qtype.bits,
            "is_sym": symmetric,
            "scale": scales.tolist(),
            "offset": offsets,
        }
    steps = 2**qtype.bits - 1
    return [
        {
            "bitwidth": qtype.bits,
            "dtype": "int",
            "is_symmetric": str(symmetric),
            "min": offset * scale,
            "max": (offset + steps) * scale,
            "scale": scale,
            "offset": offset,
        }
        for scale, offset in zip(scales.tolist(), offsets, strict=True)
    ]


def read_overrides(
    path: str | Path,
    *,
    activation_signed: bool = False,
    axes: Mapping[str, int] | None = None,
    weights: Collection[str] | None = None,
    cache: str | None = None,
) -> dict[str, Override]:
    """Return the overrides of a recipe that give tensors the encodings of a file.

    Activations become unsigned integers, unless `activation_signed`; parameters signed ones where
    they are symmetric and among `weights`, if that is given: others are stored as activations are.
    `axes` has the channel axis of parameters, 0 for others. Encodings of biases (32 bits) are left
    out: a bias has the scale of its products. A scale file gives caches of the type `cache` theirs.
    """
    path = Path(path)
    decode = msgspec.json.decode
    data = read_parsed(path, "encodings", RecipeError, decode, "are not JSON")
    if isinstance(data, Mapping) and "scales" in data:
        return _overrides_of_scales(data, cache, path)
    overrides: dict[str, Override] = {}
    for group, signed in (("activation_encodings", activation_signed), ("param_encodings", None)):
        for name, rows in _rows(data, group, path):
            operand = signed is None and weights is not None and name not in weights
            as_signed = activation_signed if operand else signed
            axis = (axes or {}).get(name, 0)
            made = _override(rows, as_signed, axis, f"{path}: tensor {name!r}")
            if made is not None:
                overrides[name] = made
    return overrides


def channel_axes(source: Any, recipe: Recipe) -> dict[str, int]:
    """Return the axis of output channels of each weight of a model, which no file of encodings has.

    Names are those of the model as a recipe prepares it.
    """
    found: dict[str, int] = {}
    for node in open_model(source, recipe).model.graph.all_nodes():
        operator = OPERATORS.get(node.op_type)
        if operator is None or operator.channel_axis is None:
            continue
        for index in operator.weights:
            value = input_at(node, index)
            axis = operator.channel_axis(node, index)
            if value is None or value.shape is None or axis is None or not is_constant(value):
                continue
            if value.name and len(value.shape):
                found[value.name] = axis % len(value.shape)
    return found


def _rows(data: Any, group: str, path: Path) -> Iterable[tuple[str, list[dict[str, Any]]]]:
    """Return each tensor with an encoding for each of its channels, whatever the version."""
    content = data.get(group) if isinstance(data, Mapping) else None
    if not isinstance(content, (list, Mapping)):
        raise RecipeError(f"{path}: it has no {group}, as encodings of AIMET and QNN have.")
    if isinstance(content, Mapping):
        yield from content.items()
        return
    for one in content:
        try:
            channels = zip(one["scale"], one["offset"], strict=True)
            yield (
                one["name"],
                [
                    {
                        "bitwidth": one["bw"],
                        "dtype": one["dtype"],
                        "is_symmetric": one["is_sym"],
                        "scale": scale,
                        "offset": offset,
                    }
                    for scale, offset in channels
                ],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise RecipeError(f"{path}: an encoding of {group} lacks {error}.") from error


def _override(rows: Any, signed: bool | None, axis: int, where: str) -> Override | None:
    try:
        first = rows[0]
        if str(first["dtype"]).lower() != "int" or int(first["bitwidth"]) > 16:
            return None
        bits = int(first["bitwidth"])
        is_symmetric = str(first["is_symmetric"]).lower() == "true"
        as_signed = is_symmetric if signed is None else signed
        scales = [float(row["scale"]) for row in rows]
        offsets = [int(row["offset"]) for row in rows]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise RecipeError(
            f"{where}: its encoding lacks {error}, or has it as no number."
        ) from error
    qtype = QTYPES.get(f"{'' if as_signed else 'u'}int{bits}")
    if qtype is None:
        raise RecipeError(f"{where}: there is no integer type of {bits} bits.")
    zeros = [int(qtype.lowest) - offset for offset in offsets]
    if len(rows) == 1:
        return Override(qtype=qtype, scale=scales[0], zero_point=zeros[0])
    return Override(qtype=qtype, scale=tuple(scales), zero_point=tuple(zeros), axis=axis)


# Scales of caches -----------------------------------------------------------------------------

_DIVISORS = {"int8": (127, 128), "int4": (7, 8)}
"""What the largest magnitude of a channel is divided by: here, and by onnxruntime-genai."""


def _overrides_of_scales(
    content: Mapping[str, Any], cache: str | None, path: Path
) -> dict[str, Override]:
    """Return the overrides for the caches of a scale file, by the names that the runtime gives.

    A file that says what magnitudes were divided by (`qmax`) serves other types, too.
    """
    if cache is None:
        raise RecipeError(
            f"{path}: it has scales of caches, and the recipe keeps these in float",
            remedy="set cache='int8' with it",
            command="add --cache int8",
        )
    try:
        pairs = content["scales"]["k_scales"], content["scales"]["v_scales"]
        layers = content.get("layer_ids") or range(len(pairs[0]))
        divisor, (_, usual) = content.get("qmax"), _DIVISORS[cache]
        factor = 1.0 if divisor in (None, *_DIVISORS[cache]) else float(divisor) / usual
        return {
            f"present.{layer:d}.{part}": Override(
                qtype=QTYPES[cache],
                scale=tuple((np.ravel(one).astype(np.float64) * factor).tolist()),
                zero_point=(0,) * np.size(one),
            )
            for part, scales in zip(("key", "value"), pairs, strict=True)
            for layer, one in zip(layers, scales, strict=True)
        }
    except (KeyError, TypeError, ValueError) as error:
        raise RecipeError(
            f"{path}: it is no scale file of onnxruntime-genai, with scales.k_scales and "
            f"scales.v_scales for each of its layer_ids ({error})."
        ) from error


def _to_scale_file(plan: QuantPlan) -> dict[str, Any]:
    """Return the scales of a plan's caches as onnxruntime-genai reads them."""
    numbers = [re.search(r"layers?[./_](\d+)", name) for name in plan.caches]
    found = [index if number is None else int(number[1]) for index, number in enumerate(numbers)]
    return {
        "scales": {
            "k_scales": [list(one.key) for one in plan.caches.values()],
            "v_scales": [list(one.value) for one in plan.caches.values()],
        },
        "layer_ids": found,
        "qmax": _DIVISORS[plan.recipe.cache or "int8"][0],
    }
