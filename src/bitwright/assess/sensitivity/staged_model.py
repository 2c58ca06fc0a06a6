"""Models in stages, and variants of them that share all stages but a few."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

import numpy.typing as npt

from bitwright.graph import PortableModel
from bitwright.run import open_session, run_session

__all__ = ["Answer", "OpenStage", "StageModel", "StagedModel"]

Array = npt.NDArray[Any]
Sample = Mapping[str, Array]


class StageModel(NamedTuple):
    """A stage as a model, with the names of what leaves it: there, and in the model."""

    source: PortableModel
    given: dict[str, str]
    """What later stages may read."""
    outputs: dict[str, str]
    """The outputs of the whole model that it makes."""
    node_count: int
    weight_bytes: int


class Answer(NamedTuple):
    """What a model gave on a sample: tensors between its stages, and its outputs, by name."""

    tensors: MutableMapping[str, Array]
    outputs: dict[str, Array]


class OpenStage:
    """A stage in the runtime."""

    def __init__(self, stage: StageModel, providers: Sequence[str] | None) -> None:
        # Beyond "extended" come layouts for speed, which many nodes pay for when the model is
        # opened. A node that is float here stays so: between integers, the runtime would round its
        # weights.
        self._session = open_session(
            stage.source.model, level="extended", providers=providers, float_weights=True
        )
        self._stage = stage
        self.read = frozenset(value.name for value in self._session.get_inputs())

    def run(self, tensors: Mapping[str, Array]) -> Answer:
        """Return what it gives to later stages, and the outputs that it makes."""
        given, outputs = self._stage.given, self._stage.outputs
        if not given and not outputs:
            return Answer({}, {})
        values = run_session(self._session, {name: tensors[name] for name in self.read})
        return Answer(
            {name: values[made] for name, made in given.items()},
            {name: values[made] for name, made in outputs.items()},
        )


class StagedModel:
    """A model in stages, opened when it is first run and then kept; it travels without sessions."""

    def __init__(self, stages: Sequence[StageModel]) -> None:
        self._stages = stages
        self._opened: list[OpenStage] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return StagedModel, (self._stages,)

    @property
    def has_outputs(self) -> bool:
        """Whether any output of the model is made in a stage."""
        return any(stage.outputs for stage in self._stages)

    def run(self, sample: Sample, providers: Sequence[str] | None) -> Answer:
        """Return what the model gives on a sample, in all stages."""
        if self._opened is None:
            self._opened = [OpenStage(stage, providers) for stage in self._stages]
        answer = Answer(dict(sample), {})
        for stage in self._opened:
            found = stage.run(answer.tensors)
            answer.tensors.update(found.tensors)
            answer.outputs.update(found.outputs)
        return answer

    def run_variant(self, own: Mapping[int, OpenStage], answer: Answer) -> dict[str, Array]:
        """Return the outputs of a variant with stages of its own; `answer` is that of the model."""
        assert self._opened is not None
        changed, outputs = dict[str, Array](), dict(answer.outputs)
        for place, stage in enumerate(self._opened):
            if place in own or not changed.keys().isdisjoint(stage.read):
                found = own.get(place, stage).run(ChainMap(changed, answer.tensors))
                changed.update(found.tensors)
                outputs.update(found.outputs)
        return outputs
