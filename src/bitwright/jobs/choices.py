"""What can be done with a float model: ways to quantize it, and what each is expected to give.

Nothing is calibrated or written: sizes are counted, and times are those of the cost tables.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bitwright import graph
from bitwright.data import is_cache
from bitwright.decide.layout.dynamic import lay_out_dynamic
from bitwright.decide.layout.entries import Layout
from bitwright.decide.layout.static import lay_out
from bitwright.decide.ops import MATRIX_PRODUCTS
from bitwright.errors import BitwrightError
from bitwright.graph import static_shape, weight_of
from bitwright.jobs.calibration import Calibration, take_samples
from bitwright.jobs.folder_data import with_configuration_beside
from bitwright.jobs.opening import open_model
from bitwright.jobs.placing import is_sized, leave_slower_float, predict
from bitwright.jobs.timing import MAX_BYTES
from bitwright.recipe import named_recipe, settle_for_host, with_standard_purpose
from bitwright.targets import find_target

_NIBBLES, _BYTE = 4.5 / 8, 1.0
"""Bytes of a weight in blocks of 32 with a scale, and of one with a scale for each channel."""
_LARGE = 200_000_000
"""Bytes from which most of a model's time is the reading of its weights."""
_MATTERS = 0.1
"""The share of the file that must be saved for a way to be worth a line."""


class Choice(NamedTuple):
    """One way to quantize a model."""

    what: str
    size: int
    """Bytes of the result, about."""
    time: float | None
    """Over the prepared float model's; None: only the clock tells, once it is written."""
    command: str
    """What makes it."""


def find_choices(source: str | Path, data: str | Path | None = None) -> list[Choice]:
    """Return ways to quantize a float model of a file, those that need data first.

    Sizes that inputs leave open are those of the first sample, if there is data.
    """
    size, named = graph.file_size(source), "DATA" if data is None else str(data)
    data = with_configuration_beside(source, data)
    found = [*_choices(str(source), size, named, data)]
    return [one for one in found if one.size < (1 - _MATTERS) * size]


def _choices(source: str, size: int, named: str, data: Any) -> Iterator[Choice]:
    model = graph.load_model(source)
    has_cache = any(is_cache(value.name or "") for value in model.graph.inputs)
    if size <= MAX_BYTES:
        if not has_cache:
            yield from _static(source, size, named, data)
        yield from _dynamic(source, size)
    products = (node for node in model.graph.all_nodes() if node.op_type in MATRIX_PRODUCTS)
    weights = {weight.value for node in products if (weight := weight_of(node)) is not None}
    matrices = sum(math.prod(static_shape(value) or ()) for value in weights)
    if has_cache or (size > _LARGE and 4 * matrices > size / 2):
        text = "" if data is None else f" {named}"
        left = size - int(matrices * (4 - _NIBBLES))
        yield Choice("4-bit weights", left, None, f"bitwright quantize {source}{text} --bits 4")
    else:
        yield Choice("halves", size // 2, None, f"bitwright quantize {source} --recipe float16")


def _static(source: str, size: int, named: str, data: Any) -> Iterator[Choice]:
    recipe = settle_for_host(with_standard_purpose(named_recipe(find_target("cpu").recipe), None))
    try:
        prepared = open_model(source, recipe)
        layout = lay_out(prepared.model, recipe, keep_float=prepared.keep_float)
    except BitwrightError:  # nothing of it is for integers: the command itself would say so
        return
    samples = [] if data is None else take_samples(prepared, Calibration(data, 1), 1)
    placed = predict(prepared, layout, samples) if samples or is_sized(prepared) else None
    command = f"bitwright quantize {source} {named}"
    most = size - _saved(layout, {})
    if placed is None:
        yield Choice("8-bit integers", most, None, command)
        return
    if placed.integers:
        part = size - _saved(layout, placed.times)
        yield Choice(
            "8-bit integers where they pay", part, placed.time / placed.float_time, command
        )
    if placed.times:
        ratio = placed.planned_time / placed.float_time
        yield Choice("8-bit integers wherever they can be", most, ratio, f"{command} --for size")


def _dynamic(source: str, size: int) -> Iterator[Choice]:
    recipe = settle_for_host(named_recipe("int8-dynamic"))
    try:
        prepared = leave_slower_float(open_model(source, recipe))
        layout = lay_out_dynamic(prepared.model, recipe, keep_float=prepared.keep_float)
    except BitwrightError:  # it would be slower, or there is nothing to take
        return
    left = size - _saved(layout, {})
    command = f"bitwright quantize {source} --dynamic"
    yield Choice("8-bit integers without data, each token by itself", left, None, command)


def _saved(layout: Layout, in_float: Mapping[str, Any]) -> int:
    """Return how many bytes weights lose; those of nodes that are to be float keep theirs."""
    stay = {name for node in in_float if node in layout.nodes for name in layout.nodes[node].inputs}
    return sum(
        int(entry.value.const_value.nbytes - _BYTE * entry.value.const_value.size)
        for key, entry in layout.entries.items()
        if entry.role == "weight" and entry.value.const_value is not None and key not in stay
    )
