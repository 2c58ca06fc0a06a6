"""Run a model layer by layer over all samples, and give each layer's inputs before it runs.

Running a model up to one of its layers takes all the layers before it. Doing so for every layer
takes time that grows with the square of the depth; keeping all activations takes memory that
grows with it. Here all samples advance together, and a spool, in memory and then on disk, holds
just the tensors that later layers read: each node runs once per sample, and a weight that is
replaced before its layer runs is seen by all layers behind it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import onnx_ir as ir

from bitwright.errors import DataError
from bitwright.run.part import Extractor, Part, cut_model
from bitwright.run.session import Session, give_back_memory
from bitwright.run.spool import Rows, SharedRow, Spool
from bitwright.support import Array, Closing, count_cores, default_threads

Samples = Iterable[Mapping[str, Array]]

_CHANGED = "bitwright/changed"
SPOOL_MEMORY = 1 << 28
"""Bytes of tensors between layers that are kept in memory; the rest is on disk."""


class PartOpener(Protocol):
    """Runs parts of a model in another way than as sessions, and keeps what is between them."""

    def make_spool(self) -> Rows:
        """Return what keeps the tensors between parts where they are computed."""

    def open(self, part: ir.Model) -> Callable[[Mapping[str, Any]], dict[str, Any]] | None:
        """Return what runs a model on one sample, None where it cannot be run so."""


class LayerwiseRun(Closing):
    """Runs a model up to each of its layers, in graph order.

    Iterating gives the run itself at each layer, which is `node`: it has the tensors that are alive
    before this layer runs.

    Args:
        model: the float model; it is not changed.
        layers: names of nodes of the main graph.
        samples: what is fed; read once.
        parts: where to cut, if not as this model is: the parts of another with the same tensors.
        engine: what runs the parts that it can; others are sessions, as all are without it.
    """

    def __init__(
        self,
        model: ir.Model,
        layers: Sequence[str],
        samples: Samples,
        *,
        providers: Sequence[str] | None = None,
        parts: Sequence[Part] | None = None,
        engine: PartOpener | None = None,
    ) -> None:
        self._extractor, self._engine = Extractor(model), engine
        self._parts = cut_model(model, layers) if parts is None else list(parts)
        self._layers = frozenset(layers)
        self._providers = providers
        self._pool = ThreadPoolExecutor(2)
        self.node = ""
        """The name of the layer that comes next."""
        self.weights: dict[str, ir.TensorProtocol] = {}
        """Those that are not the model's own."""
        self.spool: Rows = Spool(memory=SPOOL_MEMORY) if engine is None else engine.make_spool()
        self.count = 0
        """How many samples there are."""
        for sample in samples:
            for name, array in sample.items():
                self.spool.append(name, np.array(array))  # its giver may write to it again
            self.count += 1
        if not self.count:
            self.spool.close()
            raise DataError("there is no sample to run the model on; give at least one.")

    def __iter__(self) -> Iterator[Self]:
        for index, part in enumerate(self._parts):
            if part.first in self._layers:
                self.node = part.first
                yield self
            # No layer reads what the last part makes.
            if index + 1 < len(self._parts):
                self._run_part(part)
                self._drop_unread(self._parts[index + 1 :])

    def advance(self) -> Iterator[Part]:
        """Run part after part, and yield each when it has run, with all that it gives."""
        for index, part in enumerate(self._parts):
            self._run_part(part)
            yield part
            self._drop_unread(self._parts[index + 1 :])

    def change(self, tensor: str, function: Callable[[Array], Array]) -> None:
        """Put something else in the place of a tensor, in each sample by itself."""
        for array in self.values(tensor):
            self.spool.append(_CHANGED, function(array))
        self.spool.rename(_CHANGED, tensor)

    def values(self, tensor: str) -> Iterator[Array]:
        """Yield what a tensor holds, sample by sample."""
        return self.spool.rows(tensor)

    def rows(self, tensors: Iterable[str]) -> dict[str, Iterator[Array]]:
        """Return what tensors hold, each sample by sample."""
        return {tensor: self.values(tensor) for tensor in tensors}

    def __contains__(self, tensor: object) -> bool:
        """Whether a tensor is alive."""
        return tensor in self.spool.names()

    def share(self, tensor: str, file: Path) -> SharedRow:
        """Give what a tensor holds to other processes, as a file of its own."""
        return self.spool.share(tensor, file)

    def fed(self) -> Iterator[dict[str, Array]]:
        """Yield the samples that were read, as long as no layer has run."""
        names = self.spool.names()
        for index in range(self.count):
            yield {name: _as_numpy(v) for name, v in self.spool.sample(names, index).items()}

    def put_weight(self, name: str, array: Array | ir.TensorProtocol) -> None:
        """Use these numbers for a weight from here on; a tensor is read when a part runs."""
        if isinstance(array, np.ndarray):
            array = ir.tensor(np.asarray(array, order="C"), name=name)
        self.weights[name] = array

    def put_model(self, model: ir.Model) -> None:
        """Run the parts to come as they are in this model, which has the same tensors."""
        self._extractor = Extractor(model)

    def _run_part(self, part: Part) -> None:
        if not part.outputs:
            return
        for found in self.run_part(part, self.weights):
            for name, array in found.items():
                self.spool.append(name, array)

    def run_part(
        self, part: Part, weights: Mapping[str, ir.TensorProtocol]
    ) -> Iterator[Mapping[str, Any]]:
        """Yield what a part makes of the tensors that are alive, sample by sample."""
        model = self._extractor.extract(part, weights)
        for value in model.graph.inputs:
            if value.type is None:
                value.type = ir.TensorType(self.spool.data_type(value.name or ""))
        feeds = (self.spool.sample(part.inputs, index) for index in range(self.count))
        run = None if self._engine is None else self._engine.open(model)
        return map(run, feeds) if run is not None else self._run_session(model, feeds)

    def _run_session(
        self, model: ir.Model, samples: Iterable[Mapping[str, Any]]
    ) -> Iterator[Mapping[str, Any]]:
        """Yield what the runtime makes of samples, two at a time.

        Two runs on half of the cores each take less time than one after the other: much of a part
        is too small to be shared by cores.
        """
        cores = default_threads() or count_cores()
        # Weights that are put in have been rounded; the runtime must not round them again.
        # Its threads have nothing to wait for but each other, a few microseconds at a time.
        session = Session(
            model,
            threads=max(1, cores // 2),
            providers=self._providers,
            memory_arena="shared",
            as_written=True,
        )

        def run(feeds: Mapping[str, Any]) -> Mapping[str, Any]:
            return session.run({name: _as_numpy(v) for name, v in feeds.items()})

        if cores == 1:
            yield from map(run, samples)
            return
        begun: deque[Future[Mapping[str, Any]]] = deque()
        for feeds in samples:
            begun.append(self._pool.submit(run, feeds))
            if len(begun) > 2:  # one waits, so that no core does
                yield begun.popleft().result()
        yield from (future.result() for future in begun)

    def _drop_unread(self, rest: Sequence[Part]) -> None:
        needed = {name for part in rest for name in part.inputs}
        for name in self.spool.names():
            if name not in needed:
                self.spool.drop(name)

    def close(self) -> None:
        """Remove the spool, and give back its memory."""
        self._pool.shutdown(cancel_futures=True)
        self.spool.close()
        give_back_memory()


def _as_numpy(value: Any) -> Array:
    """Return what a spool holds for a session: torch gives numpy what lies in host memory."""
    return value if isinstance(value, np.ndarray) else np.asarray(value.cpu())


@contextmanager
def run_side_by_side(
    model: ir.Model,
    quantized: ir.Model,
    layers: Sequence[str],
    samples: Samples,
    *,
    weights: Mapping[str, Array | ir.TensorProtocol],
    providers: Sequence[str] | None = None,
    engine: PartOpener | None = None,
) -> Iterator[Iterator[tuple[LayerwiseRun, LayerwiseRun]]]:
    """Run a float model and a quantized form of it, and give the inputs of each layer in both.

    `samples` are read once. `weights` are what the quantized model has instead of its own.
    """
    with (
        LayerwiseRun(model, layers, samples, providers=providers, engine=engine) as floats,
        LayerwiseRun(
            quantized,
            layers,
            floats.fed(),
            providers=providers,
            parts=cut_model(model, layers),
            engine=engine,
        ) as other,
    ):
        for name, array in weights.items():
            other.put_weight(name, array)
        yield zip(floats, other, strict=True)
