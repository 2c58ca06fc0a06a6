"""Runs a large graph in parts: the runtime takes longer than linear time to open a whole one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from bitwright.graph import ARRAY_TYPES, subgraphs_of
from bitwright.run.part import Extractor, Part, cut_model
from bitwright.run.tensor_groups import SessionRunner, fed_bytes
from bitwright.support.array_types import Array

Feeds = Mapping[str, Array]

MOST_NODES = 3_000
"""Nodes of a graph that is opened whole."""
PART_NODES = 1_000
OPEN_PARTS = 8
"""Number of parts up to which all sessions stay open: each takes some megabytes."""
LOT = 16
"""Number of samples that go through a part while it is open."""
STATE_PER_INPUT = 64
"""Bytes between two parts that a byte of input is taken for."""


def open_runner(
    model: Any, tensors: Sequence[str], *, group_bytes: int, providers: Sequence[str] | None = None
) -> SessionRunner | PartRunner:
    """Return what runs a model so that the named tensors come out; a large one in parts."""
    if isinstance(model, ir.Model) and len(model.graph) > MOST_NODES:
        starts = [node.name or "" for node in list(model.graph)[::PART_NODES]]
        parts = cut_model(model, starts)
        if _can_be_cut(model, parts, tensors):
            return PartRunner(model, parts, tensors, group_bytes=group_bytes, providers=providers)
    return SessionRunner(model, tensors, group_bytes=group_bytes, providers=providers)


def _can_be_cut(model: ir.Model, parts: Sequence[Part], tensors: Sequence[str]) -> bool:
    """Return whether all that passes between parts has a form outside of the runtime."""
    if any(True for node in model.graph for _ in subgraphs_of(node)):
        return False
    known = ir.convenience.create_value_mapping(model.graph, include_subgraphs=False)
    passing = {name for part in parts for name in part.inputs}
    inputs = {value.name for value in model.graph.inputs}
    return all(
        name in known and (name in inputs or known[name].producer() is not None) for name in tensors
    ) and all(
        isinstance(known[name].type, ir.TensorType) and known[name].dtype in ARRAY_TYPES
        for name in passing
    )


@dataclass
class _RunPart:
    """A part that is run: what it reads, and what of its tensors later ones read."""

    inputs: tuple[str, ...]
    passing: frozenset[str]
    open: Callable[[], SessionRunner]
    """Extracts the part anew: its nodes are not kept beside its sessions."""
    runner: SessionRunner | None = None
    later: frozenset[str] = frozenset()
    """What parts behind it read."""

    def groups(self, feeds: Feeds) -> Iterator[tuple[str, ...]]:
        """Yield the groups of a sample; each is run before the next comes."""
        if self.runner is not None and self.runner.fits(feeds):
            yield from self.runner.groups(feeds)
            return
        self.runner = None  # before the next is there
        self.runner = self.open()
        yield from self.runner.groups(feeds)
        self.runner.forget_model()

    def run(self, group: tuple[str, ...], feeds: Feeds) -> Mapping[str, Array]:
        """Return the tensors of one group."""
        assert self.runner is not None  # it gave the group
        return self.runner.run(group, feeds)


class PartRunner:
    """Runs a model part by part so that the named tensors come out.

    The groups of a sample are run as they come: what one part gives to another is kept until then.
    `bundles` are tensors of one part that are looked at side by side.
    """

    def __init__(
        self,
        model: ir.Model,
        parts: Sequence[Part],
        tensors: Sequence[str],
        *,
        group_bytes: int,
        providers: Sequence[str] | None = None,
        bundles: Sequence[Sequence[str]] = (),
    ) -> None:
        inputs = {value.name for value in model.graph.inputs}
        self._fed = tuple(name for name in tensors if name in inputs)
        self._parts: list[_RunPart] = []
        read = {name for part in parts for name in part.inputs}
        asked = set(tensors)
        extractor = Extractor(model)
        for part, own in zip(parts, _made_in(model, parts), strict=True):
            wanted = [name for name in own if name in asked or name in read]
            if wanted:
                made = set(wanted)
                open_part = partial(
                    _open_part,
                    extractor,
                    Part(part.first, part.inputs, tuple(wanted)),
                    group_bytes=group_bytes,
                    providers=providers,
                    bundles=[bundle for bundle in bundles if made.issuperset(bundle)],
                )
                self._parts.append(_RunPart(part.inputs, frozenset(read & made), open_part))
        later: frozenset[str] = frozenset()
        for run_part in reversed(self._parts):
            run_part.later, later = later, later.union(run_part.inputs)
        self._group_bytes = group_bytes
        self._at: _RunPart | None = None
        self._state: dict[str, Array] = {}

    def groups(self, feeds: Feeds) -> Iterator[tuple[str, ...]]:
        """Yield the groups of a sample; each is run before the next comes."""
        self._at, self._state = None, dict(feeds)
        if self._fed:
            yield self._fed
        for part in self._parts:
            yield from self._groups_of(part)

    def _groups_of(self, part: _RunPart) -> Iterator[tuple[str, ...]]:
        self._at = part
        yield from part.groups(self._own(part))
        self._state = {name: array for name, array in self._state.items() if name in part.later}

    def lots(self, samples: Iterable[Feeds]) -> Iterator[list[Feeds]]:
        """Yield the samples that go through the parts together, few enough for the memory."""
        lot: list[Feeds] = []
        for sample in samples:
            lot.append(sample)
            fit = self._group_bytes // (STATE_PER_INPUT * max(fed_bytes(sample), 1))
            if len(self._parts) <= OPEN_PARTS or len(lot) >= min(fit, LOT):
                yield lot
                lot = []
        if lot:
            yield lot

    def sweep(self, lot: Sequence[Feeds]) -> Iterator[tuple[int, Mapping[str, Array]]]:
        """Yield the place of a sample of a lot and a group of its tensors, part by part.

        The sessions of many parts would take more memory than all else of a large model: each is
        closed behind the lot.
        """
        states = [dict(sample) for sample in lot]
        for place, sample in enumerate(lot if self._fed else ()):
            yield place, {name: np.asarray(sample[name]) for name in self._fed if name in sample}
        for part in self._parts:
            for place, sample in enumerate(lot):
                self._state = states[place]
                for group in self._groups_of(part):
                    yield place, self.run(group, sample)
                states[place] = self._state
            if len(self._parts) > OPEN_PARTS:
                part.runner = None

    def run(self, group: tuple[str, ...], feeds: Feeds) -> Mapping[str, Array]:
        """Return the tensors of one group."""
        part = self._at
        if part is None:
            return {name: np.asarray(feeds[name]) for name in group if name in feeds}
        values = part.run(group, self._own(part))
        self._state.update((name, values[name]) for name in group if name in part.passing)
        return values

    def _own(self, part: _RunPart) -> dict[str, Array]:
        return {name: self._state[name] for name in part.inputs if name in self._state}


def _open_part(extractor: Extractor, part: Part, **options: Any) -> SessionRunner:
    return SessionRunner(extractor.extract(part), part.outputs, **options)


def _made_in(model: ir.Model, parts: Sequence[Part]) -> list[list[str]]:
    """Return the names of all tensors that each part makes."""
    places = {part.first: place for place, part in enumerate(parts)}
    made: list[list[str]] = [[] for _ in parts]
    place = 0
    for node in model.graph:
        place = places.get(node.name or "", place)
        made[place] += [value.name for value in node.outputs if value.name]
    return made
