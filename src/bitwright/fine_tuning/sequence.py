"""Blocks learned one after the other, each for the inputs that those before it leave it.

Two models walk side by side over the same samples: the float one, and one whose activations are
quantized and whose weights are what was learned so far. Each node of both runs once a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from bitwright.emit import EMITTERS
from bitwright.errors import MissingPackageError, ModelError
from bitwright.fine_tuning.constants import (
    LEARNING_OPS,
    activations_only,
    find_constants,
)
from bitwright.graph import clone_model, cut_model, opset_of
from bitwright.observe import Stop, Walk
from bitwright.plan import QuantPlan, TensorPlan
from bitwright.recipe import AdaQuant, AdaRound, FineTuning
from bitwright.rounding import round_as_planned
from bitwright.rounding.blocks import Block, find_blocks

if TYPE_CHECKING:
    import torch

    from bitwright.rounding.grid import Grid

    Weights = dict[str, tuple[torch.Tensor, Grid]]

__all__ = ["BlockReport", "Tuned", "fine_tune"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class BlockReport:
    """What became of one block: its error before and after, or why it was left."""

    first: str
    weights: int
    before: float = 0.0
    after: float = 0.0
    steps: int = 0
    kept: bool = False
    reason: str | None = None

    def __str__(self) -> str:
        if self.reason is not None:
            return f"{self.first}: left as it was, {self.reason}"
        verdict = "" if self.kept else ", not kept"
        return f"{self.first}: error {self.before:.3g} -> {self.after:.3g}{verdict}"


@dataclass(slots=True)
class Tuned:
    """The plan with learned scales, constants that lie on their grids, and what was learned."""

    plan: QuantPlan
    constants: dict[str, Array] = field(default_factory=dict)
    """Name -> float values whose nearest integers are the learned ones."""
    reports: list[BlockReport] = field(default_factory=list)


def fine_tune(
    model: ir.Model,
    plan: QuantPlan,
    method: FineTuning,
    samples: Iterable[Mapping[str, Array]],
    *,
    device: str = "cpu",
    providers: Sequence[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Tuned:
    """Learn the weights of a float model for its plan; `samples` are read twice."""
    _require_torch(device)
    return _Session(model, plan, method, device).run(samples, providers, progress)


class _Session:
    """One run of fine-tuning, and what is known so far."""

    def __init__(self, model: ir.Model, plan: QuantPlan, method: FineTuning, device: str) -> None:
        from bitwright.rounding.torch_graph import why_not

        self._model, self._method, self._device = model, method, device
        self._opset = opset_of(model)
        self._constants = find_constants(model, plan)
        self._stored = {c.name: c.stored(plan.parameters(c.key)) for c in self._constants.values()}
        self._tuned = Tuned(plan)
        ops = {node.name: node.op_type for node in model.graph}
        self._learning = {
            name: constant
            for name, constant in self._constants.items()
            if constant.role == "weight"
            and plan.tensors[constant.key].qtype.is_integer
            and any(ops[node] in LEARNING_OPS for node in constant.nodes)
        }
        readers = {node for constant in self._learning.values() for node in constant.nodes}
        self._blocks = find_blocks(
            model,
            readers,
            largest=method.largest_block,
            layers=method.scope == "layer",
            supported=lambda node: why_not(node, self._opset) is None,
        )

    def run(
        self,
        samples: Iterable[Mapping[str, Array]],
        providers: Sequence[str] | None,
        progress: Callable[[int, int], None] | None,
    ) -> Tuned:
        if not self._blocks:
            return self._tuned
        starts = list(dict.fromkeys(block.first for block in self._blocks))
        lane = self._quantized_lane()
        pieces = cut_model(self._model, starts)
        limit = self._method.samples
        with (
            Walk(self._model, starts, islice(samples, limit), providers=providers) as floats,
            Walk(
                lane, starts, islice(samples, limit), providers=providers, pieces=pieces
            ) as quantized,
        ):
            for name, array in self._stored.items():
                quantized.weights[name] = ir.tensor(array, name=name)
            done = 0
            for float_stop, quantized_stop in zip(floats, quantized, strict=True):
                for block in (b for b in self._blocks if b.first == float_stop.node):
                    self._tuned.reports.append(
                        self._learn(block, float_stop, quantized_stop, seed=done)
                    )
                    done += 1
                    if progress is not None:
                        progress(done, len(self._blocks))
        return self._tuned

    def _quantized_lane(self) -> ir.Model:
        """Return the model with quantized activations; weights are put in as they are learned."""
        plan = activations_only(self._tuned.plan, self._constants)
        lane = clone_model(self._model)
        form = "extended" if plan.recipe.format in ("extended", "fix-neuron") else "qdq"
        EMITTERS["static", form](lane, plan, round_as_planned)
        return lane

    def _learn(self, block: Block, floats: Stop, quantized: Stop, *, seed: int) -> BlockReport:
        from bitwright.fine_tuning.simulation import quantizers_of, reading_quantizers
        from bitwright.rounding.reconstruction import Goal, reconstruct
        from bitwright.rounding.torch_graph import TorchGraph, as_tensor

        names = [
            value.name or ""
            for node in block.nodes
            for value in node.inputs
            if value is not None and value.name in self._constants
        ]
        mine = [n for n in dict.fromkeys(names) if n in self._learning]
        mine = [n for n in mine if n not in self._tuned.constants]  # shared, and learned before
        plan = self._tuned.plan
        if not mine:
            return BlockReport(block.first, 0, reason="its weights were learned before")
        try:
            graph = TorchGraph(block.nodes, block.outputs, opset=self._opset, device=self._device)
            read = reading_quantizers(block.nodes, plan)
            behind = {}
            if self._method.output_pairs:
                keys = {e.tensor: k for k, e in plan.tensors.items() if e.source is None}
                behind = {n: quantizers_of(keys[n], plan) for n in block.outputs if n in keys}
        except ModelError as error:
            return BlockReport(block.first, len(mine), reason=str(error).rstrip("."))
        goal = Goal(
            graph,
            self._feeds(block, quantized),
            self._feeds(block, floats),
            fixed={n: as_tensor(self._stored[n], self._device) for n in dict.fromkeys(names)},
            read=read,
            outputs=behind,
        )
        learner, scales = self._learner(mine, names)
        outcome = reconstruct(goal, learner, self._method, seed=seed)
        if outcome.constants is not None:
            self._keep(outcome.constants, scales(), names, quantized)
        return BlockReport(
            block.first,
            len(mine),
            outcome.before,
            outcome.after,
            outcome.steps,
            outcome.constants is not None,
        )

    def _feeds(self, block: Block, stop: Stop) -> list[dict[str, torch.Tensor]]:
        """Return what a block reads, sample by sample."""
        from bitwright.rounding.torch_graph import as_tensor

        rows = zip(*(stop.values(name) for name in block.inputs), strict=True)
        return [
            {n: as_tensor(a, self._device) for n, a in zip(block.inputs, row, strict=True)}
            for row in rows
        ]

    def _learner(self, mine: Sequence[str], names: Sequence[str]) -> tuple[Any, Any]:
        """Return what learns, and what gives its scales."""
        from bitwright.rounding.adaquant import AdaQuantLearner
        from bitwright.rounding.adaround import AdaRoundLearner

        if isinstance(self._method, AdaRound):
            return AdaRoundLearner(self._grids(mine), self._method), dict
        biases = [
            name
            for name in dict.fromkeys(names)
            if self._constants[name].role == "bias"
            and self._method.update_bias
            and name not in self._tuned.constants
        ]
        free = [name for name in mine if self._may_rescale(name)]
        learner = AdaQuantLearner(self._grids([*mine, *biases]), self._method, free)
        return learner, learner.scales

    def _grids(self, names: Sequence[str]) -> Weights:
        from bitwright.rounding.grid import Grid
        from bitwright.rounding.torch_graph import as_tensor

        grids = {}
        for name in names:
            constant = self._constants[name]
            parameters = self._tuned.plan.parameters(constant.key)
            grid = Grid.of(parameters, constant.array.shape, self._device)
            grids[name] = as_tensor(constant.array, self._device).float(), grid
        return grids

    def _may_rescale(self, name: str) -> bool:
        method, plan = self._method, self._tuned.plan
        assert isinstance(method, AdaQuant)
        key = self._constants[name].key
        entry = plan.tensors[key]
        if method.learn_scales is False or plan.recipe.scales != "float" or entry.block_size:
            return False
        return entry.scale is not None and all(e.shares != key for e in plan.tensors.values())

    def _keep(
        self,
        learned: Mapping[str, torch.Tensor],
        scales: Mapping[str, torch.Tensor],
        names: Sequence[str],
        stop: Stop,
    ) -> None:
        """Take over what a block learned, for all that comes behind it."""
        tensors = dict(self._tuned.plan.tensors)
        for name, scale in scales.items():
            key = self._constants[name].key
            tensors[key] = _rescaled(tensors[key], scale.cpu().numpy())
        if scales:
            self._tuned.plan = msgspec.structs.replace(self._tuned.plan, tensors=tensors)
        for name, tensor in learned.items():
            array = tensor.cpu().numpy().astype(self._constants[name].array.dtype)
            self._tuned.constants[name] = array
        for name in dict.fromkeys(names):
            constant = self._constants[name]
            if name in learned or constant.role == "bias":  # its scale follows the weight's
                parameters = self._tuned.plan.parameters(constant.key)
                array = constant.stored(parameters, self._tuned.constants.get(name))
                self._stored[name] = array
                stop.put_weight(name, array)


def _rescaled(entry: TensorPlan, scale: Array) -> TensorPlan:
    """Return an entry with a learned scale, in the form that the plan has it in."""
    values = scale.reshape(-1).astype(np.float64)
    assert entry.scale is not None
    given = values.tolist() if isinstance(entry.scale, list) else float(values[0])
    return msgspec.structs.replace(entry, scale=given, method="learned step size")


def _require_torch(device: str) -> None:
    try:
        import torch
    except ImportError as error:
        raise MissingPackageError(
            "fine-tuning needs torch, which is not installed; install bitwright[torch]."
        ) from error
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise MissingPackageError("torch finds no CUDA device here; fine-tune on the CPU.")
