"""Models as chains of parts that are all open, and variants that differ in a few of them."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

from bitwright.graph import PortableModel
from bitwright.run.session import Session
from bitwright.support.array_types import Array


class PartModel(NamedTuple):
    """A part as a model, with the names of what leaves it: there, and in the model."""

    source: PortableModel
    passing: dict[str, str]
    """What later parts may read."""
    outputs: dict[str, str]
    """The outputs of the whole model that it makes."""

    @property
    def node_count(self) -> int:
        """The nodes that are opened."""
        return len(self.source.model.graph)

    @property
    def weight_bytes(self) -> int:
        """What its constants weigh."""
        values = self.source.model.graph.initializers.values()
        return sum(value.const_value.nbytes for value in values if value.const_value is not None)


class Answer(NamedTuple):
    """What a model gave on a sample: tensors between its parts, and its outputs, by name."""

    tensors: MutableMapping[str, Array]
    outputs: dict[str, Array]

    @property
    def nbytes(self) -> int:
        """What they take."""
        return sum(array.nbytes for array in (*self.tensors.values(), *self.outputs.values()))


class OpenPart(Session):
    """A part in the runtime: opened once, run on any number of samples."""

    def __init__(self, part: PartModel, providers: Sequence[str] | None) -> None:
        # Beyond "extended" come layouts for speed, which many nodes pay for when the model is
        # opened. A node that is float here stays so: between integers, the runtime would round its
        # weights.
        model = part.source.model
        super().__init__(model, level="extended", providers=providers, float_weights=True)
        self._passing, self._made = part.passing, part.outputs

    def answer(self, tensors: Mapping[str, Array]) -> Answer:
        """Return what it gives to later parts, and the outputs that it makes."""
        passing, outputs = self._passing, self._made
        if not passing and not outputs:
            return Answer({}, {})
        values = self.run({name: tensors[name] for name in self.inputs})
        return Answer(
            {name: values[made] for name, made in passing.items()},
            {name: values[made] for name, made in outputs.items()},
        )


class PartChain:
    """A model in parts, opened when it is first run and then kept; it travels without sessions."""

    def __init__(self, parts: Sequence[PartModel]) -> None:
        self._parts = parts
        self._opened: list[OpenPart] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return PartChain, (self._parts,)

    @property
    def has_outputs(self) -> bool:
        """Whether any output of the model is made in a part."""
        return any(part.outputs for part in self._parts)

    def run(self, sample: Mapping[str, Array], providers: Sequence[str] | None) -> Answer:
        """Return what the model gives on a sample, in all parts."""
        if self._opened is None:
            self._opened = [OpenPart(part, providers) for part in self._parts]
        answer = Answer(dict(sample), {})
        for part in self._opened:
            found = part.answer(answer.tensors)
            answer.tensors.update(found.tensors)
            answer.outputs.update(found.outputs)
        return answer

    def run_variant(self, own: Mapping[int, OpenPart], answer: Answer) -> dict[str, Array]:
        """Return the outputs of a variant with parts of its own; `answer` is that of the model."""
        assert self._opened is not None
        changed, outputs = dict[str, Array](), dict(answer.outputs)
        for place, part in enumerate(self._opened):
            if place in own or not changed.keys().isdisjoint(part.inputs):
                found = own.get(place, part).answer(ChainMap(changed, answer.tensors))
                changed.update(found.tensors)
                outputs.update(found.outputs)
        return outputs
