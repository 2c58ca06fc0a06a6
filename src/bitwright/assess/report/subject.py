"""The subject of a report: two models, and what was measured of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from bitwright.assess.clock import Clock
from bitwright.assess.comparison.results import NodeComparison
from bitwright.assess.comparison.units import node_places, nodes_between
from bitwright.assess.coverage import Coverage
from bitwright.assess.outputs import OutputComparison
from bitwright.assess.report.views import TensorView
from bitwright.assess.sensitivity.results import Proposal, Sensitivity
from bitwright.assess.verdict import Verdict, accuracy_of, judge_model
from bitwright.graph.decisions import Decisions
from bitwright.plan import QuantPlan
from bitwright.recipe import Recipe

_MAX_SHARE, _MAX_NAMED = 0.05, 8
"""Share and number of the nodes that are called outstanding at most."""
_MIN_GAP = 6.0
"""Decibels below the middle of all nodes from which a node is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportNode:
    """One node with its errors, and the tensors that are drawn for it."""

    measured: NodeComparison
    tensors: Sequence[tuple[str, str]] = ()
    """(what it is to the node, key of a tensor), such as ("weight", "conv1.w")."""
    in_file: Sequence[tuple[str, str]] = ()
    """(name, op) of the nodes of the given file that it stands for, where that is known."""

    facts: Sequence[tuple[str, str]] = ()
    """(name, value) of what the float model says of it: the shape of its result, attributes."""
    sizes: bool = False
    """Whether it works out sizes or indices, which are shown around a node only if asked for."""

    @property
    def alone(self) -> float | None:
        """The error of this node alone, in dB; each channel counts alike where that is known."""
        measured = self.measured
        return measured.local_sqnr if measured.channel_sqnr is None else measured.channel_sqnr

    @property
    def quantized(self) -> bool:
        """Whether the node works on quantized values."""
        return self.measured.action != "float"


@dataclass(frozen=True, slots=True, kw_only=True)
class SuggestedFix:
    """The sensitivity of each node, and the plan in which the worst of them fall back."""

    sensitivity: Sensitivity
    proposal: Proposal
    plan_name: str = "better.plan.json"
    """Where that plan is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSubject:
    """Two models, what was measured of them, and how one became the other."""

    float_name: str
    quantized_name: str
    float_bytes: int
    quantized_bytes: int
    outputs: Sequence[OutputComparison]
    nodes: Sequence[ReportNode]
    """In the order of the graph."""
    worst: Sequence[int]
    """Places of the nodes by their own error, the worst first."""
    tensors: Mapping[str, TensorView] = field(default_factory=dict)
    samples: int = 0
    data: str = ""
    """What was measured on, in words."""
    data_option: str = ""
    """The same as options of the command, such as "--data images"."""
    clock: Clock | None = None
    """The time beside the prepared float model's."""
    untimed: str = "it was not asked for"
    """Why there is none, where there is none."""
    purpose: str = "size"
    """What the model was made for: what to do about its time."""
    coverage: Coverage | None = None
    """The products that the runtime computes in integers."""
    recipe: Recipe | None = None
    decided: Decisions | None = None
    """What the quantized model says of its nodes, where it is one of ours."""
    plan: QuantPlan | None = None
    plan_name: str = ""
    """The plan's file, where it has one."""
    suggested_fix: SuggestedFix | None = None
    """What was found by trying, if that was asked for."""
    tuning: Mapping[str, Any] | None = None
    """What a tuning run found, as plain data, where the model comes from one."""

    target: Mapping[str, Any] | None = None
    """What its target says of it, as `Verification.summarize` gives it, where one was named."""

    def most_sensitive(self) -> list[int]:
        """Return the places of the most sensitive nodes: by what was tried out, if anything was."""
        chosen = () if self.suggested_fix is None else self.suggested_fix.proposal.nodes
        places = {node.measured.name: place for place, node in enumerate(self.nodes)}
        found = [places[name] for name in chosen if name in places]
        return found[:_MAX_NAMED] or self.outstanding()

    def outstanding(self) -> list[int]:
        """Return the places of the few nodes that lose much more than the others."""
        worst = [place for place in self.worst if self.nodes[place].quantized]
        alone = [node.alone if node.quantized else None for node in self.nodes]
        finite = [value for value in alone if value is not None and math.isfinite(value)]
        if not finite:
            return []
        threshold = statistics.median(finite) - _MIN_GAP
        most = min(_MAX_NAMED, max(1, int(_MAX_SHARE * len(self.nodes))))
        return [p for p in worst if (value := alone[p]) is not None and value < threshold][:most]

    def verdict(self) -> Verdict:
        """Return the verdict on the quantized model, which also names the most sensitive node."""
        sizes = self.float_bytes, self.quantized_bytes
        clock, purpose, samples = self.clock, self.purpose, self.samples
        found = judge_model(self.plan, self.outputs, sizes, clock, purpose, samples)
        sensitive = [*self.most_sensitive(), *self.worst]
        no_answer = found.level in ("float", "unknown")
        if no_answer or accuracy_of(self.outputs) in ("good", "unknown") or not sensitive:
            return found
        name = self.nodes[sensitive[0]].measured.name
        return found._replace(sentence=f"{found.sentence} The most sensitive node is {name}.")


def find_original_nodes(
    model: ir.Model, rows: Sequence[NodeComparison]
) -> list[tuple[tuple[str, str], ...]]:
    """Return (name, op) of the file's nodes for each row: those since the tensors of other rows.

    Names that a row has may be ours: nodes without a name get one, batch norms are folded into
    the node before, functions are inlined. The tensors keep their names. A row whose tensor the
    file does not have stands for the node of its name there, or for none.
    """
    made = {value.name: value for node in model.graph for value in node.outputs}
    by_name = {node.name: node for node in model.graph if node.name}
    places = node_places(model)
    borders = {made[row.output] for row in rows if row.output in made}
    found = []
    for row in rows:
        value = made.get(row.output)
        if value is not None:
            nodes = nodes_between(value, borders, places)
        else:
            nodes = [by_name[row.name]] if row.name in by_name else []
        found.append(tuple((n.name or "", n.op_type) for n in nodes if n.op_type != "Constant"))
    return found
