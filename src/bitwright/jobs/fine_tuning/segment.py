"""Learn the weights of one segment after the other, and keep what each learned."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import onnx_ir as ir
import torch

from bitwright.errors import ModelError, RecipeError, did_you_mean
from bitwright.graph import opset_of
from bitwright.jobs.fine_tuning.activations import find_learning_scales, rescale, smallest_factors
from bitwright.jobs.fine_tuning.constants import find_constants, with_quantized_activations
from bitwright.learning.activation_scales import ActivationScales
from bitwright.learning.adaquant import AdaQuantLearner
from bitwright.learning.adaround import AdaRoundLearner, Bias
from bitwright.learning.fake_quantize import FakeQuantizer, cast_to_type, dequantize
from bitwright.learning.learner import Learner
from bitwright.learning.reconstruction import reconstruct
from bitwright.learning.reports import SegmentReport, require_torch
from bitwright.learning.segment_target import Rows, SegmentTarget
from bitwright.learning.segments import Segment, segments_to_learn
from bitwright.learning.torch_graph.movement import as_tensor
from bitwright.plan import QuantPlan, TensorPlan
from bitwright.recipe import LEARNING_OPS, AdaQuant, AdaRound, FineTuning
from bitwright.rounding.bias_correction import find_biased_layers
from bitwright.support import Array, PartStore


@dataclass(frozen=True, slots=True)
class Learned:
    """What a segment learned: nothing but its report where the segment was left as it was."""

    report: SegmentReport
    constants: dict[str, Array] = field(default_factory=dict)
    scales: dict[str, Array] = field(default_factory=dict)
    activation_scales: dict[str, float] = field(default_factory=dict)
    """Entry of the plan -> its scale."""


class Checkpoints(PartStore):
    """A folder with a file for each finished segment; one without a path vanishes when closed."""

    def put(self, name: str, learned: Learned) -> None:
        """Keep a segment: all of it, or nothing."""
        kinds = (learned.constants, learned.scales, learned.activation_scales)
        tensors = {
            f"{kind} {key}": np.asarray(array)
            for kind, found in zip(_KINDS, kinds, strict=True)
            for key, array in found.items()  # type: ignore[attr-defined]
        }
        self.write(name, tensors, {"report": msgspec.json.encode(learned.report).decode()})

    def get(self, name: str) -> Learned:
        """Return a segment, read from its file."""
        arrays, notes = self.read(name)
        found: dict[str, dict[str, Any]] = {kind: {} for kind in _KINDS}
        try:
            report = msgspec.json.decode(notes["report"], type=SegmentReport)
            for key, array in arrays.items():
                kind, _, tensor = key.partition(" ")
                found[kind][tensor] = float(array) if kind == "activation" else array
        except (msgspec.DecodeError, KeyError) as error:
            raise self.damaged(name) from error
        return Learned(report, *found.values())


_KINDS = ("constant", "scale", "activation")


@dataclass(slots=True)
class Tuned:
    """The plan with learned scales, constants with learned values, and the reports."""

    plan: QuantPlan
    constants: dict[str, Array] = field(default_factory=dict)
    """Name -> float values whose nearest integers are the learned ones."""
    reports: list[SegmentReport] = field(default_factory=list)


class SegmentLearner:
    """Learns the segments of a model for its plan, and holds what was learned so far."""

    def __init__(self, model: ir.Model, plan: QuantPlan, method: FineTuning, device: str) -> None:
        require_torch(device)
        self.model, self.method, self.device = model, method, device
        self.plan = plan
        """What segments learn beside: in sequence, it follows what was learned."""
        self.tuned = Tuned(plan)
        self.constants = find_constants(model, plan)
        self.stored = {c.name: c.stored(plan.parameters(c.key)) for c in self.constants.values()}
        self._details = plan.recipe.emulate.fine_tune
        self._opset = opset_of(model)
        op_types = self._details.op_types or LEARNING_OPS
        learning = {node.name for node in model.graph if node.op_type in op_types}
        self._learning = {
            name: constant
            for name, constant in self.constants.items()
            if constant.role == "weight"
            and plan.tensors[constant.key].qtype.is_integer
            and not learning.isdisjoint(constant.nodes)
        }
        readers = {node for constant in self._learning.values() for node in constant.nodes}
        self._biases = {
            layer.weight.name or "": layer.bias.name or ""
            for layer in find_biased_layers(model, readers)[0]
            if layer.factor == 1
        }
        # Some targets store biases as they do weights; they are biases all the same.
        for name in self._biases.values():
            self._learning.pop(name, None)
        self.segments: list[Segment] = segments_to_learn(model, readers, method)
        if method.nodes is not None:
            self.segments = _with_nodes(self.segments, method.nodes, model)
        self._owners: dict[str, int] = {}
        for index, segment in enumerate(self.segments):
            for name in self._names(segment):
                self._owners.setdefault(name, index)
        self._scale_owners: dict[str, int] = {}
        if method.learn_activation_scales:
            self._scale_owners = find_learning_scales(model, plan, self.segments)

    def name_of(self, index: int) -> str:
        """Return what a segment is kept under: its place, and the name of its first node."""
        return f"{index} {self.segments[index].first}"

    def learn(self, index: int, quantized: Rows, floats: Rows) -> Learned:
        """Let a segment learn from what it reads in both models; nothing is changed by it."""
        segment = self.segments[index]
        names = self._names(segment)
        mine = [n for n in names if n in self._learning and self._is_free(n, index)]
        if not mine:
            reason = "its weights are learned in another segment"
            return Learned(SegmentReport(segment.first, 0, reason=reason))
        try:
            target = self._target(index, names, quantized, floats)
        except ModelError as error:
            return Learned(SegmentReport(segment.first, len(mine), reason=str(error).rstrip(".")))
        biases = [n for n in names if self._is_bias(n) and self._is_free(n, index)]
        learner = self._learner(mine, biases)
        outcome = reconstruct(target, learner, self.method, self._details, seed=index)
        report = outcome.report(segment.first, len(mine))
        if outcome.constants is None:
            return Learned(report)
        activations = {
            key: float(np.float32(self.plan.parameters(key).scale) * np.float32(factor))
            for key, factor in target.scales.factors().items()
            if factor != 1
        }
        constants, scales = _to_numpy(outcome.constants), _to_numpy(learner.scales())
        return Learned(report, constants, scales, activations)

    def keep(self, index: int, learned: Learned) -> dict[str, Array]:
        """Take over what a segment learned; return what its constants read as from here on."""
        tuned = self.tuned
        tuned.reports.append(learned.report)
        tensors = dict(tuned.plan.tensors)
        for name, scale in learned.scales.items():
            key = self.constants[name].key
            tensors[key] = _rescaled(tensors[key], scale)
        for key, activation_scale in learned.activation_scales.items():
            tensors[key] = rescale(tensors[key], activation_scale)
        if learned.scales or learned.activation_scales:
            tuned.plan = msgspec.structs.replace(tuned.plan, tensors=tensors)
        for name, array in learned.constants.items():
            tuned.constants[name] = array.astype(self.constants[name].array.dtype)
        changed: dict[str, Array] = {}
        if not self.method.sequential or not learned.constants:
            return changed
        self.plan = tuned.plan
        mine = self._names(self.segments[index])
        # Other segments have biases at the scales of what they read, too.
        for name in self.constants if learned.activation_scales else mine:
            constant = self.constants[name]
            # The scale of a bias follows those of its weight and of what its layer reads.
            if name in learned.constants or self._is_bias(name):
                parameters = tuned.plan.parameters(constant.key)
                changed[name] = constant.stored(parameters, tuned.constants.get(name))
        self.stored.update(changed)
        return changed

    def quantized_model(self) -> ir.Model:
        """Return the model with activations quantized as they were learned so far."""
        return with_quantized_activations(self.model, self.plan, self.constants)

    def _names(self, segment: Segment) -> list[str]:
        """Return the plan's constants that a segment reads."""
        return [name for name in segment.reads if name in self.constants]

    def _is_bias(self, name: str) -> bool:
        return self.constants[name].role == "bias" or name in self._biases.values()

    def _is_free(self, name: str, index: int) -> bool:
        """Whether a constant that several segments may share can still learn in this one."""
        if self.method.sequential:
            return name not in self.tuned.constants
        return self._owners[name] == index

    def _target(
        self, index: int, names: Sequence[str], quantized: Rows, floats: Rows
    ) -> SegmentTarget:
        segment, plan, outputs = self.segments[index], self.plan, {}
        scales = self._activation_scales(index)
        if self._details.output_pairs:
            keys = {e.tensor: k for k, e in plan.tensors.items() if e.source is None}
            outputs = {n: quantizers_of(keys[n], plan) for n in segment.outputs if n in keys}
        return SegmentTarget.of(
            segment,
            quantized,
            floats,
            stored={name: self.stored[name] for name in names},
            opset=self._opset,
            device=self.device,
            read=reading_quantizers(segment.nodes, plan, scales),
            outputs=outputs,
            scales=scales,
        )

    def _activation_scales(self, index: int) -> ActivationScales | None:
        """Return the scales of activations that learn in a segment; None where none shall."""
        if not self.method.learn_activation_scales:
            return None
        roots = [root for root, owner in self._scale_owners.items() if owner == index]
        return ActivationScales(smallest_factors(self.model, self.plan, roots), self.device)

    def _learner(self, mine: Sequence[str], biases: Sequence[str]) -> Learner[Any]:
        if isinstance(self.method, AdaRound):
            quantizers = self._quantizers(biases if self._details.update_bias else [])
            following = {
                name: Bias(bias, as_tensor(self.stored[bias], self.device), quantizers[bias][1])
                for name in mine
                if (bias := self._biases.get(name, "")) in quantizers
            }
            return AdaRoundLearner(self._quantizers(mine), self.method, following, self._details)
        assert isinstance(self.method, AdaQuant)
        free = [name for name in mine if self._may_rescale(name)]
        learning = [*mine, *biases] if self._details.update_bias else mine
        return AdaQuantLearner(self._quantizers(learning), self.method, free)

    def _quantizers(self, names: Sequence[str]) -> dict[str, tuple[torch.Tensor, FakeQuantizer]]:
        quantizers = {}
        for name in names:
            constant = self.constants[name]
            quantizer = FakeQuantizer.of(
                self.plan.parameters(constant.key), constant.array.shape, self.device
            )
            quantizers[name] = as_tensor(constant.array, self.device).float(), quantizer
        return quantizers

    def _may_rescale(self, name: str) -> bool:
        method, plan = self.method, self.plan
        assert isinstance(method, AdaQuant)
        key = self.constants[name].key
        entry = plan.tensors[key]
        if method.learn_scales is False or plan.recipe.scales != "float" or entry.block_size:
            return False
        return entry.scale is not None and all(e.same_as != key for e in plan.tensors.values())


def _with_nodes(
    segments: Sequence[Segment], names: Collection[str], model: ir.Model
) -> list[Segment]:
    """Return the segments with one of these nodes; a name that the model lacks is an error."""
    known = {node.name or "" for node in model.graph}
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known)
            raise RecipeError(f"fine_tune names node {name!r}, which the model lacks.{hint}")
    return [segment for segment in segments if any(node.name in names for node in segment.nodes)]


def _to_numpy(tensors: Mapping[str, torch.Tensor]) -> dict[str, Array]:
    return {name: tensor.cpu().numpy() for name, tensor in tensors.items()}


def _rescaled(entry: TensorPlan, scale: Array) -> TensorPlan:
    """Return an entry with a learned scale, in the form that the plan has it in."""
    values = scale.reshape(-1).astype(np.float64)
    assert entry.scale is not None
    given = values.tolist() if isinstance(entry.scale, list) else float(values[0])
    return msgspec.structs.replace(entry, scale=given, method="learned step size")


# The quantizers of activations, as a segment reads through them --------------------------------


Change = Callable[[torch.Tensor], torch.Tensor]

_FLOATS = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def reading_quantizers(
    nodes: Iterable[ir.Node], plan: QuantPlan, scales: ActivationScales | None = None
) -> dict[tuple[str, int], Change]:
    """Return (node, input) -> what the plan puts before it, for activations.

    `scales` stand in for those of the plan where they learn.
    """
    made: dict[str, Change] = {}
    changes = {}
    for node in nodes:
        planned = plan.nodes.get(node.name or "")
        if planned is None or planned.action == "absorb":
            continue
        for index, key in enumerate(planned.inputs):
            if key is not None and plan.tensors[key].role == "activation":
                if key not in made:
                    made[key] = quantizers_of(key, plan, scales)
                changes[node.name or "", index] = made[key]
    return changes


def quantizers_of(key: str, plan: QuantPlan, scales: ActivationScales | None = None) -> Change:
    """Return the quantizer of an entry, behind that of the entry it is converted from."""
    source = plan.tensors[key].source
    before = None if source is None else quantizers_of(source, plan, scales)
    root = plan.root(key)
    parameters = plan.parameters(key)
    qtype = parameters.qtype
    if not qtype.is_integer and qtype.name not in _FLOATS:
        raise ModelError(f"{qtype} activations have no form in torch here.")

    quantizers: dict[tuple[str, int], FakeQuantizer] = {}

    def change(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        if before is not None:
            tensor = before(tensor)
        place = str(tensor.device), tensor.ndim
        if place not in quantizers:
            quantizers[place] = FakeQuantizer.of(parameters, tuple(tensor.shape), tensor.device)
        quantizer = quantizers[place]
        if qtype.is_integer and scales is not None:
            return scales.quantize(root, tensor, quantizer)
        if qtype.is_integer:
            return quantizer.nearest(tensor)
        stored = cast_to_type(tensor, *quantizer, _FLOATS[qtype.name])
        return dequantize(stored, quantizer.scale, quantizer.zero_point, tensor.dtype)

    return change
