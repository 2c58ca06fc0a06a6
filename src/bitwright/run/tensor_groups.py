"""Named tensors of a model, computed in groups that fit in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from bitwright.errors import ModelError, did_you_mean
from bitwright.graph import Exposed, clone_model, expose, is_in_order, iter_values, load_model
from bitwright.graph.editing import append_node, remove_unused_nodes
from bitwright.graph.shapes import element_type, infer_shapes, static_shape
from bitwright.run.session import Level, Session
from bitwright.support.array_types import Array

Feeds = Mapping[str, Array]


class SessionRunner:
    """Runs a model so that the named tensors come out.

    The session is fully optimized, unless `level` says otherwise: only the observed tensors are
    outputs, so that what is fused between them stays fused. When the tensors of one sample need
    more than `group_bytes`, they are cut into groups with a session each. `bundles` are tensors
    that are looked at side by side: a group has all of a bundle, or nothing of it.
    """

    def __init__(
        self,
        model: Any,
        tensors: Sequence[str],
        *,
        group_bytes: int,
        providers: Sequence[str] | None = None,
        level: Level = "all",
        bundles: Sequence[Sequence[str]] = (),
    ) -> None:
        # It is only read, so that a model in order need not be copied.
        in_order = isinstance(model, ir.Model) and is_in_order(model)
        self._model: ir.Model = model if in_order else load_model(model)
        self._level = level
        self._providers = providers
        self._group_bytes = group_bytes
        values = dict(iter_values(self._model))
        for name in tensors:
            if name not in values:
                raise ModelError(f"the model has no tensor {name!r}.{did_you_mean(name, values)}")
        self._values = {name: values[name] for name in tensors}
        inputs = {value.name for value in self._model.graph.inputs}
        # What is fed needs no run: it is observed as it comes.
        self._fed = tuple(name for name in self._values if name in inputs)
        self._computed = tuple(name for name in self._values if name not in inputs)
        bundled = {name for bundle in bundles for name in bundle}
        self._bundles = [*bundles, *((name,) for name in self._computed if name not in bundled)]
        self._safe = -1.0  # bytes of input up to which the groups are known to fit
        self._groups: list[tuple[str, ...]] = []
        self._sessions: dict[tuple[str, ...], Callable[[Feeds], dict[str, Array]]] = {}

    def groups(self, feeds: Feeds) -> Sequence[tuple[str, ...]]:
        """Return the groups for this sample; one much larger than those before cuts anew."""
        if not self.fits(feeds):
            self._sessions.clear()  # before measuring, which takes a session of its own
            sizes = self._sizes(feeds)
            self._groups = self._cut(sizes)
            # Tensors grow with the square of their input at most (attention). Up to where even
            # this would fit, larger samples need no new measurement.
            largest = max(sum(sizes[n] for n in g if n in sizes) for g in self._groups)
            growth = self._group_bytes / max(largest, 1)
            self._safe = fed_bytes(feeds) * max(growth, 1.0) ** 0.5
        return self._groups

    def fits(self, feeds: Feeds) -> bool:
        """Return whether the groups of earlier samples are small enough for this one."""
        return fed_bytes(feeds) <= self._safe

    def forget_model(self) -> None:
        """Let the model go once every group has its session: of a large one, most of the memory."""
        del self._model, self._values

    def run(self, group: tuple[str, ...], feeds: Feeds) -> Mapping[str, Array]:
        """Return the tensors of one group."""
        values = {
            name: np.asarray(feeds[name]) for name in group if name in self._fed and name in feeds
        }
        computed = [name for name in group if name not in self._fed]
        if computed:
            if group not in self._sessions:
                self._sessions[group] = self._open(self._expose(computed))
            values.update(self._sessions[group](feeds))
        return values

    def _expose(self, computed: list[str]) -> Exposed:
        """Return a model whose outputs are these tensors, and that computes nothing else."""
        own = self._model.graph.outputs
        made = {value.name for value in own if value.producer() is not None}
        if set(computed) == made and len(own) == len(made):
            return Exposed(self._model, {name: name for name in computed})
        exposed = expose(self._model, computed, keep_outputs=False)
        # The runtime would compute what no output needs, for every group again.
        remove_unused_nodes(exposed.model)
        return exposed

    def _cut(self, sizes: Mapping[str, int]) -> list[tuple[str, ...]]:
        groups: list[list[str]] = [list(self._fed)]
        filled = 0
        for bundle in self._bundles:  # in order: neighbours share the work that leads to them
            computed = [name for name in bundle if name not in self._fed]
            size = sum(sizes[name] for name in computed)
            if filled and filled + size > self._group_bytes:
                groups.append([])
                filled = 0
            groups[-1] += computed
            filled += size
        return [tuple(group) for group in groups]

    def _sizes(self, feeds: Feeds) -> dict[str, int]:
        """Return the bytes of each computed tensor for this sample."""
        counts = {
            name: math.prod(shape)
            for name, shape in self._shapes_for(feeds).items()
            if shape is not None and self._values[name].graph is self._model.graph
        }
        # What else there is depends on values, or on how often a body runs.
        unknown = [name for name in self._computed if name not in counts]
        if unknown:
            counts |= self._counted(unknown, feeds)
        types = {name: element_type(self._values[name]) for name in counts}
        sizes = {name: 4 if one is None else math.ceil(one.itemsize) for name, one in types.items()}
        return {name: count * sizes[name] for name, count in counts.items()}

    def _shapes_for(self, feeds: Feeds) -> dict[str, tuple[int, ...] | None]:
        """Infer shapes with this sample's sizes in place of symbols: far cheaper than a run."""
        shapes = {name: static_shape(self._values[name]) for name in self._computed}
        inputs = {value.name: value.shape for value in self._model.graph.inputs}
        as_fed = all(_may_be(inputs.get(name), array.shape) for name, array in feeds.items())
        if as_fed and None not in shapes.values():
            return shapes
        clone = clone_model(self._model)
        for value in clone.graph.inputs:
            if value.name is not None and value.name in feeds:
                value.shape = ir.Shape(feeds[value.name].shape)
        infer_shapes(clone)
        inferred = dict(iter_values(clone))
        return {name: static_shape(inferred[name]) for name in self._computed}

    def _counted(self, names: Sequence[str], feeds: Feeds) -> dict[str, int]:
        """Ask the runtime: one run in which only each tensor's number of elements comes out."""
        model, outputs = expose(self._model, names, keep_outputs=False)
        exposed = {value.name: value for value in model.graph.outputs}
        model.graph.outputs.clear()
        for index, (name, output) in enumerate(outputs.items()):
            size = ir.Value(name=f"bitwright/size/{index}", type=ir.TensorType(ir.DataType.INT64))
            append_node(model.graph, "Size", [exposed[output]], size, None)
            model.graph.outputs.append(size)
            outputs[name] = f"bitwright/size/{index}"
        sizes = self._open(Exposed(model, outputs))(feeds)
        return {name: int(size) for name, size in sizes.items()}

    def _open(self, exposed: Exposed) -> Callable[[Feeds], dict[str, Array]]:
        """Return what gives the exposed tensors under their own names."""
        try:
            session = Session(exposed.model, level=self._level, providers=self._providers)
        except ModelError:
            # Its fusion of a tanh GELU takes away a product that is an output here as well.
            if self._level not in ("extended", "all"):
                raise
            session = Session(exposed.model, level="basic", providers=self._providers)

        outputs = exposed.outputs  # and not the model

        def run(feeds: Feeds) -> dict[str, Array]:
            given = {name: feeds[name] for name in session.inputs if name in feeds}
            found = session.run(given, list(outputs.values()))
            return {tensor: found[output] for tensor, output in outputs.items()}

        return run


def fed_bytes(feeds: Feeds) -> int:
    """Return how many bytes a sample has."""
    return sum(np.asarray(array).nbytes for array in feeds.values())


def _may_be(shape: ir.Shape | None, fed: tuple[int, ...]) -> bool:
    """Return whether a shape says nothing else than what is fed."""
    if shape is None:
        return True
    same = len(shape) == len(fed)
    return same and all(a == b for a, b in zip(shape, fed, strict=True) if isinstance(a, int))
